"""Hugging Face: a Trainer that trains with the optimizers of this package.

A callback could not do it, as it never sees a batch. The Trainer's own loop stays as it is: it evaluates the minibatch
at the weights, logs that loss and calls ``optimizer.step()``; there the optimizer is told how to evaluate the same
minibatch, all its micro-batches, at the points of its climb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lookbehind.optim.clipping import clip_norm
from lookbehind.optim.lookahead import Lookahead
from lookbehind.optim.passes import given
from lookbehind.optim.sharpness_aware import SharpnessAware
from lookbehind.optim.wrapper import all_parameters

try:
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        "lookbehind.integrations.huggingface needs transformers and accelerate: pip install 'lookbehind[huggingface]'"
    ) from error

if not hasattr(Trainer, "_clip_grad_norm"):  # an override of what does not exist would be ignored in silence
    raise ImportError("this transformers is too old: pip install -U 'lookbehind[huggingface]'")

HOW_TO_GIVE_SHARPNESS = "sharpness=lambda base: lookbehind.LookbehindSAM(base, rho=0.05, k=2)"


@dataclass(frozen=True)
class _MicroBatch:
    inputs: Any
    items: Any  # in the whole minibatch: what the Trainer divides a sum of losses by
    parts: int  # micro-batches in the minibatch: what it divides a mean of losses by


class SharpnessAwareTrainer(Trainer):
    """A ``transformers.Trainer`` whose optimizer climbs, around the base optimizer that ``TrainingArguments`` name.

    Accumulation, schedulers, clipping, checkpoints, mixed precision and several processes are as with ``Trainer``:

    - ``gradient_accumulation_steps``: every point of the climb sees all micro-batches.
    - ``max_grad_norm`` clips the gradient of every step of the base optimizer; ``grad_norm`` in the log is the norm at
      the weights themselves.
    - ``fp16=True``: the optimizer gets the Trainer's GradScaler. An overflow at any point skips the step.
    - The log has ``evaluations`` (gradients so far), ``skipped`` (steps without effect; an overflow at the weights
      themselves is the Trainer's and not counted) and ``alpha`` (its mean, if there is one per tensor).

    Args:
        *args: as for ``Trainer``.
        sharpness: makes the optimizer from the base optimizer.
        **kwargs: as for ``Trainer``.

    Attributes:
        sharpness_aware: the optimizer, from the start of ``train()``; ``sharpness_aware.last`` tells of the last step.

    For a Trainer with another base class put this one first: ``class Mine(SharpnessAwareTrainer, Seq2SeqTrainer)``.

    Examples:
        >>> trainer = SharpnessAwareTrainer(
        ...     model, TrainingArguments("out", learning_rate=5e-5, gradient_accumulation_steps=4),
        ...     train_dataset=data, sharpness=lambda base: LookbehindSAM(base, rho=0.05, k=2),
        ... )
        >>> trainer.train()
    """

    def __init__(self, *args: Any, sharpness: Callable[[Optimizer], SharpnessAware], **kwargs: Any) -> None:
        if isinstance(sharpness, Optimizer) or not callable(sharpness):
            raise TypeError(f"sharpness={sharpness!r}: give a function of the base optimizer, {HOW_TO_GIVE_SHARPNESS}")
        self.sharpness = sharpness
        self.sharpness_aware: SharpnessAware | None = None
        self._minibatch: list[_MicroBatch] = []  # what the gradients in p.grad come from
        self._losses: list[Tensor] = []
        super().__init__(*args, **kwargs)
        _refuse_unsupported(self)

    # --- the optimizer

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """The Trainer's optimizer, wrapped by ``sharpness``."""
        optimizer = super().create_optimizer(model)
        if self.sharpness_aware is not None and _unprepared(optimizer) is self.sharpness_aware:
            return optimizer  # a second call of train() goes on with the first one's
        _name_parameters(optimizer, model or self.model)  # type: ignore[arg-type]
        self.optimizer = self.sharpness_aware = self._wrapped(optimizer)
        return self.optimizer

    def _wrapped(self, base: Optimizer) -> SharpnessAware:
        try:
            optimizer = self.sharpness(base)
        except ValueError as error:
            if "ranks='apart'" in str(error):  # its own remedy, model=, cannot be followed here
                raise ValueError(
                    "ranks='apart': the Trainer averages the first gradient over the processes before the optimizer "
                    "sees it; use ranks='together', or write the loop yourself, see examples/accelerate_loop.py"
                ) from error
            raise
        _refuse_result(optimizer, base)
        if self.args.max_grad_norm > 0:
            if optimizer.clip is not None:
                raise ValueError(
                    f"clip={optimizer.clip} and max_grad_norm={self.args.max_grad_norm}: the gradient would be clipped "
                    "twice. Give max_grad_norm=0 to TrainingArguments, or leave clip= out"
                )
            optimizer.clip = clip_norm(self.args.max_grad_norm)
        scaler = self.accelerator.scaler
        if optimizer.scaler is not None and optimizer.scaler is not scaler:
            raise ValueError("scaler=: leave it out; the optimizer gets the Trainer's own GradScaler")
        optimizer.scaler = scaler
        optimizer.register_step_pre_hook(self._arguments_of_step)
        return optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """The norm alone: this is the gradient to climb along, and the optimizer clips that of the descent."""
        return self._get_grad_norm(model)  # type: ignore[no-untyped-call]

    # --- a step

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """The next minibatch, kept for the evaluations of the climb."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.sharpness_aware is None or _unprepared(self.optimizer) is not self.sharpness_aware:
            raise RuntimeError(
                f"the optimizer of this Trainer is {type(_unprepared(self.optimizer)).__name__}, not the one that "
                "sharpness= made: call super().create_optimizer() where you override it"
            )
        if all(p.grad is None for p in all_parameters(self.sharpness_aware)):
            self._losses.clear()  # else the Trainer accumulates over the end of an epoch
        del self._minibatch[len(self._losses) :]
        # copies, since a training_step may take entries out
        self._minibatch += [_MicroBatch(copy(inputs), items, len(batches)) for inputs in batches]
        return batches, items

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward pass of a micro-batch, by the Trainer's loop or at a point of the climb."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self.sharpness_aware is not None and not self.sharpness_aware.climbing:
            self._losses.append(loss.detach())
        return loss

    def _arguments_of_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The Trainer calls ``step()``: give it the loss at the weights and the way to evaluate other points."""
        if not self._minibatch or len(self._minibatch) != len(self._losses):
            raise RuntimeError(
                f"{len(self._minibatch)} micro-batches and {len(self._losses)} losses before this step: call "
                "super().get_batch_samples() and super().training_step() where you override them; for a loss of your "
                "own override compute_loss()"
            )
        return (optimizer, given(torch.stack(self._losses).sum(), self._evaluate_again)), {}

    def _evaluate_again(self) -> Tensor:
        """The loss of the minibatch and its gradient, at the weights that the model has now."""
        model, losses = self.model_wrapped, []
        for number, part in enumerate(self._minibatch, 1):
            self.current_gradient_accumulation_steps = part.parts
            last = number == len(self._minibatch)
            with nullcontext() if last else self.accelerator.no_sync(model):
                losses.append(self.training_step(model, copy(part.inputs), part.items))
            self.current_flos += self.floating_point_ops(part.inputs)
        return torch.stack(losses).sum()

    # --- the log

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log, and beside a training loss what the optimizer did."""
        optimizer = self.sharpness_aware
        if "loss" in logs and optimizer is not None:
            logs.update(evaluations=optimizer.evaluations, skipped=optimizer.skipped)
            alpha = None if optimizer.last is None else optimizer.last.alpha
            if alpha is not None:
                logs["alpha"] = alpha if isinstance(alpha, float) else sum(alpha) / len(alpha)
        super().log(logs, start_time)


def _unprepared(optimizer: Any) -> Any:
    """What Accelerate wrapped."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _name_parameters(base: Optimizer, model: nn.Module) -> None:
    """The Trainer makes groups without names; by them ASAM knows what to scale."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in base.param_groups:
        if any(parameter not in names for parameter in group["params"]):
            raise ValueError("the optimizer has parameters that the model has not: make it from model.parameters()")
        group["param_names"] = [names[parameter] for parameter in group["params"]]


def _refuse_result(optimizer: object, base: Optimizer) -> None:
    if isinstance(optimizer, Lookahead):
        raise TypeError(
            "sharpness= gave a Lookahead: the Trainer evaluates and saves in the middle of its periods, where the "
            "model has the fast weights. Give a LookbehindSAM, SAM, ... without it; or write the loop yourself, see "
            "examples/accelerate_loop.py"
        )
    if not isinstance(optimizer, SharpnessAware) or optimizer.base is not base:
        raise TypeError(
            f"sharpness= gave {optimizer!r}: wrap the optimizer that it is called with, {HOW_TO_GIVE_SHARPNESS}. "
            "Another base optimizer is given to the Trainer: optim= in TrainingArguments, or optimizer_cls_and_kwargs="
        )
    if optimizer.rng == "replay":
        raise ValueError(
            "rng='replay': the Trainer runs the first pass before the optimizer can note its random numbers; use "
            "rng='fresh', or write the loop yourself, see examples/accelerate_loop.py"
        )


def _refuse_unsupported(trainer: Trainer) -> None:
    args, own_loop = trainer.args, "use DistributedDataParallel (torchrun), or write the loop yourself"
    optim = str(getattr(args.optim, "value", args.optim))
    reasons = {
        "DeepSpeed": (trainer.is_deepspeed_enabled, f"it steps by itself; {own_loop}"),
        "FSDP": (trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled, f"{own_loop} with torch's fully_shard"),
        "a model sharded when it was loaded": (trainer.is_distributed_loading_by_transformers, own_loop),
        "parallelism_config": (trainer.accelerator.parallelism_config is not None, own_loop),
        "a TPU": (trainer.accelerator.distributed_type == "XLA", own_loop),
        f"optim={optim!r}": (
            "lomo" in optim or "layerwise" in optim,
            "it changes the weights during backward(), where the point of a climb is no place to descend; use another",
        ),
    }
    for name, (present, remedy) in reasons.items():
        if present:
            raise ValueError(f"SharpnessAwareTrainer with {name} is not supported: {remedy}")
