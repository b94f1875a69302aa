"""Which of the ascent gradients the base optimizer descends on.

A climb of ``k`` ascent steps has the gradients ``g_0`` (at the weights themselves), ``g_1``, ..., ``g_k``. A descent is
a function of ``k`` that gives a *plan*: one row per step of the base optimizer, each row the weights of the gradients
that it steps with. The number of ascent steps follows from the plan: no gradient is computed that no row uses.

    last(3)    [{3: 1}]                      Multistep-SAM (SAM with k = 1)
    mean(3)    [{1: 1/3, 2: 1/3, 3: 1/3}]    Multistep-SAM on averaged gradients
    each(3)    [{1: 1}, {2: 1}, {3: 1}]      Lookbehind
    repeat(3)  [{1: 1}, {1: 1}, {1: 1}]      control: the same base steps, but one gradient only
    clean(3)   [{0: 1}]                      no climb: the base optimizer, with our counters and diagnostics

What has no name yet is written in a line, for example ``descent=lambda k: [{1: 0.5, k: 0.5}]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lookbehind.optim.weights import Scratch, Vector, real

Plan = Sequence[Mapping[int, float]]
Descent = Callable[[int], Plan]


def last(k: int) -> Plan:
    """One base step on the gradient of the last point: SAM (k = 1), Multistep-SAM."""
    return [{k: 1.0}]


def mean(k: int) -> Plan:
    """One base step on the mean gradient of the ``k`` perturbed points."""
    return [dict.fromkeys(range(1, k + 1), 1 / k)]


def mean_with_clean(k: int) -> Plan:
    """One base step on the mean gradient of all ``k + 1`` points, the unperturbed one included."""
    return [dict.fromkeys(range(k + 1), 1 / (k + 1))]


def each(k: int) -> Plan:
    """``k`` base steps, the i-th on the gradient of the i-th point: Lookbehind."""
    return [{i: 1.0} for i in range(1, k + 1)]


def repeat(k: int) -> Plan:
    """``k`` base steps on the gradient of the first point: shows what Lookbehind's ``k`` gradients add."""
    return [{1: 1.0} for _ in range(k)]


def clean(k: int) -> Plan:
    """One base step on the gradient of the weights themselves: no climb, the plain base optimizer."""
    return [{0: 1.0}]


def ascents(plan: Plan) -> int:
    """How many ascent steps a plan needs."""
    return max(max(row) for row in plan)


def checked(plan: Plan, descent: Descent, k: int) -> Plan:
    """The plan itself, if it is one."""
    valid = bool(plan) and all(row and all(isinstance(i, int) and 0 <= i <= k for i in row) for row in plan)
    if not valid:
        name = getattr(descent, "__name__", repr(descent))
        raise ValueError(
            f"descent={name} gave the plan {plan!r} for k={k}: give one non-empty dict per base step, "
            f"from gradient numbers 0..{k} to weights, for example [{{1: 0.5, {k}: 0.5}}]"
        )
    return plan


class Descender:
    """Carries out a plan: collects the gradients of one or several chains and steps the base optimizer.

    A gradient that makes up a row by itself is handed on as it is; only sums need a buffer. Because the base
    optimizer may write into ``p.grad``, a row that is needed again is copied before it is handed on.
    """

    def __init__(self, plan: Plan, parameters: Sequence[Tensor], scratch: Scratch, step: Callable[[bool], None]):
        self._rows = [tuple(sorted(row.items())) for row in plan]
        self._parameters = parameters
        self._scratch = scratch
        self._step = step
        self._done = 0
        self._sums: dict[tuple[tuple[int, float], ...], list[Tensor | None]] = {}
        self._room: dict[tuple[tuple[int, float], ...], Vector] = {}
        self._copy: Vector | None = None

    def receive(self, index: int, share: float = 1.0, collect_only: bool = False) -> None:
        """Take gradient ``index`` out of ``p.grad``, weighted by its chain's share, and step where rows are full.

        ``step`` is called with True when it is the last of the plan; with ``collect_only`` none is taken yet.
        """
        gradients = [p.grad for p in self._parameters]
        waiting = self._rows[self._done :]
        full = 0
        while not collect_only and full < len(waiting) and waiting[full][-1][0] <= index:
            full += 1
        alone = ((index, 1.0),) if share == 1.0 else None
        for row in dict.fromkeys(waiting):
            weight = dict(row).get(index)
            if weight is not None and not (row == alone and row in waiting[:full]):
                self._add(row, weight * share, gradients)
        for row in waiting[:full]:
            self._done += 1
            gradient = self._sums.get(row, gradients)
            if row in self._rows[self._done :]:
                gradient = self._copied(gradient)
            for parameter, value in zip(self._parameters, gradient, strict=True):
                # an alias, so that a base optimizer which keeps its gradient is seen to hold our buffer
                parameter.grad = value if gradient is gradients or value is None else value.detach()
            self._step(self._done == len(self._rows))

    def _add(self, row: tuple[tuple[int, float], ...], weight: float, gradients: Sequence[Tensor | None]) -> None:
        if row not in self._sums:
            self._sums[row] = [None] * len(gradients)
            self._room[row] = self._scratch.take()
        sums, room = self._sums[row], self._room[row]
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if sums[i] is None:
                sums[i] = room[i] = _alike(room[i], gradient)
                torch.mul(real(gradient), weight, out=real(room[i]))
            else:
                real(room[i]).add_(real(gradient), alpha=weight)

    def _copied(self, gradient: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self._copy is None:
            self._copy = self._scratch.take()
        return [None if g is None else _alike(room, g).copy_(g) for g, room in zip(gradient, self._copy, strict=True)]


def _alike(room: Tensor, gradient: Tensor) -> Tensor:
    """The buffer, or one in the gradient's own type where that differs from the parameter's."""
    return room if room.dtype == gradient.dtype else torch.empty_like(gradient)
