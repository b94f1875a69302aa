"""The measures of a comparison in numbers: small tables that terminal, Markdown and report show alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from lookbehind.experiments.results import Row
from lookbehind.experiments.table import accuracy, folded, with_std

Form = Callable[[float | None], str]


def digits(value: float | None) -> str:
    """Three significant digits."""
    return "\N{EN DASH}" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(frozen=True)
class Levelled:
    """A measure that has a value at each of several levels, and how people read it."""

    key: str
    """Of the row."""
    levels: str
    """Key of the levels in it."""
    level: str
    """What one of them is called."""
    title: str
    xlabel: str
    ylabel: str
    what: str
    form: Form
    log: bool = False


AGAIN = "then BatchNorm statistics are estimated again. "
LEVELLED = (
    Levelled(
        "noise",
        "sigmas",
        "sigma",
        "Noise in the weights",
        "sigma of the noise",
        "accuracy % with noise",
        f"Every weight is multiplied by N(1, sigma²), {AGAIN}",
        accuracy,
    ),
    Levelled(
        "analog",
        "sigmas",
        "sigma",
        "Additive noise in the weights",
        "sigma, relative to the largest weight",
        "accuracy % with noise",
        "As analog hardware has it: N(0, sigma²) times the largest weight of its tensor is added to every weight, "
        f"{AGAIN}",
        accuracy,
    ),
    Levelled(
        "quantisation",
        "bits",
        "bits",
        "Coarse weights",
        "bits per weight",
        "accuracy %",
        f"Every tensor of weights is rounded to 2^bits levels, {AGAIN}",
        accuracy,
    ),
    Levelled(
        "sharpness",
        "radii",
        "radius",
        "Sharpness",
        "radius",
        "rise of the loss",
        "By how much the training loss rises at the worst point that one step of this length finds. It follows the "
        "loss and the size of the weights too, so it is not generalization. ",
        digits,
        log=True,
    ),
    Levelled(
        "asam_sharpness",
        "radii",
        "radius",
        "Sharpness, adaptive",
        "radius, relative to each weight",
        "rise of the loss",
        "The same where each weight's step is relative to its size, which takes out the scale of the weights. ",
        digits,
        log=True,
    ),
    Levelled(
        "landscape",
        "places",
        "distance",
        "Loss along a random direction",
        "distance, in lengths of the filters",
        "training loss",
        "The direction is random, each filter as long as the network's own; the same one for all networks. ",
        digits,
        log=True,
    ),
    Levelled(
        "towards",
        "places",
        "distance",
        "Loss on the way to another solution",
        "distance: 0 is the network, 1 the other",
        "training loss",
        f"On the straight line between the weights of two networks; at every place {AGAIN.removeprefix('then ')}",
        digits,
        log=True,
    ),
)


@dataclass(frozen=True)
class Grid:
    """A table of words."""

    title: str
    note: str
    heads: list[str]
    lines: list[list[str]]


def grids(rows: Sequence[Row], most: int = 12) -> list[Grid]:
    """A table for each measure that was taken, with at most so many columns of levels."""
    found = []
    for spec in LEVELLED:
        given = [(row["method"], of) for row in rows if (of := measure(row, spec.key)) is not None]
        if given:
            levels = given[0][1][spec.levels]
            kept = _spaced(len(levels), most)
            lines = [
                [method, *(with_std(_at(of, i), spec.form) if i < len(of["mean"]) else "" for i in kept)]
                for method, of in given
            ]
            heads = ["method", *(f"{spec.level} {levels[i]:.3g}" for i in kept)]
            found.append(Grid(spec.title, spec.what.strip(), heads, lines))
    return found + _curvature(rows)


def measure(row: Row, key: str) -> Mapping[str, list[Any]] | None:
    """What was measured of a row under this key."""
    return row.get(key)  # type: ignore[return-value]


def _at(of: Mapping[str, list[Any]], i: int) -> Any:
    return {"mean": of["mean"][i], "std": of["std"][i], "values": []}


def _spaced(number: int, most: int) -> list[int]:
    """Indices of at most so many levels, the first and the last among them."""
    if number <= most:
        return list(range(number))
    return sorted({round(i * (number - 1) / (most - 1)) for i in range(most)}) if most > 1 else [number - 1]


def _curvature(rows: Sequence[Row]) -> list[Grid]:
    keys = {"largest_eigenvalue": "largest eigenvalue", "trace": "trace"}
    lines = [
        [row["method"], *(with_std(row["curvature"][key], digits) for key in keys)]
        for row in rows
        if "curvature" in row
    ]
    note = "Of the Hessian of the training loss: the largest eigenvalue by Lanczos, the trace by Hutchinson."
    return [Grid("Curvature", note, ["method", *keys.values()], lines)] if lines else []


def terminal_grids(rows: Sequence[Row], width: int = 80) -> list[Table]:
    """The measures as tables for a terminal of this width."""
    name = 19 if width >= 70 else 16
    tables = []
    for grid in grids(rows, most=max(1, (width - name) // 17)):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=grid.title, title_justify="left")
        table.add_column(grid.heads[0], overflow="fold", min_width=14)
        for head in grid.heads[1:]:
            table.add_column(head, justify="right", no_wrap=True)
        for method, *cells in grid.lines:
            table.add_row(Text("\n".join(folded(method, name))), *cells)
        tables.append(table)
    return tables
