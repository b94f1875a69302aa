"""What the paper claims, and what our seeds say about it: holds, contradicted, not resolved, or not run.

The error of a difference is estimated from the whole table of methods and seeds, ``y_ms = a_m + b_s + e_ms`` with
``(M - 1)(S - 1)`` degrees of freedom, because a few seeds of two methods say little by themselves. Intervals are those
of Dunnett: all comparisons of a claim hold together in 95 of 100 cases.

One row that is unstable, at 17 % with one seed and at 25 % with the next, would make the error of all others large.
Rows that vary more than chance lets one of so many (Cochran's test, 1 %) are left out of the error, one after the
other; what is compared with them has the error of that pair alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np

HOLDS, CONTRADICTED, OPEN, NOT_RUN = "holds", "contradicted", "not resolved", "not run"
Table = Mapping[str, Sequence[float | None]]
"""A value per seed of every row; None where a run diverged."""


@dataclass(frozen=True)
class Claim:
    """That some rows have more of something than others (or less of it)."""

    text: str
    """In one sentence."""
    rows: tuple[str, ...]
    """Each of these ..."""
    than: tuple[str, ...]
    """... has more than each of these."""
    less: bool = False
    """Less is meant: sharpness, forgetting."""

    @property
    def names(self) -> set[str]:
        """All rows that it speaks of."""
        return {*self.rows, *self.than}


@dataclass(frozen=True)
class Comparison:
    """Two rows: how much more the first has, positive where the claim says so."""

    row: str
    other: str
    difference: float | None
    margin: float | None
    """Half of the interval."""
    run: bool = True
    """Are there runs of both?"""

    @property
    def verdict(self) -> str:
        """What the interval says."""
        if not self.run:
            return NOT_RUN
        if self.difference is None or self.margin is None or abs(self.difference) <= self.margin:
            return OPEN
        return HOLDS if self.difference > 0 else CONTRADICTED


@dataclass(frozen=True)
class Verdict:
    """A claim with all its comparisons."""

    claim: Claim
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        """It holds if all comparisons do, and is contradicted by one of them; without any it was not run."""
        found = {one.verdict for one in self.comparisons}
        if found <= {NOT_RUN}:
            return NOT_RUN
        return CONTRADICTED if CONTRADICTED in found else HOLDS if found == {HOLDS} else OPEN

    @property
    def words(self) -> str:
        """The verdict with what it rests on."""
        kinds = (HOLDS, CONTRADICTED, OPEN, NOT_RUN)
        counts = {word: sum(one.verdict == word for one in self.comparisons) for word in kinds}
        if len(self.comparisons) < 2:
            return self.verdict
        return f"{self.verdict} ({', '.join(f'{number} {word}' for word, number in counts.items() if number)})"


def judged(claim: Claim, table: Table, expected: Collection[str] = ()) -> Verdict:
    """Hold a claim against a table.

    Rows that are not in it are passed over, but for those that are ``expected``: these leave the claim open.
    """
    known = {*table, *expected}
    pairs = [(row, other) for row in claim.rows for other in claim.than if row in known and other in known]
    error, unsteady = pooled_error(table), unsteady_rows(table)
    found = []
    for row, other in pairs:
        rows = zip(table.get(row, ()), table.get(other, ()), strict=row in table and other in table)
        both = [(a, b) for a, b in rows if a is not None and b is not None]
        if not both:
            found.append(Comparison(row, other, None, None, run=row in table and other in table))
            continue
        difference = fmean(a - b for a, b in both) * (-1 if claim.less else 1)
        margin = None
        own = pooled_error({row: table[row], other: table[other]}) if {row, other} & set(unsteady) else error
        if own is not None:
            deviation, freedom = own
            margin = quantile(len(pairs), freedom) * deviation * float(np.sqrt(2 / len(both)))
        found.append(Comparison(row, other, difference, margin))
    return Verdict(claim, tuple(found))


def pooled_error(table: Table) -> tuple[float, int] | None:
    """The standard deviation of ``e_ms`` and its degrees of freedom, from steady rows of which no run diverged."""
    left_out = unsteady_rows(table)
    values = np.array([row for name, row in _whole(table).items() if name not in left_out])
    if len(values) < 2 or values.shape[1] < 2:
        return None
    freedom = (values.shape[0] - 1) * (values.shape[1] - 1)
    return float(np.sqrt((_rest(values) ** 2).sum() / freedom)), freedom


def unsteady_rows(table: Table) -> tuple[str, ...]:
    """The rows that vary too much over the seeds to be measured by the same error as the others."""
    rows, found = _whole(table), []
    while len(rows) > 3 and len(next(iter(rows.values()))) > 1:
        squares = (_rest(np.array(list(rows.values()))) ** 2).sum(1)
        if squares.sum() == 0 or squares.max() / squares.sum() <= largest_share(
            len(rows), len(next(iter(rows.values())))
        ):
            break
        found.append(list(rows)[int(squares.argmax())])
        del rows[found[-1]]
    return tuple(found)


def _whole(table: Table) -> dict[str, list[float]]:
    """The rows of which no run diverged."""
    return {name: [v for v in row if v is not None] for name, row in table.items() if None not in row}


def _rest(values: np.ndarray) -> np.ndarray:
    """What is left of a table without the means of its rows and columns."""
    rest: np.ndarray = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    return rest


@lru_cache(maxsize=64)
def largest_share(rows: int, seeds: int, level: float = 0.99) -> float:
    """Of one row in the sum of squares of a table of noise (Cochran's test), by simulation with a fixed seed."""
    noise = np.random.default_rng(0).standard_normal((10_000, rows, seeds))
    noise -= noise.mean(2, keepdims=True)
    noise -= noise.mean(1, keepdims=True)
    squares = (noise**2).sum(2)
    return float(np.quantile(squares.max(1) / squares.sum(1), level))


@lru_cache(maxsize=256)
def quantile(comparisons: int, freedom: int, level: float = 0.95) -> float:
    """Of the largest of several t values that share their baseline (Dunnett), by simulation with a fixed seed."""
    draw = np.random.default_rng(0)
    size = 100_000
    baseline = draw.standard_normal(size)
    scale = np.sqrt(draw.chisquare(freedom, size) / freedom)
    largest = np.zeros(size)
    for _ in range(comparisons):
        np.maximum(largest, np.abs(draw.standard_normal(size) - baseline), out=largest)
    return float(np.quantile(largest / (np.sqrt(2) * scale), level))
