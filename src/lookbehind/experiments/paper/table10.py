"""Table 10: how soon Lookbehind has reached Multistep's best."""

from __future__ import annotations

from statistics import fmean

from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.experiment import ALL_TASKS, Experiment
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, adaptive, lookbehind, over_k, written
from lookbehind.experiments.paper.numbers import TABLE_10
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.shown import Output


def arms(task: Task, scale: Scale) -> list[Arm]:
    """Multistep and Lookbehind at every k."""
    found = []
    for family in FAMILIES:
        found.append(over_k(f"Multistep-{family.upper()}", f"multistep-{family}", task, scale))
        found += [lookbehind(family, task, scale), adaptive(family, task, scale)]
    return found


def part(mine: Cell, other: Cell) -> float | None:
    """The part of the other's gradients after which ours has its best accuracy, in percent, mean over the seeds.

    Seeds in which it never does count as None, and so does their mean: both have the same k, so epochs count the same.
    """
    found = []
    for ours, theirs in zip(mine.outcomes, other.outcomes, strict=True):
        goal = theirs.end["best_test_accuracy"]
        known = [e for e in ours.epochs if e["test_accuracy"] is not None and goal is not None]
        reached = [e["gradient_evaluations"] for e in known if e["test_accuracy"] >= goal]
        if not reached:
            return None
        found.append(100 * reached[0] / theirs.end["gradient_evaluations"])
    return fmean(found) if found else None


def show(findings: Findings) -> Output:
    """A row per family, kind of alpha and k."""
    output = Output()
    for task in findings.tasks:
        lines = []
        for family in FAMILIES:
            for kind in ("static", "adaptive"):
                for k in findings.scale.values_of_k(task):
                    alphas = findings.scale.alphas if kind == "static" else (ADAPTIVE,)
                    row = Arm("", tuple(written(f"lookbehind-{family}", k=k, alpha=alpha) for alpha in alphas))
                    mine = findings.best(task, row, "best_test_accuracy")
                    other = findings.cell(task, written(f"multistep-{family}", k=k))
                    known = part(mine, other) if mine is not None and other.complete else None
                    name = f"{family.upper()}, {kind}, k {k}"
                    ours = "\N{EN DASH}" if known is None else f"{known:.0f}"
                    lines.append([name, ours, TABLE_10.get(name, {}).get(task.stands_for, "")])
        note = (
            "Percent of the gradients of Multistep at the same k; a dash where one of the seeds never reaches its best."
        )
        heads = ["method", "ours %", f"paper, {task.stands_for} %"]
        output.tables.append(Grid(task.title, note, heads, lines))
    return output


EXPERIMENT = Experiment(
    id="table10",
    title="Table 10: gradients until Multistep's best is reached",
    claim="Lookbehind needs about half of Multistep's gradients to reach the best accuracy of Multistep.",
    tasks=ALL_TASKS,
    arms=arms,
    show=show,
)
