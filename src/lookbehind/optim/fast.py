"""The fast weights of one step: moved by the base optimizer, followed by the slow ones in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from lookbehind.optim.exchange import Exchange
from lookbehind.optim.interpolation import Interpolation
from lookbehind.optim.weights import Scratch, Vector, real
from lookbehind.optim.wrapper import BaseState


@dataclass(kw_only=True)
class Fast:
    """Takes the base steps of a plan, and the interpolation after the last one."""

    base: Optimizer
    interpolation: Interpolation
    exchange: Exchange
    scratch: Scratch
    in_place: bool  # one step, kept as it is: the base optimizer moves the weights themselves, as it would alone
    keeps_state: bool  # of the base optimizer, to put it back if the step fails
    counters: tuple[str, ...]
    alpha: float | Sequence[Tensor] | None = None  # known after the last step, where there is an interpolation
    _stepped: bool = False
    _state: BaseState | None = None
    _fast: Vector | None = None
    _first: Vector | None = None

    def step(self, final: bool) -> None:
        """One step of the base optimizer with the gradient that is in ``p.grad``."""
        if self.in_place:
            self.exchange.release()
            self.base.step()
            self._stepped = True
            return
        fast = self._fast = self._begin() if self._fast is None else self._fast
        self.exchange.show(fast)
        self.base.step()
        self.exchange.settle()
        if self._first is None and self.interpolation.needs_first and not final:
            self._first = [real(t) for t in self.scratch.take()]
            torch._foreach_copy_(self._first, fast)
        if final:
            self._interpolate(fast)

    def _begin(self) -> Vector:
        if self.keeps_state:
            self._state = BaseState(self.base, except_keys=self.counters)
        if not self.exchange.held:
            self.exchange.hold()
        return self.exchange.start_fast()

    def _interpolate(self, fast: Vector) -> None:
        slow, first = self.exchange.slow, fast if self._first is None else self._first
        self.alpha = self.interpolation(slow, first, fast, self.exchange.parameters, self.scratch.temporary)
        self.exchange.move_slow(fast, self.alpha)
        self.exchange.home()

    @property
    def taken(self) -> bool:
        """Are the weights those after the step? Then nothing is put back any more."""
        return self._stepped or self.exchange.moved

    def restore_base(self) -> None:
        """Put the base optimizer's state back, where it was kept."""
        if self._state is not None:
            self._state.restore()
