"""Figure 1: training loss against sharpness."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.drawing import looks
from lookbehind.experiments.figures import scatter_figure
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Findings, measure
from lookbehind.experiments.paper.grid import Arm, in_words, radius, rows_at_radius
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import sharpness_table
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output

SHARPNESS = measure("sharpness", "sam", "values", 0)


def _radii(task: Task, scale: Scale) -> list[float]:
    return [radius(task, "sam", factor) for factor in scale.few_rhos[:3]]


def _named(arm: Arm, rho: float) -> Arm:
    return Arm(f"{arm.name}, rho {rho:g}", arm.candidates)


def arms(task: Task, scale: Scale) -> list[Arm]:
    """SAM, Multistep, Lookahead and Lookbehind at three radii."""
    return [_named(arm, rho) for rho in _radii(task, scale) for arm in rows_at_radius("sam", task, scale, rho)]


def show(findings: Findings) -> Output:
    """Of every row the settings with the best accuracy (k and alpha are not stated in the paper)."""
    output, by = Output(), findings.chosen_by
    for task in findings.tasks:
        found = {arm.name: findings.best(task, arm, by) for arm in arms(task, findings.scale)}
        cells = {name: cell for name, cell in found.items() if cell is not None}
        points = {name: (cell.spread(SHARPNESS), cell.spread("train_loss")) for name, cell in cells.items()}
        points = {name: pair for name, pair in points.items() if pair[0]["mean"] is not None}
        if not points:
            continue
        shown = {name: cells[name] for name in points}
        output.tables.append(sharpness_table(f"{task.title}, SAM's neighbourhood", shown, "sam"))
        figure = scatter_figure(points, looks(list(points)), "sharpness at radius 0.05", "training loss")
        words = in_words(k=findings.scale.values_of_k(task), alpha=findings.scale.few_alphas)
        caption = (
            f"{task.title}; {words}. Mean and standard deviation over seeds; low and to the left is flat and well "
            "fitted."
        )
        output.pictures.append(Picture(f"figure1-{task.key}", "Training loss against sharpness", caption, figure))
        for what, key in (("sharpness", SHARPNESS), ("training loss", "train_loss")):
            values = {name: cells[name].values(key) for name in points}
            for rho in _radii(task, findings.scale):
                names = [name for name in found if name.endswith(f"rho {rho:g}")]
                others = tuple(name for name in names if "Lookbehind" not in name)
                row = f"Lookbehind-SAM, rho {rho:g}"
                claim = Claim(
                    f"at rho {rho:g} Lookbehind has a lower {what} than the others", (row,), others, less=True
                )
                output.verdicts.append((task.title, judged(claim, values, names)))
    return output


EXPERIMENT = Experiment(
    id="figure1",
    title="Figure 1: training loss against sharpness",
    claim="Lookbehind has the lowest loss and the lowest sharpness; with SAM a larger rho gives less sharpness and "
    "more loss; Multistep does not lower sharpness and Lookahead does not help at larger rho.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
    measures=("sharpness",),
)
