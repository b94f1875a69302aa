"""Table 8: Lookbehind in the setting of the ASAM paper."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, radius, written
from lookbehind.experiments.paper.numbers import TABLE_8
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import accuracy_output


def arms(task: Task, scale: Scale) -> list[Arm]:
    """SGD, and for SAM and ASAM themselves and Lookbehind with k = 2 and an adaptive alpha."""
    found = [Arm("SGD", ("sgd",))]
    for family in FAMILIES:
        found.append(Arm(family.upper(), (written(family, rho=radius(task, family)),)))
        found.append(Arm(f"Lookbehind-{family.upper()}", (written(f"lookbehind-{family}", k=2, alpha=ADAPTIVE),)))
    return found


CLAIMS = tuple(
    Claim(
        f"Lookbehind-{family.upper()} is above {family.upper()} there too",
        (f"Lookbehind-{family.upper()}",),
        (family.upper(),),
    )
    for family in FAMILIES
)
EXPERIMENT = Experiment(
    id="table8",
    title="Table 8: the setting of the ASAM paper",
    claim="With label smoothing, a cosine schedule and more weight decay Lookbehind (k = 2, adaptive) is above SAM and "
    "ASAM.",
    tasks=("c100-wrn-asam",),
    arms=arms,
    show=lambda findings: accuracy_output(findings, arms, TABLE_8, CLAIMS),
    seeds=5,
    best_of_rows=True,
)
