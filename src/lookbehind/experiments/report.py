"""The report of a comparison: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lookbehind.experiments.differences import absent_controls, control_pairs, cost_ratio, difference
from lookbehind.experiments.measure_tables import grids
from lookbehind.experiments.page import page
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.results import Row, Spread
from lookbehind.experiments.table import (
    accuracy,
    answer,
    clock,
    count,
    diverged,
    duration,
    interval,
    loss,
    loss_with_std,
    ratio,
    setting,
    signed,
    with_std,
)


@dataclass(frozen=True)
class About:
    """What was compared, how, and on what machine."""

    title: str
    command: str
    """The command line that made it."""
    settings: dict[str, Any]
    """Common to all methods: data, model, epochs, batch size, learning rate, ..."""
    versions: dict[str, str]
    machine: str
    started: str
    """ISO time."""
    seconds: float
    """Wall time of the whole comparison."""
    notices: list[str]
    """Warnings that the reader must see."""


def render(about: About, rows: Sequence[Row], pictures: Sequence[Picture]) -> str:
    """The page as text; ``rows[0]`` is the baseline."""
    return page(
        "report.html.jinja",
        about=about,
        answer=answer(rows),
        lines=[_cells(row, rows) for row in rows],
        seeds=[line for row in rows for line in _seed_cells(row)],
        baseline=rows[0]["method"],
        columns=_columns(rows),
        pictures=pictures,
        measures=grids(rows),
        controls=[_control_cells(*pair) for pair in control_pairs(rows)],
        absent=absent_controls(rows),
        took=clock(about.seconds),
    )


def _columns(rows: Sequence[Row]) -> dict[str, bool]:
    """Which of the optional columns have something to show."""
    keys = ("best_accuracy", "recalibrated_accuracy", "validation_accuracy")
    found = {key: any(row[key]["mean"] is not None for row in rows) for key in keys}  # type: ignore[literal-required]
    return {**found, "difference": len(rows) > 1}


def _cells(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """A row of the table, in words."""
    baseline = row is rows[0]
    found = None if baseline else difference(row, rows[0])
    return {
        "method": row["method"],
        "settings": ", ".join(f"{key} {setting(value)}" for key, value in row["settings"].items()),
        "baseline": baseline,
        "diverged": diverged(row),
        "accuracy": with_std(row["accuracy"], accuracy),
        "best_accuracy": with_std(row["best_accuracy"], accuracy),
        "recalibrated_accuracy": with_std(row["recalibrated_accuracy"], accuracy),
        "train_loss": loss_with_std(row["train_loss"]),
        "difference": signed(found.mean if found else None),
        "interval": "" if found is None else interval(found),
        "shown": found is not None and found.shown,
        "gradients": count(row["gradient_evaluations"]),
        "ratio": ratio(cost_ratio(row, rows[0])),
        "seconds": duration(row["seconds"]["mean"]),
    }


def _seed_cells(row: Row) -> list[dict[str, Any]]:
    def at(values: Spread, i: int) -> float | None:
        return values["values"][i] if i < len(values["values"]) else None

    return [
        {
            "method": row["method"],
            "seed": seed,
            "accuracy": accuracy(at(row["accuracy"], i)),
            "best_accuracy": accuracy(at(row["best_accuracy"], i)),
            "recalibrated_accuracy": accuracy(at(row["recalibrated_accuracy"], i)),
            "validation_accuracy": accuracy(at(row["validation_accuracy"], i)),
            "train_accuracy": accuracy(at(row["train_accuracy"], i)),
            "train_loss": loss(at(row["train_loss"], i)),
            "test_loss": loss(at(row["test_loss"], i)),
            "seconds": duration(at(row["seconds"], i)),
        }
        for i, seed in enumerate(row["seeds"])
    ]


def _control_cells(row: Row, control: Row) -> dict[str, Any]:
    found = difference(row, control)
    return {
        "method": row["method"],
        "control": control["method"],
        "difference": signed(found.mean if found else None),
        "interval": interval(found),
        "shown": found is not None and found.shown,
        "ratio": ratio(cost_ratio(row, control)),
    }
