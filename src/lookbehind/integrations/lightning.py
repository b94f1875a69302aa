"""PyTorch Lightning: a module, a precision plugin and a callback for training with the optimizers of this package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from lookbehind.optim.rng import Replay
from lookbehind.optim.sharpness_aware import SharpnessAware
from lookbehind.optim.wrapper import Wrapper, all_parameters


def _lightning() -> Any:
    """Lightning, under the name by which it is imported already: the classes of the two packages do not mix."""
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.split(".")[0]):
                raise  # Lightning is there, but something that it needs is not
    raise ImportError("lookbehind.integrations.lightning needs PyTorch Lightning: pip install 'lookbehind[lightning]'")


if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torchmetrics import Metric
else:
    pl, Metric = _lightning(), import_module("torchmetrics").Metric

is_overridden = pl.utilities.model_helpers.is_overridden
has_argument = pl.utilities.signature_utils.is_param_in_hook_signature
_STRATEGIES = (pl.strategies.SingleDeviceStrategy, pl.strategies.DDPStrategy, pl.strategies.ModelParallelStrategy)
_STEPS_WITH_CLOSURE = (pl.plugins.Precision.optimizer_step, pl.plugins.MixedPrecision.optimizer_step)


class SharpnessAwareModule(pl.LightningModule):
    """A LightningModule for automatic optimization with SAM, Lookbehind and so on; for other optimizers as usual.

    Every evaluation of a step sees all batches of ``accumulate_grad_batches``, and clips, and calls the hooks around
    ``backward`` and before the optimizer's step. ``self.log`` in ``training_step`` and the ``outputs`` of
    ``on_train_batch_end`` have the values at the unperturbed weights; metrics of torchmetrics need
    ``if not self.climbing: self.accuracy(...)``. What cannot work raises at the first step and says what to do.

    Examples:
        >>> class Classifier(SharpnessAwareModule):
        ...     def training_step(self, batch, batch_idx):
        ...         loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        ...         self.log("train_loss", loss)
        ...         return loss
        ...
        ...     def configure_optimizers(self):
        ...         return lookbehind.SAM(torch.optim.SGD(self.named_parameters(), lr=0.1), rho=0.05)
        >>> pl.Trainer(accumulate_grad_batches=4, precision="bf16-mixed", strategy="ddp").fit(Classifier(), loader)
    """

    # torch.jit.script would compile these
    __jit_unused_properties__ = pl.LightningModule.__jit_unused_properties__ + ["climbing", "grad_scaler"]  # noqa: RUF005

    @property
    def climbing(self) -> bool:
        """True while ``training_step`` runs at perturbed weights."""
        trainer = self._trainer  # the public property raises where there is none
        return trainer is not None and any(getattr(optimizer, "climbing", False) for optimizer in trainer.optimizers)

    @property
    def grad_scaler(self) -> torch.amp.GradScaler | None:
        """The Trainer's GradScaler, to be given to the optimizer: ``SAM(base, scaler=self.grad_scaler)``."""
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def log(self, *args: Any, **kwargs: Any) -> None:
        """As in Lightning; nothing is logged at perturbed weights."""
        if not self.climbing:
            super().log(*args, **kwargs)

    # the batches are kept by a callback, as people override hooks without super(), and by hooks, as Lightning's search
    # for a learning rate replaces the callbacks

    def configure_callbacks(self) -> list[Any]:
        """The callback that keeps the batches of a step."""
        others = super().configure_callbacks()
        return [*(others if isinstance(others, Sequence) else [others]), _batches_of(self)]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Keeps the batch."""
        _batches_of(self).on_train_batch_start(self.trainer, self, batch, batch_idx)
        return super().on_train_batch_start(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keeps the loss."""
        _batches_of(self).on_train_batch_end(self.trainer, self, outputs, batch, batch_idx)
        super().on_train_batch_end(outputs, batch, batch_idx)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """One step; where the optimizer climbs, all its evaluations see all batches."""
        plain = getattr(optimizer, "optimizer", optimizer)  # Lightning's wrapper taken off
        climber = _climber(plain)
        if climber is None or optimizer_closure is None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
            return
        if _only_looks(self.trainer):
            optimizer_closure()
            return
        if problem := _problem(self):
            raise ValueError(f"{climber.name} with {problem}")
        batches = _batches_of(self)
        batches.check(self, batch_idx)
        # Lightning has run all batches but the last: their gradients wait until the first evaluation begins
        parameters = all_parameters(plain)
        waiting = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None

        def closure() -> Tensor:
            if not waiting:  # not the first evaluation
                return batches.evaluate(self, plain)
            for parameter, gradient in zip(parameters, waiting, strict=True):
                parameter.grad = gradient
            waiting.clear()
            # the Trainer reports the last result of its closure, so it is called once: at the unperturbed weights
            return torch.stack([*map(_loss_in, batches.losses.values()), _loss_in(optimizer_closure())]).sum()

        try:
            super().optimizer_step(epoch, batch_idx, optimizer, closure)
        finally:
            batches.forget()


class SharpnessAwarePrecision(pl.plugins.MixedPrecision):
    """fp16 with a GradScaler, in place of ``Trainer(precision="16-mixed")``, which steps without the closure.

    The optimizer needs the same scaler. Clip with the optimizer's ``clip=``, after it has unscaled.

    Examples:
        >>> trainer = pl.Trainer(plugins=[SharpnessAwarePrecision("16-mixed", "cuda")])
        >>> optimizer = lookbehind.SAM(base, scaler=self.grad_scaler)  # in configure_optimizers
    """

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Give the optimizer the closure, and leave it the scaler."""
        climber = _climber(optimizer)
        if climber is None or self.scaler is None:
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        if climber.scaler is not self.scaler:
            raise ValueError(
                f"{climber.name} has {'no' if climber.scaler is None else 'another'} GradScaler (or the Trainer's is "
                "disabled): in configure_optimizers give it scaler=self.grad_scaler, that is "
                "self.trainer.precision_plugin.scaler"
            )
        if model.trainer.gradient_clip_val or is_overridden("configure_gradient_clipping", model):
            raise ValueError(
                "gradient_clip_val or configure_gradient_clipping with SharpnessAwarePrecision: it would clip scaled "
                "gradients. Let the optimizer clip: clip=lookbehind.clip_norm(1.0) or clip=lookbehind.clip_value(0.5)"
            )
        for owner in (model, *model.trainer.callbacks):
            if is_overridden("on_before_optimizer_step", owner):
                raise ValueError(
                    f"{type(owner).__name__}.on_before_optimizer_step with SharpnessAwarePrecision: it would see "
                    "scaled gradients. Their norms are in optimizer.last.gradient_norms; use on_train_batch_end"
                )
        return optimizer.step(closure=closure, **kwargs)


class StepMonitor(pl.Callback):
    """Logs what a step saw, every ``log_every_n_steps`` of the Trainer.

    ``evaluations`` and ``skipped`` count over the whole training; ``loss`` is that of the unperturbed weights,
    ``climb`` how much higher it is at the last point; ``alpha`` where a method interpolates (the mean over tensors).

    Examples:
        >>> pl.Trainer(callbacks=[StepMonitor()])  # lookbehind/evaluations, lookbehind/alpha, ...
    """

    def __init__(self, prefix: str = "lookbehind/") -> None:
        self.prefix = prefix
        self._seen = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log, if a step has been taken. Reading the values waits for the device, so not at every step."""
        every, now = trainer.log_every_n_steps, trainer.global_step
        if every and now % every == 0 and now != self._seen:
            self._seen = now
            for optimizer in trainer.optimizers:
                if isinstance(optimizer, Wrapper):
                    pl_module.log_dict({self.prefix + name: float(value) for name, value in _seen_by(optimizer)})


def _seen_by(optimizer: Any) -> list[tuple[str, float]]:
    values = [("evaluations", optimizer.evaluations), ("skipped", optimizer.skipped)]
    if optimizer.last is not None:  # Lookahead around a plain optimizer has none
        losses, alpha = optimizer.last.losses, optimizer.last.alpha
        alpha = sum(alpha) / len(alpha) if isinstance(alpha, tuple) else alpha
        climb = losses[-1] - losses[0] if len(losses) > 1 else None
        values += [("loss", optimizer.last.loss), ("climb", climb), ("alpha", alpha)]
    return [(name, value) for name, value in values if value is not None]


class _Batches(pl.Callback):
    """Keeps the batches of the coming step, and the losses of those that Lightning has run already."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.batches: list[tuple[Any, int]] = []
        self.losses: dict[int, Any] = {}
        self.replay: Replay | None = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        parts = trainer.accumulate_grad_batches
        if batch_idx % parts == 0:
            self.forget()
        climber = _climber(trainer.optimizers[0]) if pl_module.automatic_optimization and trainer.optimizers else None
        known = bool(self.batches) and self.batches[-1][1] == batch_idx
        if known or climber is None or _only_looks(trainer):
            return
        if parts > 1 and climber.rng == "replay":
            self.replay = self.replay or Replay(pl_module.parameters())
            with self.replay((len(self.batches), 0)):
                pass  # notes where the random numbers of this batch begin
        self.batches.append((batch, batch_idx))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.batches:
            self.losses[batch_idx] = outputs

    def check(self, module: pl.LightningModule, batch_idx: int) -> None:
        """All batches of this step are here."""
        if not self.batches or self.batches[-1][1] != batch_idx or len(self.losses) + 1 != len(self.batches):
            raise RuntimeError(
                f"{type(module).__name__} does not keep the batches of a step: let configure_callbacks return "
                "[*super().configure_callbacks(), ...]; and with Tuner.lr_find, which replaces callbacks, call super() "
                "in on_train_batch_start and on_train_batch_end"
            )
        parts = module.trainer.accumulate_grad_batches
        if missing := self.batches[0][1] % parts:
            lost = f"{missing} of {parts} batches of this step are missing"
            pl.utilities.rank_zero_warn(f"{lost}: their gradients are in no checkpoint. Save right after a step")

    def evaluate(self, module: SharpnessAwareModule, optimizer: Optimizer) -> Tensor:
        """The loss of all batches and its gradient, as Lightning's own closure computes them."""
        trainer, strategy, losses = module.trainer, cast(Any, module.trainer.strategy), []
        metrics = [part for part in module.modules() if isinstance(part, Metric)]
        updates = [metric.update_count for metric in metrics]
        takes_number = has_argument(module.training_step, "batch_idx", min_args=2)
        for number, (batch, batch_idx) in enumerate(self.batches):
            replayed = self.replay((number, 0)) if self.replay is not None else nullcontext()
            last = number + 1 == len(self.batches)  # with it gradients are averaged over the ranks
            with replayed, nullcontext() if last else getattr(strategy, "block_backward_sync", nullcontext)():
                output = strategy.training_step(*((batch, batch_idx) if takes_number else (batch,)))
                loss = _loss_in(output) / trainer.accumulate_grad_batches
                strategy.backward(loss, optimizer)
            losses.append(loss.detach())
        if [metric.update_count for metric in metrics] != updates:
            raise RuntimeError("a metric was updated at perturbed weights: write `if not self.climbing:` before it")
        return torch.stack(losses).sum()


def _climber(optimizer: Any) -> SharpnessAware | None:
    """The optimizer that needs several gradients per step; it may be inside a Lookahead."""
    while isinstance(optimizer, Wrapper) and not isinstance(optimizer, SharpnessAware):
        optimizer = optimizer.base
    return optimizer if isinstance(optimizer, SharpnessAware) else None


def _only_looks(trainer: Any) -> bool:
    """Is this the epoch in which Lightning's weight averaging estimates BatchNorm statistics, without gradients?"""
    return bool(getattr(trainer.fit_loop, "_skip_backward", False))


def _problem(module: pl.LightningModule) -> str | None:
    """Why this training would go wrong, and what to do."""
    strategy, precision = module.trainer.strategy, module.trainer.precision_plugin
    if not isinstance(strategy, _STRATEGIES):
        return (
            f"{type(strategy).__name__}: it may not evaluate a closure. Use one device, 'ddp' or ModelParallelStrategy"
        )
    if getattr(strategy, "_model_averager", None) is not None:
        return "DDPStrategy(model_averaging_period=...): it averages what has a gradient, and nothing has. Leave it out"
    if has_argument(module.training_step, "dataloader_iter", explicit=True):
        return (
            "training_step(dataloader_iter): every evaluation would take a new batch. Write training_step(self, batch)"
        )
    if isinstance(precision, SharpnessAwarePrecision):
        return None
    if getattr(precision, "scaler", None) is not None:
        return (
            "precision='16-mixed': Lightning's plugin steps without the closure. In place of precision= use "
            f"Trainer(plugins=[SharpnessAwarePrecision('16-mixed', '{module.device.type}')]), and give the optimizer "
            "scaler=self.grad_scaler; or use precision='bf16-mixed'"
        )
    if type(precision).optimizer_step not in _STEPS_WITH_CLOSURE:
        return f"{type(precision).__name__}: it may step without the closure. Use precision='32-true' or 'bf16-mixed'"
    return None


def _batches_of(module: pl.LightningModule) -> _Batches:
    return module.__dict__.setdefault("_batches_of_a_step", _Batches())  # type: ignore[no-any-return]


def _loss_in(output: Any) -> Tensor:
    """The loss in what ``training_step`` returned."""
    loss: Tensor | None = output.get("loss") if isinstance(output, Mapping) else output  # {} if it returned None
    if loss is None:
        raise TypeError(
            "training_step returned None, which leaves a batch out in Lightning; but every point of a step needs its "
            "loss. Leave the batch out in the data loader, or return a loss of zero, (0 * outputs).sum()"
        )
    return loss
