"""When to climb and how far: one small value, usable with every method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lookbehind.optim.checks import count, non_negative


@dataclass(frozen=True)
class Schedule:
    """Climb from step ``start`` on, every ``every``-th step, until before step ``stop``; ``k`` and ``rho`` over time.

    Steps count from 0, over the whole training; the count is saved with the optimizer. A step that does not climb is
    a plain step of the base optimizer with one evaluation.

    Args:
        start: the first step that climbs.
        stop: the first step that no longer climbs; None for never.
        every: climb at ``start``, ``start + every``, ...
        k: number of ascent steps as a function of the step, in place of the optimizer's; 0 is a plain step.
        rho: a factor on rho (and on the groups' ``ascent_rho``) as a function of the step.

    Examples:
        >>> LookbehindSAM(base, schedule=Schedule(start=1000, every=2))
        >>> LookbehindSAM(base, schedule=Schedule(k=piecewise({0: 2, 500: 5}), rho=linear(0.0, 1.0, steps=1000)))
    """

    start: int = 0
    stop: int | None = None
    every: int = 1
    k: Callable[[int], int] | None = None
    rho: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        count("start", self.start, at_least=0)
        count("every", self.every)
        if self.stop is not None:
            count("stop", self.stop, at_least=0)
            if self.stop <= self.start:
                raise ValueError(f"stop={self.stop}: it comes before start={self.start}, so no step would climb")
        for name in ("k", "rho"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(
                    f"Schedule({name}={value!r}): give a function of the step, such as piecewise({{0: {value!r}}}); "
                    f"a constant {name} goes to the optimizer"
                )

    def climbs(self, step: int) -> bool:
        """Does this step climb at all?"""
        inside = self.start <= step and (self.stop is None or step < self.stop)
        return inside and (step - self.start) % self.every == 0

    def steps(self, step: int, k: int) -> int:
        """The k of this step, 0 if it does not climb."""
        if not self.climbs(step):
            return 0
        return k if self.k is None else count(f"schedule.k({step})", self.k(step), at_least=0)

    def factor(self, step: int) -> float:
        """The factor on rho at this step."""
        return 1.0 if self.rho is None else non_negative(f"schedule.rho({step})", self.rho(step))


@dataclass(frozen=True)
class linear:  # noqa: N801, a value with arguments, used like a function
    """From ``start`` to ``end`` in ``steps`` steps, then ``end``."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        count("steps", self.steps)

    def __call__(self, step: int) -> float:
        """The value at a step."""
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


class piecewise:  # noqa: N801, a value with arguments, used like a function
    """The value of the latest key that is not after the step: ``piecewise({0: 2, 500: 5})``."""

    def __init__(self, values: Mapping[int, int | float]) -> None:
        if 0 not in values:
            raise ValueError(f"piecewise({dict(values)!r}): say what holds from step 0 on")
        self.values = dict(sorted(values.items()))

    def __call__(self, step: int) -> int | float:
        """The value at a step."""
        return [value for start, value in self.values.items() if start <= step][-1]

    def __repr__(self) -> str:
        return f"piecewise({self.values})"
