"""Figure 3: sharpness over the radius."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.differences import Line, line_through
from lookbehind.experiments.drawing import looks
from lookbehind.experiments.figures import curves_figure
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings, measure
from lookbehind.experiments.paper.grid import FAMILIES, Arm, in_words, radius, rows_at_radii, rows_at_radius
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import sharpness_table
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output


def arms(task: Task, scale: Scale) -> list[Arm]:
    """The methods of either family at three radii."""
    return rows_at_radii(task, scale, scale.few_rhos[:3])


def show(findings: Findings) -> Output:
    """Of every method the settings with the least sharpness at the largest radius."""
    output = Output()
    for task in findings.tasks:
        for family in FAMILIES:
            cells: dict[str, Cell] = {}
            for factor in findings.scale.few_rhos[:3]:
                rho = radius(task, family, factor)
                found = _panel(findings, task, family, rho, output)
                cells |= {f"{name}, rho {rho:g}": cell for name, cell in found.items()}
            if cells:
                title = f"{task.title}, {family.upper()}'s neighbourhood"
                output.tables.append(sharpness_table(title, cells, family))
    return output


def _panel(findings: Findings, task: Task, family: str, rho: float, output: Output) -> dict[str, Cell]:
    at_the_end = measure("sharpness", family, "values", -1)
    found = {
        arm.name: findings.best(task, arm, at_the_end, least=True)
        for arm in rows_at_radius(family, task, findings.scale, rho)
    }
    cells = {name: cell for name, cell in found.items() if cell is not None}
    lines = [_line(name, cell, family) for name, cell in cells.items()]
    if not lines:
        return {}
    upper = family.upper()
    figure = curves_figure(lines, looks([line.method for line in lines]), "radius", "rise of the loss", log=True)
    words = in_words(k=findings.scale.values_of_k(task), alpha=findings.scale.few_alphas)
    caption = (
        f"{task.title}, {upper} methods trained with rho {rho:g}; {words}, the least sharp at the largest radius. Mean "
        "over seeds, band from least to greatest."
    )
    name = f"figure3-{task.key}-{family}-{rho:g}"
    output.pictures.append(Picture(name, f"Sharpness ({upper}), rho {rho:g}", caption, figure))
    values = {name: cell.values(at_the_end) for name, cell in cells.items()}
    row = f"Lookbehind-{upper}"
    claim = Claim(
        f"trained with rho {rho:g}, Lookbehind-{upper} is the flattest at the largest radius",
        (row,),
        tuple(name for name in found if name != row),
        less=True,
    )
    output.verdicts.append((task.title, judged(claim, values, list(found))))
    return cells


def _line(name: str, cell: Cell, family: str) -> Line:
    measured = [outcome.measures["sharpness"][family] for outcome in cell.outcomes]
    return line_through(name, measured[0]["radii"], [*zip(*(one["values"] for one in measured), strict=True)])


EXPERIMENT = Experiment(
    id="figure3",
    title="Figure 3: sharpness over the radius",
    claim="At every rho the flattest solutions are those of Lookbehind, with SAM and with ASAM.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
    measures=("sharpness",),
)
