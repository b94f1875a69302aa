"""An experiment of the paper: which runs it needs, what is claimed, and how its tables and figures are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import Arm
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.shown import Heading, Output


@dataclass(frozen=True)
class Experiment(Heading):
    """A table or figure."""

    tasks: tuple[str, ...]
    arms: Callable[[Task, Scale], list[Arm]]
    show: Callable[[Findings], Output]
    measures: tuple[str, ...] = ()
    seeds: int | None = None
    """Where the paper has another number than elsewhere."""
    best_of_rows: bool = False
    """Does it show every row at its best settings by either protocol, and nothing else?"""
    one_protocol: bool = False
    """By the first protocol only: what the other would choose is not trained."""


CIFAR_TASKS = ("c10-rn34", "c10-wrn", "c100-rn50", "c100-wrn")
ALL_TASKS = (*CIFAR_TASKS, "in-rn18")
