"""Table 1: the accuracy of all methods."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim
from lookbehind.experiments.paper import grid, numbers
from lookbehind.experiments.paper.experiment import ALL_TASKS, Experiment
from lookbehind.experiments.paper.tables import accuracy_output


def _others(family: str) -> tuple[str, ...]:
    upper = family.upper()
    return (upper, f"Multistep-{upper}", f"Multistep-{upper}, average", f"Lookahead-{upper}")


CLAIMS = (
    *(
        Claim(
            f"Lookbehind-{family.upper()} has a higher accuracy than every other method with {family.upper()}",
            (f"Lookbehind-{family.upper()}",),
            _others(family),
        )
        for family in grid.FAMILIES
    ),
    Claim(
        "Lookbehind has a higher accuracy than SGD and Lookahead-SGD",
        ("Lookbehind-SAM", "Lookbehind-ASAM"),
        ("SGD", "Lookahead-SGD"),
    ),
    *(
        Claim(
            f"not in the paper: Lookbehind-{family.upper()} does more than what moves as far per minibatch",
            (f"Lookbehind-{family.upper()}",),
            (f"{family.upper()}, matched step and radius", f"{family.upper()}, first gradient repeated"),
        )
        for family in grid.FAMILIES
    ),
)
LONGER = tuple(
    Claim(
        f"not in the paper: Lookbehind-{family.upper()} is above SGD and {family.upper()} at as many gradients",
        (f"Lookbehind-{family.upper()}",),
        tuple(f"{name}, {times} times the epochs" for name in ("SGD", family.upper()) for times in ("6", "3", "1.5")),
    )
    for family in grid.FAMILIES
)
EXPERIMENT = Experiment(
    id="table1",
    title="Table 1: accuracy of all methods",
    claim="Lookbehind reaches the highest accuracy with SAM and with ASAM on every model; on ImageNet it is the only "
    "one above SAM and ASAM.",
    tasks=ALL_TASKS,
    arms=grid.table_1,
    show=lambda findings: accuracy_output(findings, grid.table_1, numbers.ACCURACIES, (*CLAIMS, *LONGER)),
    best_of_rows=True,
)
