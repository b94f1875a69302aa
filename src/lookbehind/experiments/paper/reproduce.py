"""Job experiments of the paper and write what they show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from lookbehind.experiments.cluster import run_all_on_ray
from lookbehind.experiments.compare import workers_for
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.checkpoints import Checkpoint
from lookbehind.experiments.paper.scales import SCALES, Scale, Task, changed, with_checkpoints
from lookbehind.experiments.pool import Ended, Told, run_all
from lookbehind.optim.checks import count, one_of
from lookbehind.training.job import Job
from lookbehind.training.measuring import Measures, measured, missing
from lookbehind.training.train import Storage, finished_records, load


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
        changed(SCALES[self.scale], self.change)
        self.part  # noqa: B018, a wrong one is found now

    @property
    def at(self) -> Scale:
        """The scale with its changes, and with the networks that are made for it."""
        return with_checkpoints(changed(SCALES[self.scale], self.change), self.storage.out)

    def seeds_of(self, name: str) -> range:
        """The seeds of an experiment."""
        usual = experiment(name).seeds if self.scale == "paper" else None
        number = self.seeds or usual or self.at.seeds
        return range(self.first_seed, self.first_seed + number)

    @property
    def workers(self) -> int:
        """Runs at a time."""
        return workers_for(self.jobs, self.at.tasks[0].settings.threads)

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many parts, from 0 on."""
        if self.shard is None:
            return 0, 1
        found = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"shard={self.shard!r}: give I/N with I from 1 to N, such as 1/8")
        return int(found[1]) - 1, int(found[2])


def runs_of(wanted: Reproduction) -> list[tuple[Job, Measures]]:
    """All runs, each once, with what is to be measured of it; those of the first seeds come first."""
    runs: dict[str, Job] = {}
    measures: dict[str, dict[str, None]] = {}
    for name in wanted.experiments:
        for run in experiment(name).runs(wanted.at, wanted.seeds_of(name)):
            runs.setdefault(run.id, run)
            measures.setdefault(run.id, {}).update(dict.fromkeys(experiment(name).measures))
    ordered = sorted(runs.values(), key=lambda run: run.seed)
    return [(run, replace(wanted.at.measures, measures=tuple(measures[run.id]))) for run in ordered]


def unfinished(wanted: Reproduction) -> list[tuple[Job, Measures]]:
    """The runs that still have to be trained or measured, of this part."""
    first, step = wanted.part
    return [(run, m) for run, m in runs_of(wanted)[first::step] if not _done(run, m, wanted.storage)]


def cost_in_trainings(wanted: Reproduction) -> float:
    """What all runs cost together, each once, in trainings of plain SGD on the same task."""
    costs: dict[str, float] = {}
    for name in wanted.experiments:
        for task in wanted.at.tasks_of(experiment(name).tasks):
            one = task.settings.run(task.plain_method, 0).cost
            for arm in experiment(name).arms(task, wanted.at):
                costs |= {run.id: run.cost / one for run in arm.runs(task, wanted.seeds_of(name))}
    return sum(costs.values())


def _done(run: Job, measures: Measures, storage: Storage) -> bool:
    records = finished_records(run, storage)
    if records is None:
        return False
    return bool(records[-1]["diverged"]) or not missing(storage.directory(run), measures)


def reproduce(
    wanted: Reproduction, tell: Callable[[Told], None] = lambda told: None, command: str = ""
) -> dict[str, Path]:
    """Train all that is not trained yet and write the pages; gives where each experiment's are.

    Runs that several experiments share are trained once. Stopped, it goes on when it is called again.

    Example:
        >>> reproduce(Reproduction(experiments=("table1",), scale="smoke"))
    """
    began, errors = monotonic(), list[str]()

    def listen(told: Told) -> None:
        if isinstance(told, Ended) and told.error:
            errors.append(f"{told.run.method}, seed {told.run.seed}: {told.error}")
        tell(told)

    todo = unfinished(wanted) if wanted.train else []
    for checkpoint in _checkpoints(wanted) if todo else ():
        checkpoint.make(wanted.storage, tell)
    for run, _ in todo[:1]:
        load(run, wanted.storage)  # before the processes: data that is missing is told, or fetched, once
    if wanted.ray is not None and todo:
        run_all_on_ray(todo, wanted.storage, listen, wanted.ray)
        todo = []
    groups: dict[tuple[str, ...], list[tuple[Job, Measures]]] = {}
    for run, measures in todo:
        groups.setdefault(measures.measures, []).append((run, measures))
    for some in groups.values():
        run_all([run for run, _ in some], wanted.storage, wanted.workers, listen, some[0][1])
    if wanted.shard is not None:
        return {}
    pages = {name: _write(wanted, name, errors, command, began) for name in wanted.experiments}
    _write_index(Path(wanted.storage.out) / wanted.scale)
    return pages


def _write_index(directory: Path) -> None:
    from lookbehind.experiments.paper.index import write_index  # which draws figures, like the pages

    write_index(directory)


def _checkpoints(wanted: Reproduction) -> list[Checkpoint]:
    """The networks that have to be made before they can be fine-tuned."""
    tasks = [task for name in wanted.experiments for task in wanted.at.tasks_of(experiment(name).tasks)]
    made = [(task.checkpoint, task.settings) for task in tasks if task.checkpoint is not None]
    out = wanted.storage.out
    return [one for one, settings in made if getattr(settings, "model", None) == one.model(out)]


def _write(wanted: Reproduction, name: str, errors: Sequence[str], command: str, began: float) -> Path:
    # matplotlib takes long to import, and the worker processes have no use for it
    from lookbehind.experiments.output import machine, versions
    from lookbehind.experiments.pages import write_pages
    from lookbehind.experiments.paper.findings import Findings, Outcome
    from lookbehind.experiments.report import About

    this, scale, seeds = experiment(name), wanted.at, wanted.seeds_of(name)
    measures = replace(scale.measures, measures=this.measures)
    known: dict[str, Outcome] = {}
    runs = {run.id: run for run in this.runs(scale, seeds)}
    for run in runs.values():
        records = finished_records(run, wanted.storage)
        place = wanted.storage.directory(run)
        if records is not None and (records[-1]["diverged"] or not missing(place, measures)):
            found = {} if records[-1]["diverged"] else measured(place, measures)
            known[run.id] = Outcome(run, records, found)
    tasks = tuple(scale.tasks_of(this.tasks))
    lacking = len(runs) - len(known)
    notices = list(dict.fromkeys(errors))
    if lacking:
        notices.append(f"{lacking} of {len(runs)} runs are not finished: start again with the same command to go on")
    about = About(
        title=this.title,
        command=command,
        settings=_settings(wanted, tasks, seeds, len(known), len(runs)),
        versions=versions(),
        machine=machine(next(iter(runs.values())).place),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=monotonic() - began,
        notices=notices,
    )
    out = Path(wanted.storage.out) / wanted.scale / name
    write_pages(out, this, this.show(Findings(scale, seeds, tasks, known)), about)
    return out


def _settings(wanted: Reproduction, tasks: Sequence[Task], seeds: range, known: int, runs: int) -> dict[str, Any]:
    return {
        "scale": f"{wanted.scale}: {wanted.at.about}",
        "seeds": f"{seeds.start} to {seeds.stop - 1}",
        "runs": f"{known} of {runs} runs finished",
        "changes": " ".join(wanted.change) or "none",
        "tasks": json.dumps([task.title for task in tasks]),
    }
