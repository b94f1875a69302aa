"""An experiment of the paper: which runs it needs, what is claimed, and how its tables and figures are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import Arm
from lookbehind.experiments.paper.scales import Scale, Task
from lookbehind.experiments.shown import Heading, Output
from lookbehind.training.job import Job


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
