"""Accelerate: ``accelerator.prepare(optimizer)`` works as it is; this is a step that refuses what would go wrong.

Two things go wrong without a word in a loop for one gradient per step. Inside ``accelerator.accumulate()`` a step that
does not synchronise never calls its closure, so that its batch is lost. And with fp16 an optimizer that was not given
``scaler=accelerator.scaler`` descends with gradients that are still scaled.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lookbehind.optim.lookahead import Lookahead
from lookbehind.optim.passes import InPlaceOfAClosure, given
from lookbehind.optim.sharpness_aware import SharpnessAware

try:
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "lookbehind.integrations.accelerate needs accelerate: pip install 'lookbehind[huggingface]'"
    ) from error

UNSUPPORTED = {
    "DEEPSPEED": "it steps by itself; use DistributedDataParallel (accelerate launch --multi_gpu)",
    "FSDP": "use DistributedDataParallel (accelerate launch --multi_gpu), or torch's fully_shard without Accelerate",
    "MEGATRON_LM": "it runs forward and backward by itself; use DistributedDataParallel",
    "XLA": "use a GPU or the CPU",
}


def accelerated_step(accelerator: Accelerator, optimizer: AcceleratedOptimizer, closure: Any) -> Any:
    """One step of an optimizer that ``accelerator.prepare`` has wrapped; with and without a GradScaler.

    Accumulate in the closure, with ``lookbehind.accumulated``; clip with ``clip=`` of the optimizer.

    Args:
        accelerator: of the loop, with ``gradient_accumulation_steps=1``.
        optimizer: what ``accelerator.prepare`` made of ``LookbehindSAM(base, scaler=accelerator.scaler)``.
        closure: zeroes the gradients, computes the loss, calls ``accelerator.backward(loss)`` and returns the loss.
            Without a scaler also one of ``switching(...)``, ``micro_batches(...)``.

    Returns:
        The loss at the weights before the step.

    ``optimizer.step_was_skipped`` tells of overflows at the weights themselves alone, and a prepared scheduler asks it;
    ``optimizer.optimizer.last.skipped`` tells of those at the points of the climb.

    Examples:
        >>> optimizer = LookbehindSAM(base, rho=0.05, k=2, clip=clip_norm(1.0), scaler=accelerator.scaler)
        >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        >>> for batch in loader:
        ...     def closure():
        ...         optimizer.zero_grad()
        ...         loss = model(**batch).loss
        ...         accelerator.backward(loss)
        ...         return loss
        ...     loss = accelerated_step(accelerator, optimizer, closure)
    """
    climber = _checked(accelerator, optimizer)
    if accelerator.scaler is None or isinstance(closure, given):
        optimizer.step(closure)
        if not isinstance(closure, given):
            return None if climber.last is None else climber.last.clean_loss
        optimizer.zero_grad()
        return _plain(closure.loss)
    if isinstance(closure, InPlaceOfAClosure | list | tuple):
        raise TypeError(
            f"{type(closure).__name__}(...) with a GradScaler: Accelerate has to see the first gradient before the "
            "step; give a plain closure, or use bf16, which needs no scaler"
        )
    optimizer.zero_grad()
    loss = closure()
    optimizer.step(given(loss, closure))
    optimizer.zero_grad()  # after an overflow at the weights the scaler has not called the optimizer
    return _plain(loss)


def _plain(loss: Any) -> Any:
    return loss.detach() if isinstance(loss, Tensor) else loss


def _checked(accelerator: Accelerator, optimizer: Any) -> SharpnessAware:
    """The sharpness-aware optimizer, if everything around it can work."""
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is not prepared: call optimizer = accelerator.prepare(optimizer) before"
        )
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in UNSUPPORTED:
        raise ValueError(f"a sharpness-aware optimizer with {kind} in Accelerate is not supported: {UNSUPPORTED[kind]}")
    if accelerator.gradient_accumulation_steps != 1:
        raise ValueError(
            f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps}: Accelerate would leave out steps, "
            "and their batches would be lost. Leave it at 1 and let the closure see all micro-batches: "
            "lookbehind.accumulated(loss, micro_batches, scaler=accelerator.scaler, model=model)"
        )
    climber: Any = optimizer
    while isinstance(climber, AcceleratedOptimizer):
        climber = climber.optimizer
    within_lookahead = isinstance(climber, Lookahead)
    while isinstance(climber, Lookahead):
        climber = climber.base
    if not isinstance(climber, SharpnessAware):
        raise TypeError(
            f"{type(climber).__name__} needs one gradient per step: call accelerator.backward(loss) and step()"
        )
    if accelerator.scaler is not None:
        _check_scaled(climber, within_lookahead)
    if climber.scaler is not accelerator.scaler:
        raise ValueError(
            f"{climber.name} has {'no' if climber.scaler is None else 'another'} GradScaler, the accelerator has "
            f"{'none' if accelerator.scaler is None else 'one'}: give the optimizer scaler=accelerator.scaler"
        )
    return climber


def _check_scaled(climber: SharpnessAware, within_lookahead: bool) -> None:
    if within_lookahead:
        raise TypeError(
            "Lookahead with a GradScaler: Accelerate unscales the gradients of the outer optimizer, which has no "
            f"scaler; use {climber.name} without Lookahead, or bf16, which needs no scaler"
        )
    if climber.rng == "replay":
        raise ValueError(
            "rng='replay' with a GradScaler: Accelerate has to see the first gradient before the step, when its random "
            "numbers are gone; use rng='fresh', or bf16, which needs no scaler"
        )
    if climber.ranks == "apart":
        raise ValueError(
            "ranks='apart' with a GradScaler: Accelerate looks for overflows in the first gradient, which is each "
            "process's own, so that they would decide differently; use ranks='together', or bf16"
        )
