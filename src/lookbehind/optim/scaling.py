"""fp16 with torch's GradScaler: every evaluation is unscaled once, and one overflow skips the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.optim.precision import NonFiniteError
from lookbehind.optim.weights import is_sharded

HOW_TO_SCALE = """\
    def closure():
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        return loss  # unscaled"""


class Overflowed(NonFiniteError):  # noqa: N818, a reason to go on, not an error that anybody sees
    """A scaled gradient overflowed: the step is skipped and the scale lowered."""


def check_scaler(scaler: object) -> None:
    """An error if it is no GradScaler."""
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler={scaler!r}: give a torch.amp.GradScaler")


class _StandIn:
    """``unscale_`` may be called once per optimizer and update: every evaluation comes as an optimizer of its own."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.param_groups = [{"params": list(parameters)}]


class Scaling:
    """An optimizer's side of a GradScaler. It knows stand-ins by their ids, so they live until its update."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        self._alive: list[_StandIn] = []
        self._first_is_unscaled = False

    def begin(self, optimizer: object) -> None:
        """Begin a step: whoever unscaled the optimizer's gradient (``scaler.step`` does) will call ``update`` too."""
        known = self.scaler._per_optimizer_states
        self._alive = [one for one in self._alive if id(one) in known]
        self._first_is_unscaled = is_unscaled(self.scaler, optimizer)
        ours = {id(optimizer), *map(id, self._alive)}
        if any(state["stage"].name == "UNSCALED" for key, state in known.items() if key not in ours):
            raise RuntimeError(
                "the scaler has unscaled another optimizer that has not stepped yet, and this step would end with "
                "scaler.update(): take the other's step first, or give each optimizer a GradScaler of its own"
            )

    def unscale(self, parameters: Sequence[Tensor], *, given: bool) -> None:
        """Divide the gradients in ``p.grad`` by the scale, unless this gradient was ``given`` and is unscaled."""
        if given and self._first_is_unscaled:
            return
        if self.scaler._scale is None:
            raise RuntimeError(f"scaler= was given, but the closure did not use it. Write\n\n{HOW_TO_SCALE}")
        having = [p for p in parameters if p.grad is not None]
        for sharded in (False, True):  # torch does not unscale both kinds in one call
            kind = [p for p in having if p.grad is not None and is_sharded(p.grad) == sharded]
            if kind:
                self._unscale(_StandIn(kind))

    def _unscale(self, stand_in: _StandIn) -> None:
        self._alive.append(stand_in)
        self.scaler.unscale_(stand_in)  # type: ignore[arg-type]

    def tell_overflow(self, device: torch.device) -> None:
        """Make an overflow known that was seen elsewhere (on another rank, or in a sum)."""
        told = nn.Parameter(torch.zeros(1, device=device))
        told.grad = torch.full_like(told, float("inf"))
        self._unscale(_StandIn([told]))

    def end(self) -> None:
        """Let the scale follow, unless that is somebody else's."""
        if not self._first_is_unscaled:
            self.scaler.update()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_alive": []}


def is_unscaled(scaler: torch.amp.GradScaler, optimizer: object) -> bool:
    """Has ``scaler.unscale_(optimizer)`` been called since the last update?"""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return state is not None and state["stage"].name == "UNSCALED"
