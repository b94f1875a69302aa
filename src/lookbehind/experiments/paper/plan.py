"""What a reproduction needs: its runs, those that are finished, and what all of them cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Literal

from lookbehind.experiments.compare import workers_for
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.choices import NOTHING, Choices, read_choices
from lookbehind.experiments.paper.findings import PROTOCOLS, Findings, Outcome
from lookbehind.experiments.paper.grid import Arm
from lookbehind.experiments.paper.scale import Scale, Task, changed, with_checkpoints, with_search
from lookbehind.experiments.paper.scales import SCALES
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.optim.checks import count, one_of
from lookbehind.training.job import Job
from lookbehind.training.measuring import Measures, measured, whole_records
from lookbehind.training.train import Storage


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Tables and figures of the paper, at a scale."""

    experiments: tuple[str, ...] = ("table1",)
    """By their numbers: table1, figure5; `lookbehind list experiments` shows them."""
    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds, on digits. laptop: hours on two cores, a slice of CIFAR-10. paper: the setting of the paper."""
    seeds: int | None = None
    """How many; those of the scale if not given."""
    first_seed: int = 0
    """They are numbered from this one on: other seeds than those that settings were chosen with, for a fresh look."""
    rows: tuple[str, ...] = ()
    """Only these rows of the tables, as they are written there: "ER + SGD". All if not given."""
    search_seeds: int | None = None
    """Search the settings of a row with so many of the seeds (all, if not given); the others train what was chosen."""
    fresh: bool = False
    """Show only the seeds that have not searched: what is chosen looks better on those that chose it."""
    search_tasks: int | None = None
    """Lifelong learning: search the settings of a row on the first so many tasks, train what was chosen on all."""
    choices: Path | None = None
    """The choices.json of an earlier search of the same table: the rows that stand there are not searched again."""
    change: tuple[str, ...] = ()
    """Settings of all runs, NAME=VALUE, where the paper does not say or says two things: weight_decay=5e-4 eta=0.01."""
    jobs: int | None = None
    """Runs at a time; as many as there are cores for if not given."""
    ray: str | None = None
    """Train on the Ray cluster at this address (auto: the one on this machine), which shares --out and --data-dir."""
    shard: str | None = None
    """I/N: train the I-th of N parts of the runs, from 1 on, and write nothing: for the jobs of an array."""
    train: bool = True
    """--no-train: write what the finished runs show."""
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/paper")))

    def __post_init__(self) -> None:
        one_of("scale", self.scale, tuple(SCALES))
        if not self.experiments:
            raise ValueError("experiments=(): give at least one, such as table1")
        for name in self.experiments:
            experiment(name)
        if self.seeds is not None:
            count("seeds", self.seeds)
        count("first_seed", self.first_seed, at_least=0)
        if self.search_seeds is not None:
            count("search_seeds", self.search_seeds)
        if self.fresh and self.search_seeds is None:
            raise ValueError("fresh=True: give search_seeds too; else all seeds choose the settings")
        if self.search_tasks is not None:
            count("search_tasks", self.search_tasks)
        if self.jobs is not None:
            count("jobs", self.jobs)
        changed(SCALES[self.scale], self.change, ())
        self.part  # noqa: B018, a wrong one is found now

    @cached_property
    def at(self) -> Scale:
        """The scale with its changes, and with the networks that are made for it."""
        scale = SCALES[self.scale]
        keys = {task.key for name in self.experiments for task in scale.tasks_of(experiment(name).tasks)}
        scale = changed(scale, self.change, keys)
        if self.search_tasks is not None:
            scale = with_search(scale, self.search_tasks)
        return with_checkpoints(scale, self.storage.out)

    @property
    def searches_first(self) -> bool:
        """Are all settings of a row trained only to choose among them?"""
        return any(one is not None for one in (self.search_seeds, self.search_tasks, self.choices))

    @cached_property
    def _choices(self) -> Choices:
        return NOTHING if self.choices is None else read_choices(self.choices)

    def choices_for(self, name: str) -> Choices:
        """What was chosen elsewhere for an experiment's rows."""
        return self._choices if name == self._choices.experiment else NOTHING

    def seeds_of(self, name: str) -> range:
        """The seeds of an experiment."""
        usual = experiment(name).seeds if self.scale == "paper" else None
        number = self.seeds or usual or self.at.seeds
        return range(self.first_seed, self.first_seed + number)

    def searching(self, name: str) -> range:
        """Those of its seeds that all settings of a row are trained with."""
        return self.seeds_of(name)[: self.search_seeds]

    def shown(self, name: str) -> range:
        """Those of its seeds that the page shows."""
        seeds = self.seeds_of(name)
        if not self.fresh:
            return seeds
        if len(seeds) <= len(self.searching(name)):
            raise ValueError(f"fresh=True: all {len(seeds)} seeds search; give more --seeds than --search-seeds")
        return seeds[len(self.searching(name)) :]

    def arms_of(self, name: str, task: Task) -> list[Arm]:
        """The rows of an experiment that are wanted."""
        return [arm for arm in experiment(name).arms(task, self.at) if not self.rows or arm.name in self.rows]

    @property
    def workers(self) -> int:
        """Runs at a time."""
        tasks = [task for name in self.experiments for task in self.at.tasks_of(experiment(name).tasks)]
        return workers_for(self.jobs, max(task.settings.threads for task in tasks))

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many parts, from 0 on."""
        if self.shard is None:
            return 0, 1
        found = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"shard={self.shard!r}: give I/N with I from 1 to N, such as 1/8")
        return int(found[1]) - 1, int(found[2])


def _check_rows_only(argument: str, value: object, names: Iterable[str]) -> None:
    """Some figures compare all settings of a row, so there is nothing to choose."""
    others = [name for name in names if not experiment(name).best_of_rows]
    if others:
        which = ", ".join(others)
        raise ValueError(f"{argument}={value}: {which} shows more than every row at its best; call that without it")


def check_rows(wanted: Reproduction) -> None:
    """Does every experiment have rows to choose from, and these rows? Before the first run, not on the way."""
    if wanted.search_seeds is not None:
        _check_rows_only("search_seeds", wanted.search_seeds, wanted.experiments)
    if wanted.search_tasks is not None:
        for name in wanted.experiments:
            tasks = SCALES[wanted.scale].tasks_of(experiment(name).tasks)
            if not all(isinstance(task.settings, LifelongSettings) for task in tasks):
                raise ValueError(f"search_tasks={wanted.search_tasks}: {name} is no lifelong learning; leave it out")
    for name in wanted.experiments:
        wanted.shown(name)
    if wanted.choices is not None:
        _check_choices(wanted, wanted.choices)
    if not wanted.rows:
        return
    _check_rows_only("rows", wanted.rows, wanted.experiments)
    rows: dict[str, None] = {}
    for name in wanted.experiments:
        tasks = wanted.at.tasks_of(experiment(name).tasks)
        own = dict.fromkeys(arm.name for task in tasks for arm in experiment(name).arms(task, wanted.at))
        if not own.keys() & set(wanted.rows):
            raise ValueError(f"rows={wanted.rows}: {name} has none of them, but {', '.join(map(repr, own))}")
        rows |= own
    for row in wanted.rows:
        one_of("rows", row, tuple(rows))


def _check_choices(wanted: Reproduction, file: Path) -> None:
    _check_rows_only("choices", file, wanted.experiments)
    name = read_choices(file).experiment
    if name not in wanted.experiments:
        raise ValueError(f"choices={file}: is of {name!r}, which is not asked for")
    tasks = wanted.at.tasks_of(experiment(name).tasks)
    arms = {task.key: experiment(name).arms(task, wanted.at) for task in tasks}
    wanted.choices_for(name).check(arms, PROTOCOLS, file)


def runs_of_experiment(wanted: Reproduction, name: str) -> list[Job]:
    """The runs of a table or figure, each once, seed by seed, so that one can stop early.

    With ``search_seeds`` those of the other seeds, and with ``search_tasks`` those on all tasks, are known, and here,
    once a row's search is finished; it is not made where ``choices`` say what it would find.
    """
    scale, searching, before = wanted.at, wanted.searching(name), wanted.choices_for(name)
    runs: dict[str, Job] = {}
    tasks = tuple(scale.tasks_of(experiment(name).tasks))
    found = Findings(scale, searching, tasks, {}, searching, before)
    protocols = found.protocols[:1] if experiment(name).one_protocol else found.protocols
    rows = [(task, arm) for task in tasks for arm in wanted.arms_of(name, task)]
    first = Arm.search if wanted.searches_first else Arm.runs
    open_ones = [(task, arm) for task, arm in rows if not all(before.of(task.key, one, arm.name) for one in protocols)]
    for seed in searching:
        runs |= {run.id: run for task, arm in open_ones for run in first(arm, task, range(seed, seed + 1))}
    if wanted.searches_first:
        # and the chosen ones on all seeds that are shown, those that have searched among them or not
        found = replace(found, known=known(wanted, name, runs.values()))
        best = [(task, chosen) for task, arm in rows for chosen in _chosen(found, task, arm, protocols)]
        for seed in wanted.shown(name):
            runs |= {run.id: run for task, arm in best for run in arm.runs(task, range(seed, seed + 1))}
    return list(runs.values())


def _chosen(found: Findings, task: Task, arm: Arm, protocols: Iterable[str]) -> Iterator[Arm]:
    """What a finished search chose, by each of these protocols."""
    for protocol in protocols:
        if (best := found.choice(task, arm, PROTOCOLS[protocol])) is not None:
            yield Arm(arm.name, (best,))


def known(wanted: Reproduction, name: str, runs: Iterable[Job]) -> dict[str, Outcome]:
    """Those runs of an experiment that are trained and measured, by their ids."""
    found: dict[str, Outcome] = {}
    for run in runs:
        measures = replace(wanted.at.measures, measures=_measured_of(wanted, name, run))
        records = whole_records(run, wanted.storage, measures)
        if records is not None:
            place = wanted.storage.directory(run)
            found[run.id] = Outcome(run, records, {} if records[-1]["diverged"] else measured(place, measures))
    return found


def _measured_of(wanted: Reproduction, name: str, run: Job) -> tuple[str, ...]:
    """What is measured of a run: nothing where it chooses settings and is not shown, which can cost as much as it."""
    return experiment(name).measures if run.seed in wanted.shown(name) else ()


def runs_of(wanted: Reproduction) -> list[tuple[Job, Measures]]:
    """All runs, each once, with what is to be measured of it; those of the first seeds come first."""
    runs: dict[str, Job] = {}
    measures: dict[str, dict[str, None]] = {}
    for name in wanted.experiments:
        for run in runs_of_experiment(wanted, name):
            runs.setdefault(run.id, run)
            measures.setdefault(run.id, {}).update(dict.fromkeys(_measured_of(wanted, name, run)))
    ordered = sorted(runs.values(), key=lambda run: run.seed)
    return [(run, replace(wanted.at.measures, measures=tuple(measures[run.id]))) for run in ordered]


def unfinished(wanted: Reproduction) -> list[tuple[Job, Measures]]:
    """The runs that still have to be trained or measured, of this part."""
    return [(run, m) for run, m in _part(wanted, runs_of(wanted)) if whole_records(run, wanted.storage, m) is None]


def _part(wanted: Reproduction, runs: list[tuple[Job, Measures]]) -> list[tuple[Job, Measures]]:
    """This job's of an array of jobs."""
    first, step = wanted.part
    if not wanted.searches_first:
        return runs[first::step]
    # the runs behind a search become known at another time in every job, so their order cannot tell whose they are
    return [one for one in runs if int(sha256(one[0].id.encode()).hexdigest(), 16) % step == first]


def cost_in_trainings(wanted: Reproduction) -> float:
    """What all runs cost together, each once, in trainings of plain SGD on the same task."""
    costs: dict[str, float] = {}
    for name in wanted.experiments:
        for task in wanted.at.tasks_of(experiment(name).tasks):
            one = task.settings.run(task.plain_method, 0).cost
            for arm in wanted.arms_of(name, task):
                costs |= {run.id: run.cost / one for run in arm.runs(task, wanted.seeds_of(name))}
    return sum(costs.values())
