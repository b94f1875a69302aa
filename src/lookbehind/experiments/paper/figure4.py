"""Figure 4: robustness to noise in the weights."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.differences import Line, line_through
from lookbehind.experiments.drawing import looks
from lookbehind.experiments.figures import curves_figure
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper import grid
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings, Outcome
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import accuracy, count, with_std

TASKS = ("c10-rn34", "c100-rn50", "in-rn18")


def robustness(outcome: Outcome) -> float | None:
    """Mean accuracy over all levels of noise and draws."""
    noise = outcome.measures.get("noise")
    if noise is None:
        return None
    return fmean(fmean(draws) for sigma, draws in zip(noise["sigmas"], noise["values"], strict=True) if sigma > 0)


def show(findings: Findings) -> Output:
    """Of every method its most robust settings."""
    output = Output()
    for task in findings.tasks:
        for family in grid.FAMILIES:
            upper = family.upper()
            rows = [arm for arm in grid.table_1(task, findings.scale) if arm.name == "SGD" or _is_of(arm.name, family)]
            found = {arm.name: findings.best(task, arm, robustness) for arm in rows}
            cells = {name: cell for name, cell in found.items() if cell is not None}
            if len(cells) < 2:
                continue
            output.tables.append(_table(f"{task.title}, {upper} methods", cells))
            lines = [_line(name, cell) for name, cell in cells.items()]
            figure = curves_figure(lines, looks(list(cells)), "sigma of the noise", "accuracy % with noise")
            caption = (
                f"{task.title}. Every weight times N(1, sigma²), BatchNorm re-estimated. Mean over draws and seeds."
            )
            name = f"figure4-{task.key}-{family}"
            output.pictures.append(Picture(name, f"Noise in the weights, {upper} methods", caption, figure))
            values = {name: cell.values(robustness) for name, cell in cells.items()}
            row = f"Lookbehind-{upper}"
            controls = tuple(arm.name for arm in grid.controls(family, task, findings.scale))
            theirs = ("SGD", *(arm.name for arm in grid.family_of_table_1(family, task, findings.scale)))
            for words, others in (
                ("{} is the most robust to noise", tuple(n for n in theirs if not n.startswith(row))),
                ("not in the paper: {} is more robust than what moves as far", controls),
            ):
                claim = Claim(words.format(row), (row,), others)
                verdict = judged(claim, values, [row, *others])
                output.verdicts.append((f"{task.title}; mean accuracy over sigma", verdict))
    return output


def _is_of(name: str, family: str) -> bool:
    head = name.split(",")[0]
    return head.upper().split("-")[-1] == family.upper()


def _table(title: str, cells: Mapping[str, Cell]) -> Grid:
    """Accuracy at every level of noise, and its mean over those above 0, by which settings are chosen and judged."""
    sigmas = next(iter(cells.values())).outcomes[0].measures["noise"]["sigmas"]
    heads = ["method", *(f"sigma {sigma:g}" for sigma in sigmas), "mean above 0", "settings", "gradients"]
    lines = []
    for name, cell in cells.items():
        levels = [
            with_std(cell.spread(lambda one, i=i: fmean(one.measures["noise"]["values"][i])), accuracy)  # type: ignore[misc]
            for i in range(len(sigmas))
        ]
        mean = with_std(cell.spread(robustness), accuracy)
        lines.append([name, *levels, mean, cell.settings, count(cell.gradients)])
    note = (
        "Accuracy % with every weight times N(1, sigma²), BatchNorm re-estimated; the most robust settings of each row."
    )
    return Grid(title, note, heads, lines)


def _line(name: str, cell: Cell) -> Line:
    measured = [outcome.measures["noise"] for outcome in cell.outcomes]
    curves = [[fmean(draws) for draws in one["values"]] for one in measured]
    return line_through(name, measured[0]["sigmas"], [*zip(*curves, strict=True)])


EXPERIMENT = Experiment(
    id="figure4",
    title="Figure 4: accuracy with noise in the weights",
    claim="Lookbehind is the most robust to noise in the weights, with SAM and with ASAM.",
    tasks=TASKS,
    arms=grid.table_1,
    show=show,
    measures=("noise",),
)
