"""Table 5: the epoch in which SAM and ASAM were best."""

from __future__ import annotations

from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.experiment import ALL_TASKS, Experiment
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, plain
from lookbehind.experiments.paper.numbers import BEST_EPOCHS
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import with_std


def arms(task: Task, scale: Scale) -> list[Arm]:
    """SAM and ASAM at the best radius."""
    return [plain(family, task, scale) for family in FAMILIES]


def show(findings: Findings) -> Output:
    """The epochs, beside the paper's and as parts of the training."""
    output = Output()
    for task in findings.tasks:
        lines = []
        epochs = task.images.epochs or 1
        for arm in arms(task, findings.scale):
            cell = findings.best(task, arm, "best_test_accuracy")
            ours = "" if cell is None else with_std(cell.spread("best_epoch"), lambda v: f"{v:.2f}")
            part = "" if cell is None else f"{100 * (cell.mean('best_epoch') or 0) / epochs:.0f} %"
            lines.append([arm.name, ours, part, BEST_EPOCHS[arm.name].get(task.stands_for, "")])
        heads = ["method", f"best epoch of {epochs}", "part of the training", f"paper, {task.stands_for}"]
        output.tables.append(Grid(task.title, "Best epoch on the test set.", heads, lines))
    return output


EXPERIMENT = Experiment(
    id="table5",
    title="Table 5: best epoch of SAM and ASAM",
    claim="SAM and ASAM reach their best accuracy well before the end of the training.",
    tasks=ALL_TASKS,
    arms=arms,
    show=show,
)
