"""Table 3: a static against an adaptive alpha."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim
from lookbehind.experiments.paper import numbers
from lookbehind.experiments.paper.experiment import ALL_TASKS, Experiment
from lookbehind.experiments.paper.grid import FAMILIES, Arm, adaptive, lookbehind, plain
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import accuracy_output


def arms(task: Task, scale: Scale) -> list[Arm]:
    """SAM and ASAM, and Lookbehind with either alpha."""
    return [arm(family, task, scale) for family in FAMILIES for arm in (plain, lookbehind, adaptive)]


CLAIMS = tuple(
    Claim(
        f"with an adaptive alpha Lookbehind-{family.upper()} is still above {family.upper()}",
        (f"Lookbehind-{family.upper()}, adaptive alpha",),
        (family.upper(),),
    )
    for family in FAMILIES
)
EXPERIMENT = Experiment(
    id="table3",
    title="Table 3: static and adaptive alpha",
    claim="An adaptive alpha saves its search and keeps Lookbehind above every other method of table 1.",
    tasks=ALL_TASKS,
    arms=arms,
    show=lambda findings: accuracy_output(findings, arms, numbers.ACCURACIES, CLAIMS),
    best_of_rows=True,
)
