"""Times of works done in turn, and their ratios: a busy machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import quantiles, stdev
from time import perf_counter

Work = Callable[[], object]
Times = Mapping[str, list[list[float]]]
"""Of every work and repetition the seconds of its pieces, one after the other."""
_marks: list[float] = []


def mark() -> None:
    """Here a piece of a work ends and another begins; every repetition of a work has the same pieces."""
    _marks.append(perf_counter())


@dataclass(frozen=True)
class Effort:
    """How often works are repeated."""

    repetitions: int
    seconds: float = 0.0
    """Short works are repeated more often, until all of them together have taken so long."""

    def at_most(self, repetitions: int) -> Effort:
        """The same with fewer repetitions."""
        return replace(self, repetitions=max(1, min(self.repetitions, repetitions)))


def interleaved(works: Mapping[str, Work], effort: Effort, warm_up: int = 2) -> dict[str, list[list[float]]]:
    """Seconds of the pieces of every work in every repetition.

    The works take turns, beginning with another one each time.
    """
    names = list(works)
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    done, taken = 0, 0.0
    while done < effort.repetitions or taken < effort.seconds:
        first = done % len(names)  # the one after a heavy work finds cold caches: not always the same
        for name in names[first:] + names[:first]:
            _marks.clear()
            mark()
            works[name]()
            mark()
            times[name].append([end - begin for begin, end in pairwise(_marks)])
            taken += _marks[-1] - _marks[0]
        done += 1
    return times


def least(repetitions: Sequence[Sequence[float]]) -> float:
    """The time of a work that nothing disturbs: of every piece the least of all repetitions, added up."""
    return float(sum(min(piece) for piece in zip(*repetitions, strict=True)))


def uncertainty(times: Times, work: str, same: str, parts: int = 4) -> float:
    """How far the ratio of the least times of two equal works is from 1, and its standard error.

    The error is that of the ratios in some interleaved parts of the repetitions, each of which sees a part only of what
    the whole sees.
    """
    ratios = [
        least(some) / least(others)
        for i in range(parts)
        if (some := times[work][i::parts]) and (others := times[same][i::parts])
    ]
    error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return abs(least(times[work]) / least(times[same]) - 1) + error


@dataclass(frozen=True)
class Measured:
    """A ratio, or another number, with what it should reach."""

    what: str
    where: str
    """The network, or what else was measured on."""
    value: float
    """Of the least times, where times were measured: what disturbs a measurement makes it longer, never shorter."""
    median: float | None = None
    """Of the ratios of whole times in all repetitions."""
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
    """The :func:`least` time of ``above`` over that of ``below``, with the quartiles of the ratio of whole times."""
    found = [sum(a) / sum(b) for a, b in zip(times[above], times[below], strict=True)]
    low, middle, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Measured(what, where, least(times[above]) / least(times[below]), middle, low, high, at_most, at_least)
