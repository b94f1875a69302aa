"""Lookahead: slow weights that follow every k steps, around any optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lookbehind.optim.checks import count, fraction, one_of
from lookbehind.optim.diagnostics import Diagnostics
from lookbehind.optim.passes import Passes
from lookbehind.optim.weights import real
from lookbehind.optim.wrapper import Wrapper, all_parameters, checked_base

FIRST_MOMENTS = ("momentum_buffer", "exp_avg")  # where SGD and Muon, and the Adam family, keep their momentum
PHASE, STEPS, PREFIX = "lookahead_phase", "lookahead_steps", "lookahead_"


class Lookahead(Wrapper):
    """Lookahead (Zhang et al., 2019): ``k`` steps with the fast weights, then ``slow <- slow + alpha (fast - slow)``.

    Around any optimizer, also around :func:`~lookbehind.SAM` and its relatives. Between two such moments the model has
    the fast weights; evaluate and save with ``with lookahead.slow_weights(): ...``.

    Args:
        base: the optimizer to wrap, an instance.
        k: steps per period.
        alpha: how far the slow weights go, from 0 to 1; 1 is the base optimizer.
        momentum: what happens to the base's momentum at the end of a period: ``"keep"``, ``"reset"`` to zero, or
            ``"interpolate"`` as the weights.

    Example:
        >>> optimizer = Lookahead(SAM(torch.optim.SGD(model.named_parameters(), lr=0.1)), k=5, alpha=0.8)
        >>> loss = optimizer.step(closure)
        >>> with optimizer.slow_weights():
        ...     accuracy = evaluate(model)
    """

    def __init__(self, base: Optimizer, *, k: int = 5, alpha: float = 0.8, momentum: str = "keep") -> None:
        checked_base(base, "Lookahead")
        if isinstance(base, Lookahead):
            raise TypeError(f"base={base!r}: it looks ahead already; give Lookahead its own base")
        one_of("momentum", momentum, ("keep", "reset", "interpolate"))
        self.k = count("k", k)
        self.alpha = fraction("alpha", alpha)
        self.momentum = momentum
        self._slow: dict[str, dict[Tensor, Tensor]] = {}  # "slow" and the slow momenta, by parameter
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

    def step(self, closure: Any = None) -> Any:
        """One step of the base optimizer; at the end of a period the slow weights follow, and the fast start there."""
        self._begin()
        if closure is None and all(float(group.get("lr", 1.0)) == 0.0 for group in self.param_groups):
            # torch.distributed.checkpoint fills or reads the state by such steps: they do not count
            return self.base.step()
        loss = self.base.step(closure)
        self._end()
        return loss

    def passes(self, **options: Any) -> Passes:
        """The base's step as a loop; see :meth:`SharpnessAware.passes`."""
        make: Callable[..., Passes] | None = getattr(self.base, "passes", None)
        if make is None:
            raise TypeError(f"{type(self.base).__name__} needs one gradient per step: call backward() and step()")
        self._run_hooks_around_loop(before=True)
        self._begin()
        passes = make(**options)
        leave_base = passes._leave

        def leave(taken: bool) -> None:
            leave_base(taken)
            if taken:
                self._end()
                self._run_hooks_around_loop(before=False)

        passes._leave = leave
        return passes

    @contextmanager
    def slow_weights(self) -> Iterator[None]:
        """The model has the slow weights inside this ``with``; the fast ones come back afterwards."""
        slow = self._slow.get("slow", {}) if self.phase else {}
        shown, values = _pairs(slow)
        fast = [t.clone() for t in shown]
        try:
            _copy(shown, values)
            yield
        finally:
            _copy(shown, fast)

    def free_buffers(self) -> None:
        """Let the base's scratch buffers go."""
        getattr(self.base, "free_buffers", lambda: None)()

    @torch.no_grad()
    def _begin(self) -> None:
        """Note the weights at the start of a period: they may have been loaded or changed since the last one."""
        if self.phase and "slow" in self._slow:
            return
        known = self._slow.get("slow", {})
        parameters = [p for p in all_parameters(self) if p.requires_grad]
        self._slow["slow"] = {p: _room(known, p).copy_(p) for p in parameters}

    @torch.no_grad()
    def _end(self) -> None:
        self._set_counter(STEPS, self._counter(STEPS) + 1)
        if self.phase + 1 < self.k:
            self._set_counter(PHASE, self.phase + 1)
            return
        fast, slow = _pairs(self._slow["slow"])
        torch._foreach_lerp_(slow, fast, self.alpha)
        _copy(fast, slow)
        if self.momentum != "keep":
            self._end_momentum()
        self._set_counter(PHASE, 0)

    def _end_momentum(self) -> None:
        for parameter in self._slow["slow"]:
            entry = self.state.get(parameter, {})
            for name in FIRST_MOMENTS:
                moment = entry.get(name)
                if not isinstance(moment, Tensor):
                    continue
                if self.momentum == "reset":
                    moment.zero_()
                    continue
                kept = self._slow.setdefault(name, {})
                slow = kept.setdefault(parameter, torch.zeros_like(moment))
                real(slow).lerp_(real(moment), self.alpha)
                moment.copy_(slow)

    # --- saving and loading: the slow weights join the base's entries in the state dict, but not in its ``state``,
    # since optimizers such as Adam take a parameter with an entry for one that they have met already

    def _saved(self) -> dict[str, Any]:
        return {"lookahead": {"k": self.k, "alpha": self.alpha, "momentum": self.momentum}}

    def _packed(self) -> dict[str, Any]:
        state_dict = self.base.state_dict()
        numbers = {p: number for number, p in enumerate(all_parameters(self))}
        state = {number: dict(entry) for number, entry in state_dict["state"].items()}
        for name, tensors in self._slow.items():
            for parameter, tensor in tensors.items():
                state.setdefault(numbers[parameter], {})[PREFIX + name] = tensor
        return {**state_dict, "state": state}

    def _check_saved(self, state_dict: dict[str, Any]) -> None:
        saved, mine = state_dict.get("lookahead"), self._saved()["lookahead"]
        if saved is not None and saved != mine:
            warnings.warn(
                f"this state was saved by Lookahead with {saved}, here it has {mine}. Training goes on with the latter",
                stacklevel=3,
            )

    def _load(self, state_dict: dict[str, Any]) -> None:
        parameters = all_parameters(self)
        state, slow = {}, dict[str, dict[Tensor, Tensor]]()
        for number, entry in state_dict["state"].items():
            ours = {k[len(PREFIX) :]: v for k, v in entry.items() if str(k).startswith(PREFIX)}
            rest = {k: v for k, v in entry.items() if not str(k).startswith(PREFIX)}
            if rest or not ours:
                state[number] = rest
            for name, value in ours.items():
                parameter = parameters[number]
                if value.shape != parameter.shape:
                    raise ValueError(
                        f"this state was saved for other parameters: the slow weights of number {number} have the "
                        f"shape {list(value.shape)}, here it is {list(parameter.shape)}"
                    )
                slow.setdefault(name, {})[parameter] = value
        self.base.load_state_dict({k: v for k, v in {**state_dict, "state": state}.items() if k != "lookahead"})
        # after the base has checked the rest; copied, since the state dict belongs to the caller
        self._slow = {
            name: {p: value.detach().to(device=p.device, dtype=p.dtype, copy=True) for p, value in tensors.items()}
            for name, tensors in slow.items()
        }
        if not self._slow:
            self._set_counter(PHASE, 0)  # a state of the base alone: a new period begins

    def __repr__(self) -> str:
        return f"Lookahead({self.base!r}, k={self.k}, alpha={self.alpha}, momentum={self.momentum!r})"


def _room(known: dict[Tensor, Tensor], parameter: Tensor) -> Tensor:
    kept = known.get(parameter)
    fits = kept is not None and kept.dtype == parameter.dtype and kept.device == parameter.device
    return kept if kept is not None and fits else torch.empty_like(parameter.detach())


def _pairs(slow: dict[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    return [real(p) for p in slow], [real(t) for t in slow.values()]


@torch.no_grad()
def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))
