"""Times of works done in turn, and their ratios: a busy machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

Work = Callable[[], object]
Times = Mapping[str, list[float]]


def interleaved(works: Mapping[str, Work], repetitions: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of every work in every repetition; the works take turns, beginning with another one each time."""
    names = list(works)
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        first = repetition % len(names)  # the one after a heavy work finds cold caches: not always the same
        for name in names[first:] + names[:first]:
            began = perf_counter()
            works[name]()
            times[name].append(perf_counter() - began)
    return times


@dataclass(frozen=True)
class Measured:
    """A ratio, or another number, with what it should reach."""

    what: str
    where: str
    """The network, or what else was measured on."""
    value: float
    low: float | None = None
    """Lower quartile over the repetitions."""
    high: float | None = None
    """Upper quartile."""
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
    """The median over the repetitions of ``time(above) / time(below)``, with its quartiles."""
    found = [a / b for a, b in zip(times[above], times[below], strict=True)]
    low, _, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Measured(what, where, median(found), low, high, at_most, at_least)
