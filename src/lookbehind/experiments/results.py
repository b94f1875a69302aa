"""From the records of runs to the rows of a table: means, spreads, costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from statistics import fmean, stdev
from typing import Any, TypedDict

from typing_extensions import NotRequired

from lookbehind.training.records import Record
from lookbehind.training.run import Run


class Spread(TypedDict):
    """A value per seed, with mean and sample standard deviation (n - 1) of those that are numbers."""

    mean: float | None
    std: float | None
    """None for fewer than two numbers: one seed says nothing about the others."""
    values: list[float | None]
    """In the order of the seeds; None where a run diverged."""


class Row(TypedDict):
    """A method of a comparison, over all its seeds. Accuracies are in percent."""

    method: str
    settings: dict[str, Any]
    """What the method was run with: rho, k, alpha, learning rate, ..."""
    seeds: list[int]
    accuracy: Spread
    """Test accuracy after the last epoch."""
    best_accuracy: Spread
    """Test accuracy of the best epoch, as the paper reports it: chosen on the test set, so too good."""
    recalibrated_accuracy: Spread
    """Test accuracy after the last epoch with BatchNorm statistics re-estimated on the training images."""
    validation_accuracy: Spread
    train_loss: Spread
    """At the final weights, without augmentation, in evaluation mode."""
    train_accuracy: Spread
    test_loss: Spread
    alpha: Spread
    """Mean interpolation factor over the run, for methods that have one."""
    gradient_evaluations: int
    """Minibatch gradients computed by one run."""
    epochs: float
    """Passes over the training images."""
    seconds: Spread
    diverged: int
    """How many of the runs ended in a loss that is not finite."""
    sharpness: NotRequired[dict[str, list[Any]]]
    """m-sharpness in SAM's neighbourhood: radii, and at each the mean and standard deviation over seeds, and values."""
    asam_sharpness: NotRequired[dict[str, list[Any]]]
    noise: NotRequired[dict[str, list[Any]]]
    """Test accuracy under multiplicative noise: sigmas; of each seed the mean over the draws. ``draw_std`` is the
    standard deviation over the draws, averaged over the seeds."""
    analog: NotRequired[dict[str, list[Any]]]
    """The same under additive noise."""
    quantisation: NotRequired[dict[str, list[Any]]]
    """The same at so many bits."""
    curvature: NotRequired[dict[str, Spread]]
    landscape: NotRequired[dict[str, list[Any]]]
    """Training loss along a random direction, and in a plane (first seed); None where it is not finite."""
    towards: NotRequired[dict[str, list[Any]]]
    weight_norm: NotRequired[Spread]


def spread(values: Sequence[float | None]) -> Spread:
    """Mean and standard deviation of the finite numbers among the values."""
    kept: list[float | None] = [v if v is not None and math.isfinite(v) else None for v in values]
    numbers = [v for v in kept if v is not None]
    return {
        "mean": fmean(numbers) if numbers else None,
        "std": stdev(numbers) if len(numbers) > 1 else None,
        "values": kept,
    }


@dataclass(frozen=True)
class Curve:
    """One run's way: a value per evaluated epoch, each list as long as ``epochs``."""

    seed: int
    epochs: list[float]
    gradient_evaluations: list[int]
    test_accuracy: list[float | None]
    train_accuracy: list[float | None]
    loss: list[float | None]
    """Training loss during the epoch, at the unperturbed weights."""
    lr: list[float]
    alpha: list[float | None]


def row(label: str, runs: Sequence[tuple[Run, list[Record]]], measures: Sequence[Mapping[str, Any] | None] = ()) -> Row:
    """The row of a method from its finished runs, one per seed, and what was measured of each (None: nothing)."""
    ends = [records[-1] for _, records in runs]

    def over_seeds(name: str) -> Spread:
        return spread([end[name] for end in ends])

    first = runs[0][0]
    found: Row = {
        "method": label,
        "settings": method_settings(first),
        "seeds": [run.seed for run, _ in runs],
        "accuracy": over_seeds("test_accuracy"),
        "best_accuracy": over_seeds("best_test_accuracy"),
        "recalibrated_accuracy": over_seeds("recalibrated_test_accuracy"),
        "validation_accuracy": over_seeds("validation_accuracy"),
        "train_loss": over_seeds("train_loss"),
        "train_accuracy": over_seeds("train_accuracy"),
        "test_loss": over_seeds("test_loss"),
        "alpha": over_seeds("alpha"),
        "gradient_evaluations": max(end["gradient_evaluations"] for end in ends),  # a run that diverged stops early
        "epochs": max(end["passes"] for end in ends),
        "seconds": over_seeds("seconds"),
        "diverged": sum(end["diverged"] for end in ends),
    }
    if any(measures):
        _add_measures(found, measures)
    return found


def _add_measures(found: Row, measures: Sequence[Mapping[str, Any] | None]) -> None:
    taken = next(m for m in measures if m)

    def of(*path: str) -> list[Any]:
        """What lies at this path, of each seed; None where it was not measured."""
        return [reduce(getitem, path, m) if m else None for m in measures]

    if "sharpness" in taken:
        for name, key in (("sam", "sharpness"), ("asam", "asam_sharpness")):
            radii = taken["sharpness"][name]["radii"]
            found[key] = over_levels("radii", radii, of("sharpness", name, "values"))  # type: ignore[literal-required]
        found["weight_norm"] = spread(of("sharpness", "weight_norm"))
    for name, levels in (("noise", "sigmas"), ("analog", "sigmas"), ("quantisation", "bits")):
        if name in taken:
            draws = of(name, "values")
            means = [None if one is None else [fmean(at) for at in one] for one in draws]
            deviations = zip(*([spread(at)["std"] for at in one] for one in draws if one is not None), strict=True)
            found[name] = {  # type: ignore[literal-required]
                **over_levels(levels, taken[name][levels], means),
                "draw_std": [None if None in at else fmean(at) for at in deviations],
            }
    for name in ("landscape", "towards"):
        if name in taken:
            places = taken[name]["places"]
            found[name] = over_levels("places", places, of(name, "line"))  # type: ignore[literal-required]
    if "landscape" in taken:
        found["landscape"]["plane"] = taken["landscape"]["plane"]
    if "curvature" in taken:
        largest = [None if one is None else one[0] for one in of("curvature", "eigenvalues")]
        found["curvature"] = {"largest_eigenvalue": spread(largest), "trace": spread(of("curvature", "trace"))}


def over_levels(
    name: str, levels: list[float], values: Sequence[Sequence[float | None] | None]
) -> dict[str, list[Any]]:
    """A curve per seed as mean and standard deviation at each level: of the seeds that have a curve.

    Where one of these is not finite the mean is none: that of the others would look better for it.
    """
    kept = [curve for curve in values if curve is not None]
    spreads = [spread([] if None in at else at) for at in zip(*kept, strict=True)]
    return {
        name: levels,
        "mean": [s["mean"] for s in spreads],
        "std": [s["std"] for s in spreads],
        "values": [[None] * len(levels) if curve is None else list(curve) for curve in values],
    }


def method_settings(run: Run) -> dict[str, Any]:
    """What a method was run with: the numbers that it reads, its learning rate; several where a switch changes it."""
    read = {name for method in run.methods for name in method.numbers}
    values: dict[str, Any] = {}
    ascents = dict.fromkeys(method.ascent for method in run.methods if method.ascent)
    for ascent in ascents:
        radii = [phase.method.rho(run.during(phase)) if phase.method.ascent == ascent else None for phase in run.phases]
        values["rho" if len(ascents) == 1 else f"{ascent}_rho"] = _one_or_all(radii)
    values |= {name: getattr(run, name) for name in ("eta", "k", "alpha", "micro_batch") if name in read}
    rates = [float(run.filled.lr or 0.0) * method.lr_factor(run) for method in run.methods]
    return values | {"base": run.filled.base, "lr": _one_or_all(rates)}


def _one_or_all(phases: Sequence[float | None]) -> float | list[float]:
    """The number that all phases have which have one; or that of every phase, 0 for none."""
    values = [0.0 if value is None else float(f"{value:.6g}") for value in phases]
    there = {value for value, given in zip(values, phases, strict=True) if given is not None}
    return there.pop() if len(there) == 1 else values


def curve(run: Run, records: Sequence[Record]) -> Curve:
    """The way of a finished run."""
    epochs = [record for record in records if record["event"] == "epoch"]

    def column(name: str) -> list[Any]:
        return [record[name] for record in epochs]

    return Curve(
        seed=run.seed,
        epochs=column("passes"),
        gradient_evaluations=column("gradient_evaluations"),
        test_accuracy=column("test_accuracy"),
        train_accuracy=column("train_accuracy"),
        loss=column("loss"),
        lr=column("lr"),
        alpha=column("alpha"),
    )
