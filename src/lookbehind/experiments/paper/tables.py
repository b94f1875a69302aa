"""Tables and curves that several experiments share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lookbehind.experiments.claims import NOT_RUN, Claim, judged
from lookbehind.experiments.differences import Line, line_through
from lookbehind.experiments.drawing import looks
from lookbehind.experiments.figures import curves_figure
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.findings import PROTOCOLS, REPORTED, Cell, Findings, chosen, measure
from lookbehind.experiments.paper.grid import Arm
from lookbehind.experiments.paper.numbers import Numbers
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import accuracy, count, loss, with_std

DIVERGED = "N/A: a seed diverged"
JUDGED = {"paper": "protocol of the paper", "honest": "settings chosen on held-out images"}
SAID = {
    "paper": "Protocol of the paper: best epoch and best settings, both chosen on the test set, so too good.",
    "honest": "Held-out images choose the settings; test accuracy after the last epoch.",
}


def accuracy_output(
    findings: Findings,
    arms: Callable[[Task, Scale], list[Arm]],
    numbers: Numbers,
    claims: Sequence[Claim],
) -> Output:
    """Ours beside the paper's, for every task and protocol, and the verdicts on the claims."""
    output = Output()
    for task in findings.tasks:
        for protocol in findings.protocols:
            rows = arms(task, findings.scale)
            cells = chosen(findings, task, rows, protocol)
            output.tables.append(_table(task, protocol, rows, numbers, findings))
            values = {name: cell.values(REPORTED[protocol]) for name, cell in cells.items()}
            where = f"{task.title}; {JUDGED[protocol]}"
            expected = [arm.name for arm in rows]
            output.verdicts += [(where, judged(claim, values, expected)) for claim in claims]
    return output


def _table(task: Task, protocol: str, rows: Sequence[Arm], numbers: Numbers, findings: Findings) -> Grid:
    heads = ["method", "accuracy %", "BatchNorm re-estimated %", f"paper, {task.stands_for}", "settings", "gradients"]
    lines = []
    for arm in rows:
        said = numbers.get(arm.name, {}).get(task.stands_for, "")
        cell, words = row_of(findings, task, arm, protocol)
        if cell is None:
            lines.append([arm.name, words, "", said, "", ""])
            continue
        ours = with_std(cell.spread(REPORTED[protocol]), accuracy) + words
        again = with_std(cell.spread("recalibrated_test_accuracy"), accuracy)
        settings = findings.settings_of(task, cell, arm, protocol)
        lines.append([arm.name, ours, again, said, settings, count(cell.gradients)])
    return Grid(f"{task.title}, {protocol} protocol", SAID[protocol], heads, lines)


def sharpness_table(title: str, cells: Mapping[str, Cell], family: str) -> Grid:
    """Sharpness at the least and the largest radius, with what it has to be seen beside."""
    first = next(iter(cells.values())).outcomes[0].measures["sharpness"][family]["radii"]
    ends = {0: first[0], -1: first[-1]}
    norm = measure("sharpness", "weight_norm")
    keys = [measure("sharpness", family, "values", place) for place in ends]
    heads = ["method", *(f"sharpness, radius {radius:g}" for radius in ends.values()), "training loss"]
    heads += ["norm of the weights", "largest radius / norm", "test accuracy %", "settings"]
    lines = []
    for name, cell in cells.items():
        size = cell.mean(norm)
        lines.append(
            [
                name,
                *(with_std(cell.spread(key), loss) for key in keys),
                with_std(cell.spread("train_loss"), loss),
                with_std(cell.spread(norm), accuracy),
                "" if size is None else f"{first[-1] / size:.2f}",
                with_std(cell.spread("test_accuracy"), accuracy),
                cell.settings,
            ]
        )
    note = (
        "How much the loss rises within a radius. It says little by itself: a network that was not fitted is flat, and "
        "one with BatchNorm is the same function with larger weights, for which a radius is smaller."
    )
    return Grid(title, note, heads, lines)


def row_of(findings: Findings, task: Task, arm: Arm, protocol: str) -> tuple[Cell | None, str]:
    """What a row shows by this protocol, and what has to be said of it: of how many seeds it is, or why it is empty."""
    best = findings.choice(task, arm, PROTOCOLS[protocol])
    if best is None:
        begun = findings.search_begun(task, arm)
        return None, DIVERGED if findings.searched(task, arm) else "search not finished" if begun else NOT_RUN
    cell = findings.cell(task, best)
    if cell.diverged:
        return None, DIVERGED
    if cell.mean(REPORTED[protocol]) is None:
        return None, NOT_RUN
    return cell, "" if cell.complete else f" ({len(cell.outcomes)} of {cell.seeds} seeds)"


def line_over(name: str, points: Mapping[float, Cell | None], key: str | Callable[..., float | None]) -> Line | None:
    """A curve with a point for each cell that is there: mean, least and greatest over the seeds."""
    kept = [(x, [v for v in cell.values(key) if v is not None]) for x, cell in points.items() if cell is not None]
    kept = [(x, values) for x, values in kept if values]
    if not kept:
        return None
    return line_through(name, [x for x, _ in kept], [values for _, values in kept])


def _curve_table(curves: Mapping[str, Mapping[float, Cell | None]], key: str, title: str, xlabel: str) -> Grid:
    """The same in numbers."""
    places = sorted({x for points in curves.values() for x in points})
    lines = []
    for name, points in curves.items():
        cells = [points.get(x) for x in places]
        lines.append([name, *("" if cell is None else with_std(cell.spread(key), accuracy) for cell in cells)])
    return Grid(title, f"Accuracy %, over: {xlabel}.", ["", *(f"{x:g}" for x in places)], lines)


def draw_curves(
    output: Output,
    curves: Mapping[str, Mapping[float, Cell | None]],
    key: str,
    *,
    name: str,
    title: str,
    caption: str,
    xlabel: str,
) -> bool:
    """Add a figure with a curve of accuracies for each name; False where there is nothing to draw."""
    lines = [line for label, points in curves.items() if (line := line_over(label, points, key)) is not None]
    if lines:
        output.tables.append(_curve_table(curves, key, title, xlabel))
        figure = curves_figure(lines, looks(list(curves)), xlabel, "accuracy %")
        output.pictures.append(Picture(name, title, caption, figure))
    return bool(lines)
