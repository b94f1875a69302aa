"""Times of works done in turn, and their ratios: a busy machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import quantiles
from time import perf_counter

Work = Callable[[], object]
Times = Mapping[str, list[float]]


@dataclass(frozen=True)
class Effort:
    """How often works are repeated."""

    repetitions: int
    seconds: float = 0.0
    """Short works are repeated more often, until all of them together have taken so long."""

    def at_most(self, repetitions: int) -> Effort:
        """The same with fewer repetitions."""
        return replace(self, repetitions=max(1, min(self.repetitions, repetitions)))


def interleaved(works: Mapping[str, Work], effort: Effort, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of every work in every repetition; the works take turns, beginning with another one each time."""
    names = list(works)
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[float]] = {name: [] for name in names}
    done, taken = 0, 0.0
    while done < effort.repetitions or taken < effort.seconds:
        first = done % len(names)  # the one after a heavy work finds cold caches: not always the same
        for name in names[first:] + names[:first]:
            began = perf_counter()
            works[name]()
            times[name].append(perf_counter() - began)
        done, taken = done + 1, sum(map(sum, times.values()))
    return times


@dataclass(frozen=True)
class Measured:
    """A ratio, or another number, with what it should reach."""

    what: str
    where: str
    """The network, or what else was measured on."""
    value: float
    """Of the least times, where times were measured: what disturbs a measurement makes it longer, never shorter."""
    median: float | None = None
    """Of the ratios of all repetitions."""
    low: float | None = None
    """Their lower quartile."""
    high: float | None = None
    """Their upper quartile."""
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether it is what it should be; None where nothing was set."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


def ratio(
    times: Times,
    above: str,
    below: str,
    what: str,
    where: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Measured:
    """The least ``time(above)`` over the least ``time(below)``, with the quartiles of their ratio."""
    found = [a / b for a, b in zip(times[above], times[below], strict=True)]
    low, middle, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Measured(what, where, min(times[above]) / min(times[below]), middle, low, high, at_most, at_least)
