"""Lookahead: slow weights that follow every k steps, around any optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lookbehind.optim.checks import count, fraction, one_of
from lookbehind.optim.diagnostics import Diagnostics
from lookbehind.optim.exchange import aside
from lookbehind.optim.frameworks import asked_by_an_unknown_scaler, refuse_what_frameworks_do_wrong
from lookbehind.optim.joined_state import PREFIX, JoinedState, split
from lookbehind.optim.options import check_model
from lookbehind.optim.passes import Passes
from lookbehind.optim.ranks import forget_gathered_weights
from lookbehind.optim.scaling import is_unscaled
from lookbehind.optim.weights import is_sharded, on, real
from lookbehind.optim.wrapper import Wrapper, all_parameters, checked_base

FIRST_MOMENTS = ("momentum_buffer", "exp_avg")  # where SGD and Muon, and the Adam family, keep their momentum
PHASE, STEPS = "lookahead_phase", "lookahead_steps"


class Lookahead(Wrapper):
    """Lookahead (Zhang et al., 2019): ``k`` steps with the fast weights, then ``slow <- slow + alpha (fast - slow)``.

    Around any optimizer, also around ``SAM`` and its relatives. Between two such moments the model has
    the fast weights; evaluate and export with ``with lookahead.slow_weights(): ...``. A checkpoint to resume from is
    saved outside of it: model and optimizer as they are.

    A step that the base skips, because of a NaN, counts as one of the ``k``.

    Args:
        base: the optimizer to wrap, an instance.
        k: steps per period.
        alpha: how far the slow weights go, from 0 to 1; 1 is the base optimizer.
        momentum: what happens to the base's momentum at the end of a period: ``"keep"``, ``"reset"`` to zero, or
            ``"interpolate"`` as the weights.
        model: the model, for FSDP2: weights that its modules have gathered must be let go when the slow ones are
            shown.
        offload: keep the slow weights (and slow momenta) in the CPU's memory, to the same bits: on a GPU this saves a
            parameter-sized buffer for copying the weights out and back once per period. Not for FSDP2.

    Examples:
        >>> optimizer = Lookahead(SAM(torch.optim.SGD(model.named_parameters(), lr=0.1)), k=5, alpha=0.8)
        >>> loss = optimizer.step(closure)
        >>> with optimizer.slow_weights():
        ...     accuracy = evaluate(model)
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        k: int = 5,
        alpha: float = 0.8,
        momentum: str = "keep",
        model: nn.Module | None = None,
        offload: bool = False,
    ) -> None:
        checked_base(base, "Lookahead")
        one_of("momentum", momentum, ("keep", "reset", "interpolate"))
        one_of("offload", offload, (False, True))  # type: ignore[arg-type]
        self.k = count("k", k)
        self.alpha = fraction("alpha", alpha)
        self.momentum = momentum
        check_model(model, base, needed=False)
        self.model = model if model is not None else getattr(base, "model", None)
        self.offload = offload
        self._slow: dict[str, dict[Tensor, Tensor]] = {}  # "slow" and the slow momenta, by parameter
        self._showing_slow = False
        super().__init__(base)
        for name in (PHASE, STEPS):
            self._set_counter(name, self._counter(name))

    @property
    def phase(self) -> int:
        """Steps taken in the current period; 0: the slow weights have just followed."""
        return self._counter(PHASE)

    @property
    def evaluations(self) -> int:
        """Gradients computed so far: the base's count, or one per step."""
        return int(getattr(self.base, "evaluations", self._counter(STEPS)))

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._counter(STEPS)

    @property
    def skipped(self) -> int:
        """Steps that the base skipped because of a non-finite loss or gradient."""
        return int(getattr(self.base, "skipped", 0))

    @property
    def last(self) -> Diagnostics | None:
        """Diagnostics of the base's last step, where it has them."""
        return getattr(self.base, "last", None)

    @property
    def climbing(self) -> bool:
        """True while the base evaluates a perturbed point."""
        return bool(getattr(self.base, "climbing", False))

    @property
    def ascents(self) -> int:
        """How many ascent steps the base takes in its next step."""
        return int(getattr(self.base, "ascents", 0))

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The base's GradScaler, if it has one."""
        return getattr(self.base, "scaler", None)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return hasattr(self.base, "scaler") and asked_by_an_unknown_scaler(self)

    def step(self, closure: Any = None) -> Any:
        """One step of the base optimizer; at the end of a period the slow weights follow, and the fast start there."""
        self._begin()
        counts = closure is not None or not self._is_checkpointing()
        refuse_what_frameworks_do_wrong(self)
        scaler = self.scaler
        if scaler is not None and is_unscaled(scaler, self):
            raise RuntimeError(
                "scaler.unscale_(optimizer), or scaler.step(optimizer), of a Lookahead: call it with optimizer.base, "
                "which has the scaler; or let step(closure) unscale"
            )
        if getattr(closure, "needs_cleared_gradients", False):
            self.zero_grad()
        loss = self.base.step(closure)
        self._keep_momenta()
        if counts:
            self._end()
        return loss

    def _is_checkpointing(self) -> bool:
        """Is this a step of torch.distributed.checkpoint, which fills the state so? It does not count."""
        if any(float(group.get("lr", 1.0)) != 0.0 for group in self.param_groups):
            return False
        return not any(bool(p.grad.any()) for p in all_parameters(self) if p.grad is not None)

    def passes(self, **options: Any) -> Passes:
        """The base's step as a loop; see ``SharpnessAware.passes``."""
        make: Callable[..., Passes] | None = getattr(self.base, "passes", None)
        if make is None:
            raise TypeError(f"{type(self.base).__name__} needs one gradient per step: call backward() and step()")
        self._run_hooks_around_loop(before=True)
        self._begin()
        passes = make(**options)
        passes.on_leave.append(self._leave_loop)
        return passes

    def _leave_loop(self, taken: bool) -> None:
        if taken:
            self._keep_momenta()
            self._end()
            self._run_hooks_around_loop(before=False)

    @contextmanager
    def slow_weights(self) -> Iterator[None]:
        """The model has the slow weights inside this ``with``; the fast ones come back afterwards."""
        slow = self._slow.get("slow", {}) if self.phase else {}
        if self.model is None and any(is_sharded(p) for p in slow):
            raise ValueError(
                "slow_weights() of sharded parameters (FSDP2): give Lookahead(..., model=model), so that weights which "
                "its modules have gathered can be let go"
            )
        shown, values = _pairs(slow)
        fast = [aside(t) if self.offload else t.clone() for t in shown]
        outermost, self._showing_slow = not self._showing_slow, True
        try:
            _copy(shown, values)
            forget_gathered_weights(self.model)
            yield
        finally:
            _copy([real(p) for p in slow], fast)  # where the parameters are now: a model may be converted inside
            forget_gathered_weights(self.model)
            self._showing_slow = not outermost

    def free_buffers(self) -> None:
        """Let the base's scratch buffers go."""
        getattr(self.base, "free_buffers", lambda: None)()

    @torch.no_grad()
    def _begin(self) -> None:
        """Note the weights at the start of a period: they may have been loaded or changed since the last one."""
        if self._showing_slow:
            raise RuntimeError("a step inside `with slow_weights()`: it would be lost; step after the `with` has ended")
        known = self._slow.get("slow", {})
        if self.phase and known:
            self._slow["slow"] = {p: self._fitting(slow, p) for p, slow in known.items()}
            return
        parameters = all_parameters(self)
        if self.offload and any(is_sharded(p) for p in parameters):
            raise ValueError(
                "Lookahead(offload=True) of sharded parameters (FSDP2): leave it out; each rank keeps but its own shard"
            )
        present = set(parameters)
        self._slow = {name: {p: t for p, t in kept.items() if p in present} for name, kept in self._slow.items()}
        self._slow["slow"] = {p: self._fitting(known.get(p), p).copy_(p) for p in parameters if p.requires_grad}

    @torch.no_grad()
    def _end(self) -> None:
        self._set_counter(STEPS, self._counter(STEPS) + 1)
        if self.phase + 1 < self.k:
            self._set_counter(PHASE, self.phase + 1)
            return
        trained = {p: slow for p, slow in self._slow["slow"].items() if p.requires_grad}  # not what was frozen since
        fast, slow = _pairs(trained)
        self._follow(slow, fast)
        if self.momentum != "keep":
            self._end_momentum()
        self._set_counter(PHASE, 0)

    def _follow(self, slow: list[Tensor], fast: list[Tensor]) -> None:
        """Set slow, and then fast, to slow + alpha (fast - slow)."""
        if not self.offload:
            torch._foreach_lerp_(slow, fast, self.alpha)
            _copy(fast, slow)
            return
        for kept, moved in zip(slow, fast, strict=True):  # on the device of the fast ones, a tensor at a time
            torch.lerp(on(moved.device, kept), moved, self.alpha, out=moved)
        _copy(slow, fast)

    def _place(self, fast: Tensor) -> torch.device:
        return torch.device("cpu") if self.offload else fast.device

    def _fitting(self, slow: Tensor | None, fast: Tensor) -> Tensor:
        """The slow tensor for a fast one, whose type and place may have changed; a new one if there is none."""
        if slow is not None:
            return slow.to(device=self._place(fast), dtype=fast.dtype)
        fast = fast.detach()
        return torch.empty_like(fast, device="cpu", pin_memory=fast.is_cuda) if self.offload else torch.empty_like(fast)

    def _momenta(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The first moments that the base keeps, each with its name and parameter."""
        for parameter in self._slow["slow"]:
            entry = self.base.state.get(parameter, {})
            for name in FIRST_MOMENTS:
                if isinstance(entry.get(name), Tensor):
                    yield name, parameter, entry[name]

    def _keep_momenta(self) -> None:
        """Slow momenta begin at zero, as soon as the base has fast ones."""
        if self.momentum == "interpolate":
            for name, parameter, moment in self._momenta():
                kept = self._slow.setdefault(name, {})
                slow = kept.get(parameter)
                kept[parameter] = self._fitting(slow, moment)
                if slow is None:
                    kept[parameter].zero_()

    def _end_momentum(self) -> None:
        for name, parameter, moment in self._momenta():
            if self.momentum == "reset":
                moment.zero_()
            else:
                self._follow([real(self._slow[name][parameter])], [real(moment)])

    # --- saving and loading

    @property
    def state(self) -> Any:
        """The base optimizer's state with the slow weights in it."""
        return JoinedState(self.base.state, self._slow)

    @state.setter
    def state(self, state: Any) -> None:
        state = dict(state)  # it may be a view of what is cleared now
        for key in [key for key in self.base.state if key not in state]:
            del self.base.state[key]
        self._slow.clear()
        self.state.update(state)

    def _saved(self) -> dict[str, Any]:
        return {"lookahead": {"k": self.k, "alpha": self.alpha, "momentum": self.momentum}}

    def _packed(self) -> dict[str, Any]:
        if self._showing_slow and self.phase:
            raise RuntimeError(
                "state_dict() inside `with slow_weights()`: training could not go on from it, as the fast weights are "
                "hidden. Save model and optimizer outside to resume; inside, save the model alone"
            )
        packed = self.base.state_dict()
        numbers = {p: number for number, p in enumerate(all_parameters(self))}
        state = {key: dict(entry) if isinstance(entry, dict) else entry for key, entry in packed["state"].items()}
        for name, tensors in self._slow.items():
            for parameter, tensor in tensors.items():
                if parameter in numbers:
                    state.setdefault(numbers[parameter], {})[PREFIX + name] = tensor
        return {**packed, "state": state}

    def _check_saved(self, state_dict: dict[str, Any]) -> None:
        saved, mine = state_dict.get("lookahead"), self._saved()["lookahead"]
        if saved is not None and saved != mine:
            warnings.warn(
                f"this state was saved by Lookahead with {saved}, here it has {mine}. Training goes on with the latter",
                stacklevel=3,
            )

    def _load(self, state_dict: dict[str, Any]) -> None:
        # distributed checkpoints number the parameters by name
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = dict(zip(numbers, all_parameters(self), strict=False))
        state, slow = {}, dict[str, dict[Tensor, Tensor]]()
        for number, entry in state_dict["state"].items():
            ours, rest = split(entry)
            if rest or not ours:
                state[number] = rest
            for name, value in ours.items():
                parameter = parameters.get(number)
                if parameter is None:
                    continue  # the base says what is wrong
                if value.shape != parameter.shape:
                    raise ValueError(
                        f"this state was saved for other parameters: the slow weights of number {number} have the "
                        f"shape {list(value.shape)}, here it is {list(parameter.shape)}"
                    )
                slow.setdefault(name, {})[parameter] = value
        self.base.load_state_dict({k: v for k, v in {**state_dict, "state": state}.items() if k != "lookahead"})
        # after the base has checked the rest; copied, since the state dict belongs to the caller
        self._slow = {
            name: {p: value.detach().to(device=self._place(p), copy=True) for p, value in tensors.items()}
            for name, tensors in slow.items()
        }
        if self.phase and "slow" not in self._slow:
            warnings.warn("this state has no slow weights: Lookahead begins a new period here", stacklevel=3)
            self._set_counter(PHASE, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_showing_slow": False}

    def __repr__(self) -> str:
        return f"Lookahead({self.base!r}, k={self.k}, alpha={self.alpha}, momentum={self.momentum!r})"


def _pairs(slow: dict[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    return [real(p) for p in slow], [real(t) for t in slow.values()]


@torch.no_grad()
def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def slow_weights_of(optimizer: Optimizer) -> AbstractContextManager[None]:
    """The weights to measure and keep inside this ``with``: Lookahead's slow ones, or those that the model has."""
    return optimizer.slow_weights() if isinstance(optimizer, Lookahead) else nullcontext()
