"""What the paper claims, and what our seeds say about it: holds, contradicted, or not resolved.

The error of a difference is estimated from the whole table of methods and seeds, ``y_ms = a_m + b_s + e_ms`` with
``(M - 1)(S - 1)`` degrees of freedom, because a few seeds of two methods say little by themselves. Intervals are those
of Dunnett: all comparisons of a claim hold together in 95 of 100 cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np

HOLDS, CONTRADICTED, OPEN = "holds", "contradicted", "not resolved"
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


@dataclass(frozen=True)
class Comparison:
    """Two rows: how much more the first has, positive where the claim says so."""

    row: str
    other: str
    difference: float | None
    margin: float | None
    """Half of the interval."""

    @property
    def verdict(self) -> str:
        """What the interval says."""
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
        """It holds if all comparisons do, and is contradicted by one of them."""
        found = {one.verdict for one in self.comparisons}
        return CONTRADICTED if CONTRADICTED in found else HOLDS if found == {HOLDS} else OPEN

    @property
    def words(self) -> str:
        """The verdict with what it rests on."""
        counts = {word: sum(one.verdict == word for one in self.comparisons) for word in (HOLDS, CONTRADICTED, OPEN)}
        if len(self.comparisons) < 2:
            return self.verdict
        return f"{self.verdict} ({', '.join(f'{number} {word}' for word, number in counts.items() if number)})"


def judged(claim: Claim, table: Table) -> Verdict:
    """Hold a claim against a table; rows that are not in it are passed over."""
    pairs = [(row, other) for row in claim.rows for other in claim.than if row in table and other in table]
    error = pooled_error(table)
    found = []
    for row, other in pairs:
        both = [(a, b) for a, b in zip(table[row], table[other], strict=True) if a is not None and b is not None]
        if not both:
            found.append(Comparison(row, other, None, None))
            continue
        difference = fmean(a - b for a, b in both) * (-1 if claim.less else 1)
        margin = None
        if error is not None:
            deviation, freedom = error
            margin = quantile(len(pairs), freedom) * deviation * float(np.sqrt(2 / len(both)))
        found.append(Comparison(row, other, difference, margin))
    return Verdict(claim, tuple(found))


def pooled_error(table: Table) -> tuple[float, int] | None:
    """The standard deviation of ``e_ms`` and its degrees of freedom, from the rows of which no run diverged."""
    whole = [[v for v in values if v is not None] for values in table.values() if None not in values]
    if len(whole) < 2 or len(whole[0]) < 2:
        return None
    values = np.array(whole)
    rest = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    freedom = (values.shape[0] - 1) * (values.shape[1] - 1)
    return float(np.sqrt((rest**2).sum() / freedom)), freedom


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
