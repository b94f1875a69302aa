"""Figure 10: the adaptive alpha during training."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.differences import Line, line_through
from lookbehind.experiments.drawing import looks
from lookbehind.experiments.figures import curves_figure
from lookbehind.experiments.paper.experiment import CIFAR_TASKS, Experiment
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, adaptive, written
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output


def arms(task: Task, scale: Scale) -> list[Arm]:
    """Lookbehind with an adaptive alpha."""
    return [adaptive(family, task, scale) for family in FAMILIES]


def show(findings: Findings) -> Output:
    """Mean alpha of every epoch, for each k."""
    output = Output()
    for task in findings.tasks:
        for family in FAMILIES:
            cells = {
                f"k {k}": findings.cell(task, written(f"lookbehind-{family}", k=k, alpha=ADAPTIVE))
                for k in findings.scale.values_of_k(task)
            }
            cells = {name: cell for name, cell in cells.items() if cell.complete}
            if not cells:
                continue
            lines = [_line(name, cell) for name, cell in cells.items()]
            figure = curves_figure(lines, looks(list(cells)), "epochs", "alpha")
            caption = f"{task.title}, Lookbehind-{family.upper()}. Mean over seeds, band from least to greatest."
            name = f"figure10-{task.key}-{family}"
            output.pictures.append(Picture(name, f"Adaptive alpha, {family.upper()}", caption, figure))
            names = list(cells)
            claim = Claim(
                "alpha, averaged over the training, is lower for a larger k",
                tuple(names[1:]),
                tuple(names[:1]),
                less=True,
            )
            if len(names) > 1:
                values = {name: cell.values("alpha") for name, cell in cells.items()}
                output.verdicts.append((f"{task.title}, {family.upper()}", judged(claim, values)))
    return output


def _line(name: str, cell: Cell) -> Line:
    alphas = ([epoch["alpha"] for epoch in one.epochs] for one in cell.outcomes)
    epochs = [float(epoch["epoch"]) for epoch in cell.outcomes[0].epochs]
    return line_through(name, epochs, [*zip(*alphas, strict=True)])


EXPERIMENT = Experiment(
    id="figure10",
    title="Figure 10: adaptive alpha over the epochs",
    claim="The adaptive alpha is lower for a larger k and falls when the learning rate does.",
    tasks=CIFAR_TASKS,
    arms=arms,
    show=show,
)
