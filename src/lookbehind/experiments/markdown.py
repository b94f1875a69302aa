"""A comparison as a page of Markdown: the table with the command, versions and time that belong to it."""

from __future__ import annotations

from collections.abc import Sequence

from lookbehind.experiments.differences import cost_ratio, difference
from lookbehind.experiments.measure_tables import grids
from lookbehind.experiments.report import About
from lookbehind.experiments.results import Row
from lookbehind.experiments.table import (
    accuracy,
    answer,
    clock,
    count,
    counted,
    diverged,
    interval,
    loss,
    ratio,
    setting,
    signed,
    with_std,
)

HEADS = ("method", "test accuracy %", "difference, 95 % interval", "best epoch", "BatchNorm re-estimated", "train loss")


def markdown(about: About, rows: Sequence[Row]) -> str:
    """The page as text; ``rows[0]`` is the baseline."""
    lines = [f"# {escaped(about.title)}", "", *answer(rows), "", _line([*HEADS, "gradients"])]
    lines.append(_line(["---"] * (len(HEADS) + 1)))
    most = max(len(row["seeds"]) for row in rows)
    lines += [_line(_cells(row, rows[0], most)) for row in rows]
    common = ", ".join(f"{name} {setting(value)}" for name, value in about.settings.items())
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    lines += [
        "",
        "Mean ± standard deviation over the seeds, after the last epoch. The difference is to the first row, paired by "
        "seed, with its two-sided 95 % t interval, in bold where that does not contain zero. The best epoch is chosen "
        "on the test set, as in the paper, so it is too good.",
        *_measures(rows),
        "",
        f"    {about.command}",
        "",
        f"Settings: {escaped(common)}.",
        "",
        f"Versions: {versions}. Machine: {about.machine}. Started {about.started}, took {clock(about.seconds)}.",
    ]
    lines += [line for notice in about.notices for line in ("", f"> {escaped(notice)}")]
    return "\n".join(lines) + "\n"


def _measures(rows: Sequence[Row]) -> list[str]:
    """A table per measure."""
    lines = []
    for grid in grids(rows):
        lines += ["", f"## {grid.title}", "", grid.note, ""]
        lines += table_lines(grid.heads, [[f"`{method}`", *cells] for method, *cells in grid.lines])
    return lines


def table_lines(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table, line by line."""
    return [_line(heads), _line(["---"] * len(heads)), *map(_line, lines)]


def _cells(row: Row, baseline: Row, most: int) -> list[str]:
    found = None if row is baseline else difference(row, baseline)
    gain = "" if found is None else f"{signed(found.mean)} ({interval(found)})"
    fewer = counted(len(row["seeds"]), "seed") if len(row["seeds"]) < most else ""
    name = ", ".join(filter(None, (f"`{row['method']}`", fewer, diverged(row))))
    return [
        name,
        with_std(row["accuracy"], accuracy),
        f"**{gain}**" if found is not None and found.shown else gain,
        with_std(row["best_accuracy"], accuracy),
        with_std(row["recalibrated_accuracy"], accuracy),
        loss(row["train_loss"]["mean"]),
        f"{count(row['gradient_evaluations'])} ({ratio(cost_ratio(row, baseline))})",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escaped(cell) for cell in cells)} |"


def escaped(text: str) -> str:
    """Text that is no markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
