"""What the runs of an experiment found: by task, method and seed, and which method of a row is the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lookbehind.experiments.paper.choices import NOTHING, Choices
from lookbehind.experiments.paper.grid import Arm
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.results import Spread, spread
from lookbehind.training.job import Job
from lookbehind.training.measuring import Measured
from lookbehind.training.records import Record

PROTOCOLS = {"paper": "best_test_accuracy", "honest": "validation_accuracy"}
"""By what a method's settings are chosen: the paper's best epoch on the test set, or held-out images."""
PROTOCOL_BY: dict[Any, str] = {by: protocol for protocol, by in PROTOCOLS.items()}
REPORTED = {"paper": "best_test_accuracy", "honest": "test_accuracy"}
"""What is then reported: the same number, or the test accuracy after the last epoch."""


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    run: Job
    records: list[Record]
    measures: dict[str, Measured]

    @property
    def end(self) -> Record:
        """Its last record."""
        return self.records[-1]

    @property
    def epochs(self) -> list[Record]:
        """The others."""
        return [record for record in self.records if record["event"] == "epoch"]


@dataclass(frozen=True)
class Cell:
    """A method with its settings on a task, over all seeds that are finished."""

    candidate: str
    outcomes: tuple[Outcome, ...]
    seeds: int

    @property
    def complete(self) -> bool:
        """Are all seeds there, and did none of them diverge?"""
        return len(self.outcomes) == self.seeds and not self.diverged

    @property
    def diverged(self) -> int:
        """Runs whose loss ceased to be finite."""
        return sum(outcome.end["diverged"] for outcome in self.outcomes)

    def values(self, key: str | Callable[[Outcome], float | None]) -> list[float | None]:
        """Of every seed, a number of the last record or what a function finds; None where it diverged."""
        read = (lambda outcome: outcome.end[key]) if isinstance(key, str) else key
        return [None if outcome.end["diverged"] else read(outcome) for outcome in self.outcomes]

    def spread(self, key: str | Callable[[Outcome], float | None]) -> Spread:
        """Mean and deviation over the seeds."""
        return spread(self.values(key))

    def mean(self, key: str | Callable[[Outcome], float | None]) -> float | None:
        """Over the seeds; None where one of them has no number."""
        found = self.values(key)
        numbers = [value for value in found if value is not None]
        return fmean(numbers) if numbers and len(numbers) == len(found) else None

    @property
    def gradients(self) -> int:
        """Gradient evaluations of a run."""
        return max((outcome.end["gradient_evaluations"] for outcome in self.outcomes), default=0)

    @property
    def settings(self) -> str:
        """What follows the method's name."""
        return self.candidate.partition(":")[2].replace(",", ", ").replace("=", " ")


@dataclass(frozen=True)
class Findings:
    """All that is known of an experiment."""

    scale: Scale
    seeds: range
    tasks: tuple[Task, ...]
    known: dict[str, Outcome]
    """By the id of the run."""
    searching: range | None = None
    """The seeds that settings are chosen with; all if not given."""
    before: Choices = NOTHING
    """What was chosen elsewhere; such rows are not searched again."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """Both, where images were held out."""
        held_out = all(task.held_out for task in self.tasks)
        return ("honest", "paper") if held_out else ("paper",)

    @property
    def reported(self) -> str:
        """What a figure shows, by the first of the protocols."""
        return REPORTED[self.protocols[0]]

    @property
    def chosen_by(self) -> str:
        """By what a figure's settings are chosen, by the same protocol."""
        return PROTOCOLS[self.protocols[0]]

    def cell(self, task: Task, candidate: str, seeds: range | None = None) -> Cell:
        """A method with its settings, over all seeds or some of them."""
        seeds = self.seeds if seeds is None else seeds
        runs = Arm("", (candidate,)).runs(task, seeds)
        return Cell(candidate, tuple(self.known[run.id] for run in runs if run.id in self.known), len(seeds))

    def settings_of(self, task: Task, cell: Cell, arm: Arm, protocol: str) -> str:
        """Of a row's cell, and which other row they were taken from, where they were."""
        other = self.before.like.get(task.key, {}).get(arm.name)
        searched = len(arm.candidates) > 1 and self.before.of(task.key, protocol, arm.name) is None
        return cell.settings if other is None or searched else f"{cell.settings} (not searched: as {other})"

    def best(
        self, task: Task, arm: Arm, by: str | Callable[[Outcome], float | None], *, least: bool = False
    ) -> Cell | None:
        """Of a row's methods the one with the greatest (or least) mean, over all seeds; None while it is not there."""
        found = self.choice(task, arm, by, least=least)
        whole = None if found is None else self.cell(task, found)
        return whole if whole is not None and whole.complete and whole.mean(by) is not None else None

    def _search(self, task: Task, arm: Arm) -> list[bool]:
        """Of the runs that a row's settings are chosen by: is it finished?"""
        seeds = self.seeds if self.searching is None else self.searching
        return [run.id in self.known for run in arm.search(task, seeds)]

    def searched(self, task: Task, arm: Arm) -> bool:
        """Are all runs finished that a row's settings are chosen by?"""
        return all(self._search(task, arm))

    def search_begun(self, task: Task, arm: Arm) -> bool:
        """Is any of them?"""
        return any(self._search(task, arm))

    def choice(
        self, task: Task, arm: Arm, by: str | Callable[[Outcome], float | None], *, least: bool = False
    ) -> str | None:
        """The same by its name, once all of the search is finished; methods with a seed that diverged are out."""
        if len(arm.candidates) == 1:
            return arm.candidates[0]
        if not least and (before := self.before.of(task.key, PROTOCOL_BY.get(by, ""), arm.name)) is not None:
            return before
        if not self.searched(task, arm):
            return None
        cells = [self.cell(task.searched, one, self.searching) for one in arm.candidates]
        ranked = [(mean, one.candidate) for one in cells if one.complete and (mean := one.mean(by)) is not None]
        return (min if least else max)(ranked, key=lambda pair: pair[0])[1] if ranked else None


def chosen(findings: Findings, task: Task, arms: Sequence[Arm], protocol: str) -> dict[str, Cell]:
    """The best cell of every row that has one."""
    found = {arm.name: findings.best(task, arm, PROTOCOLS[protocol]) for arm in arms}
    return {name: cell for name, cell in found.items() if cell is not None}


def choices_of(name: str, findings: Findings, arms: Callable[[Task, Scale], list[Arm]]) -> Choices:
    """What an experiment's finished searches have chosen, where there was a choice."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for task in findings.tasks:
        for protocol in findings.protocols:
            rows = [arm for arm in arms(task, findings.scale) if len(arm.candidates) > 1]
            best = {arm.name: findings.choice(task, arm, PROTOCOLS[protocol]) for arm in rows}
            found.setdefault(task.key, {})[protocol] = {row: one for row, one in best.items() if one is not None}
    return Choices(name, found, findings.before.like)


def measure(name: str, *path: Any) -> Callable[[Outcome], float | None]:
    """A function that reads a number out of a measure: ``measure("sharpness", "sam", "values", 0)``."""

    def read(outcome: Outcome) -> float | None:
        found: Any = outcome.measures.get(name)
        for key in path:
            if found is None:
                return None
            found = found[key]
        return None if found is None else float(found)

    return read
