"""The fast weights of one step: moved by the base optimizer, followed by the slow ones in the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from lookbehind.optim.climb import Climb
from lookbehind.optim.interpolation import Interpolation
from lookbehind.optim.weights import Vector, real
from lookbehind.optim.wrapper import BaseState


@dataclass(kw_only=True)
class Fast:
    """Takes the base steps of a plan, and the interpolation after the last one."""

    base: Optimizer
    interpolation: Interpolation
    climb: Climb
    in_place: bool  # one step, kept as it is: the base optimizer moves the weights themselves, as it would alone
    keeps_state: bool  # of the base optimizer, to put it back if the step fails
    counters: tuple[str, ...]
    _stepped: bool = False
    _state: BaseState | None = None
    _fast: Vector | None = None
    _first: Vector | None = None

    def step(self, final: bool) -> None:
        """One step of the base optimizer with the gradient that is in ``p.grad``."""
        exchange = self.climb.exchange
        if self.in_place:
            exchange.home()
            self.base.step()
            self._stepped = True
            return
        fast = self._fast = self._begin() if self._fast is None else self._fast
        exchange.show(fast)
        self.base.step()
        exchange.settle()
        if self._first is None and self.interpolation.needs_first and not final:
            self._first = [real(t) for t in self.climb.scratch.take()]
            torch._foreach_copy_(self._first, fast)
        if final:
            self._interpolate(fast)

    def _begin(self) -> Vector:
        if self.keeps_state:
            self._state = BaseState(self.base, except_keys=self.counters)
        if not self.climb.exchange.held:
            self.climb.exchange.hold()
        return self.climb.exchange.start_fast(point_is_over=self.climb.over)

    def _interpolate(self, fast: Vector) -> None:
        exchange = self.climb.exchange
        first = fast if self._first is None else self._first
        alpha = self.interpolation(exchange.slow, first, fast, exchange.parameters)
        exchange.move_slow(fast, alpha)
        exchange.home()
        self.climb.last.record_alpha(alpha)

    @property
    def taken(self) -> bool:
        """Are the weights those after the step? Then nothing is put back any more."""
        return self._stepped or self.climb.exchange.moved

    def restore_base(self) -> None:
        """Put the base optimizer's state back, where it was kept."""
        if self._state is not None:
            self._state.restore()
