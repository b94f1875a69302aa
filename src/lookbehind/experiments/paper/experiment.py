"""An experiment of the paper: which runs it needs, what is claimed, and how its tables and figures are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.claims import Verdict
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import Arm
from lookbehind.experiments.paper.scales import Scale, Task
from lookbehind.training.job import Job

if TYPE_CHECKING:  # matplotlib takes long to import, and the worker processes have no use for it
    from lookbehind.experiments.pictures import Picture


@dataclass
class Output:
    """What an experiment shows."""

    tables: list[Grid] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)
    """Each with where it was judged: task and protocol."""


@dataclass(frozen=True)
class Heading:
    """What a page is about."""

    id: str
    title: str
    claim: str
    """What the paper says of it, in our words."""


@dataclass(frozen=True)
class Experiment(Heading):
    """A table or figure."""

    tasks: tuple[str, ...]
    arms: Callable[[Task, Scale], list[Arm]]
    show: Callable[[Findings], Output]
    measures: tuple[str, ...] = ()
    seeds: int | None = None
    """Where the paper has another number than elsewhere."""

    def runs(self, scale: Scale, seeds: range) -> Iterator[Job]:
        """All runs, seed by seed, so that one can stop early."""
        for seed in seeds:
            for task in scale.tasks_of(self.tasks):
                for arm in self.arms(task, scale):
                    yield from arm.runs(task, range(seed, seed + 1))


CIFAR_TASKS = ("c10-rn34", "c10-wrn", "c100-rn50", "c100-wrn")
ALL_TASKS = (*CIFAR_TASKS, "in-rn18")
