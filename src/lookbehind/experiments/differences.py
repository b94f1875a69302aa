"""What the seeds show: differences of two methods, paired by seed, with their interval; means and ranges of curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from lookbehind.experiments.results import Curve, Row

LEVEL = 0.95
CONTROLS = ("sam-long-step", "sam-matched", "repeat-sam")
"""SAM that moves as far per minibatch as Lookbehind does, in three ways."""


@dataclass(frozen=True)
class Difference:
    """Mean of the differences of two methods over the seeds that both finished, with its two-sided t interval.

    mean ± t(0.975, n - 1) * std / sqrt(n), with the sample standard deviation of the n differences.
    """

    mean: float
    seeds: int
    margin: float | None
    """Half of the interval; None where the seeds give none: fewer than two of them, or all differences equal."""

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.margin is None else self.mean + self.margin

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out zero: more than what the seeds explain."""
        return self.margin is not None and abs(self.mean) > self.margin


def difference(row: Row, baseline: Row) -> Difference | None:
    """Accuracy after the last epoch, row minus baseline, paired by seed; None without a common seed."""
    theirs = dict(zip(baseline["seeds"], baseline["accuracy"]["values"], strict=True))
    differences = [
        ours - other
        for seed, ours in zip(row["seeds"], row["accuracy"]["values"], strict=True)
        if ours is not None and (other := theirs.get(seed)) is not None
    ]
    if not differences:
        return None
    return Difference(fmean(differences), len(differences), _margin(differences))


def _margin(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    deviation = stdev(values)
    # differences that are all equal come from the coarse steps of a small test set: they are no certainty
    if deviation < 1e-9:
        return None
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to import; and not with this module

    quantile = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2))  # of Student's t
    return quantile * deviation / math.sqrt(len(values))


def cost_ratio(row: Row, baseline: Row) -> float | None:
    """How many times the gradient evaluations of the baseline."""
    whole = baseline["gradient_evaluations"]
    return row["gradient_evaluations"] / whole if whole else None


def best_of(rows: Sequence[Row]) -> Row | None:
    """The row of the highest mean accuracy after the last epoch; None where every run diverged."""
    ranked = [(row["accuracy"]["mean"], row) for row in rows if row["accuracy"]["mean"] is not None]
    return max(ranked, key=lambda pair: pair[0] or 0.0)[1] if ranked else None


def kind(row: Row) -> str:
    """The method without its settings: lookbehind-sam of lookbehind-sam:k=10."""
    return row["method"].split(":")[0].lower()


def ascent(method: str) -> str:
    """The ascent that a method climbs with, by its name: sam, asam or other."""
    name = method.split(":")[0].lower()
    return "asam" if "asam" in name else "sam" if "sam" in name else "other"


def control_pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Every Lookbehind row with each control of its own ascent (repeat-asam for ASAM) that was run."""
    return [
        (row, control)
        for row in rows
        if kind(row).startswith("lookbehind")
        for control in rows
        if kind(control) in {name.replace("sam", ascent(kind(row))) for name in CONTROLS}
    ]


def absent_controls(rows: Sequence[Row]) -> list[str]:
    """Controls that the Lookbehind rows call for and that were not run."""
    needed = {ascent(kind(row)) for row in rows if kind(row).startswith("lookbehind")}
    wanted = [name.replace("sam", way) for way in ("sam", "asam") if way in needed for name in CONTROLS]
    return [name for name in wanted if name not in {kind(row) for row in rows}]


@dataclass(frozen=True)
class Line:
    """A curve over the epochs: mean, least and greatest over the seeds."""

    method: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def level_lines(rows: Sequence[Row], key: str, levels: str) -> list[Line]:
    """A line per method over the levels of a measure: mean, least and greatest over the seeds where all are finite."""
    lines = []
    for row in rows:
        found: Mapping[str, list[Any]] | None = row.get(key)  # type: ignore[assignment]
        if found is not None:
            curves = [curve for curve in found["values"] if any(value is not None for value in curve)]
            at = zip(found[levels], found["mean"], zip(*curves, strict=True), strict=True)
            kept = [(x, mean, values) for x, mean, values in at if mean is not None]
            if kept:
                xs, means, values = zip(*kept, strict=True)
                lines.append(Line(row["method"], [*xs], [*means], [*map(min, values)], [*map(max, values)]))
    return lines


def lines_of(
    runs: Mapping[str, Sequence[Curve]], value: Callable[[Curve], Sequence[float | None]], by_gradients: bool = False
) -> list[Line]:
    """A line per method that has a number: mean, least and greatest over the seeds at each epoch."""
    lines = []
    for method, curves in runs.items():
        at: dict[float, list[tuple[float, float]]] = {}
        for curve in curves:
            for epoch, gradients, number in zip(curve.epochs, curve.gradient_evaluations, value(curve), strict=True):
                if number is not None and math.isfinite(number):
                    at.setdefault(epoch, []).append((gradients if by_gradients else epoch, number))
        if at:
            points = [at[epoch] for epoch in sorted(at)]
            values = [[number for _, number in point] for point in points]
            xs = [fmean(x for x, _ in point) for point in points]
            lines.append(line_through(method, xs, values))
    return lines


def line_through(method: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> Line:
    """Mean, least and greatest of the values that the seeds have at each x."""
    return Line(method, [*x], [*map(fmean, values)], [*map(min, values)], [*map(max, values)])
