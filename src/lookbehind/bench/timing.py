"""Times of works done in turn, and their ratios: a busy machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, quantiles, stdev
from time import perf_counter

Work = Callable[[], object]
Times = Mapping[str, Sequence[Sequence[float]]]
"""Of every work and repetition the seconds of its pieces, one after the other."""
_marks: list[float] = []


def mark() -> None:
    """Here a piece of a work ends and another begins; every repetition of a work has the same pieces."""
    _marks.append(perf_counter())


@dataclass(frozen=True)
class Effort:
    """How often works are made, and repeated."""

    rounds: int = 1
    """The same work can be some percent faster or slower for all its life, by where its memory happens to lie: in
    every round it is made anew."""
    repetitions: int = 1
    """In every round."""
    seconds: float = 0.0
    """Short works are repeated more often, until all of them together have taken so long in a round."""

    def at_most(self, rounds: int) -> Effort:
        """The same with fewer rounds."""
        return replace(self, rounds=max(1, min(self.rounds, rounds)))


def in_rounds(make: Callable[[], Mapping[str, Work]], effort: Effort) -> list[Times]:
    """Make works and let them take turns, in every round."""
    return [interleaved(make(), effort) for _ in range(effort.rounds)]


def interleaved(works: Mapping[str, Work], effort: Effort) -> Times:
    """Seconds of the pieces of every work in every repetition of a round.

    The works take turns, beginning with another one each time.
    """
    names = list(works)
    for work in works.values():
        work()  # to warm up
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


def between_passes(repetitions: Sequence[Sequence[float]]) -> float:
    """Of that what lies between the passes: every second piece, from the first on."""
    return least([pieces[::2] for pieces in repetitions])


def together(rounds: Sequence[Times], work: str) -> list[Sequence[float]]:
    """All repetitions of a work, of all rounds."""
    return [repetition for times in rounds for repetition in times[work]]


def ratios(rounds: Sequence[Times], above: str, below: str) -> list[float]:
    """Of every round the least time of one work over that of another.

    Not the least of all rounds: where the clock of a processor depends on its neighbours, a moment without them would
    decide everything.
    """
    return [least(times[above]) / least(times[below]) for times in rounds]


def uncertainty(rounds: Sequence[Times], work: str, same: str) -> float:
    """How far the ratio of two equal works is from 1, and its standard error over the rounds."""
    found = ratios(rounds, work, same)
    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
    return abs(median(found) - 1) + error


@dataclass(frozen=True)
class Measured:
    """A ratio, or another number, with what it should reach."""

    what: str
    where: str
    """The network, or what else was measured on."""
    value: float
    """A ratio is the median over the rounds of that of the least times: what disturbs a measurement makes it longer."""
    low: float | None = None
    """Lower quartile over the rounds."""
    high: float | None = None
    """Upper quartile."""
    whole: float | None = None
    """The median over all repetitions of the ratio of whole times, with whatever disturbed them."""
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
    rounds: Sequence[Times],
    above: str,
    below: str,
    what: str,
    where: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Measured:
    """The median over the rounds of the least time of ``above`` over that of ``below``, with its quartiles."""
    found = ratios(rounds, above, below)
    low, middle, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    pairs = zip(together(rounds, above), together(rounds, below), strict=True)
    whole = median([sum(a) / sum(b) for a, b in pairs])
    return Measured(what, where, middle, low, high, whole, at_most, at_least)
