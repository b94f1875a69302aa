"""Run experiments of the paper and write what they show."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any

from lookbehind.experiments.cluster import run_all_on_ray
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.checkpoints import Checkpoint
from lookbehind.experiments.paper.choices import write_choices
from lookbehind.experiments.paper.findings import Findings, choices_of
from lookbehind.experiments.paper.plan import Reproduction, check_rows, known, runs_of, runs_of_experiment, unfinished
from lookbehind.experiments.paper.scale import Task
from lookbehind.experiments.pool import Coming, Ended, Notice, Told, run_all, warnings_told
from lookbehind.training.job import Job
from lookbehind.training.measuring import Measures
from lookbehind.training.train import load


def reproduce(
    wanted: Reproduction, tell: Callable[[Told], None] = lambda told: None, command: str = ""
) -> dict[str, Path]:
    """Train all that is not trained yet and write the pages; gives where each experiment's are.

    Runs that several experiments share are trained once. Stopped, it goes on when it is called again.

    Examples:
        >>> reproduce(Reproduction(experiments=("table1",), scale="smoke"))
    """
    began, errors, notices = monotonic(), list[str](), set[str]()

    def listen(told: Told) -> None:
        if isinstance(told, Notice):
            if told.text in notices:
                return
            notices.add(told.text)
        if isinstance(told, Ended) and told.error:
            errors.append(f"{told.run.method}, seed {told.run.seed}: {told.error}")
        tell(told)

    check_rows(wanted)
    tried: set[str] = set()
    # what follows a search is known when it is finished; the jobs of an array do not wait for each other
    for _ in range(0 if not wanted.train else 2 if wanted.searches_first and wanted.shard is None else 1):
        todo = [(run, measures) for run, measures in unfinished(wanted) if run.id not in tried]
        tried.update(run.id for run, _ in todo)
        _train(wanted, todo, listen)
    if wanted.shard is not None:
        return {}
    pages = {name: _write(wanted, name, errors, command, began) for name in wanted.experiments}
    _write_index(Path(wanted.storage.out) / wanted.scale)
    return pages


def _train(wanted: Reproduction, todo: Sequence[tuple[Job, Measures]], tell: Callable[[Told], None]) -> None:
    """These runs, on this machine or on Ray."""
    if not todo:
        return
    todo = _with_data(wanted, todo, tell)
    tell(Coming([run for run, _ in todo]))
    sources = {run.source for run, _ in todo}
    for checkpoint, source in _checkpoints(wanted):
        if source in sources:
            checkpoint.make(wanted.storage, tell)
    if wanted.ray is not None:
        run_all_on_ray(todo, wanted.storage, tell, wanted.ray)
        return
    groups: dict[tuple[str, ...], list[tuple[Job, Measures]]] = {}
    for run, measures in todo:
        groups.setdefault(measures.measures, []).append((run, measures))
    for some in groups.values():
        run_all([run for run, _ in some], wanted.storage, wanted.workers, tell, some[0][1])


def _with_data(
    wanted: Reproduction, todo: Sequence[tuple[Job, Measures]], tell: Callable[[Told], None]
) -> list[tuple[Job, Measures]]:
    """What can be trained: before the processes, so that data that is missing is told, or fetched, once."""
    missing: dict[str, FileNotFoundError] = {}
    sources = {run.source: run for run, _ in todo}
    for source, run in sources.items():
        try:
            with warnings_told(tell):
                load(run, wanted.storage)
        except FileNotFoundError as error:
            missing[source] = error
    left = [(run, measures) for run, measures in todo if run.source not in missing]
    # what was trained before, on data that is there, still has a page
    if not left and {run.source for run, _ in runs_of(wanted)} <= missing.keys():
        raise next(iter(missing.values()))
    for source, lacking in missing.items():
        tell(Notice(f"{source} is left out: {lacking}"))
        tell(Coming([sources[source]]))  # one stands for all of them
        tell(Ended(sources[source], [], f"{source} is left out: {lacking}"))
    return left


def _write_index(directory: Path) -> None:
    from lookbehind.experiments.paper.index import write_index  # which draws figures, like the pages

    write_index(directory)


def _checkpoints(wanted: Reproduction) -> list[tuple[Checkpoint, str]]:
    """The networks that have to be made before they can be fine-tuned, each with the data that they learn from."""
    tasks = [task for name in wanted.experiments for task in wanted.at.tasks_of(experiment(name).tasks)]
    made = [(task.checkpoint, task.images) for task in tasks if task.checkpoint is not None]
    out = wanted.storage.out
    return [(one, settings.data) for one, settings in made if settings.model == one.model(out)]


def _write(wanted: Reproduction, name: str, errors: Sequence[str], command: str, began: float) -> Path:
    # matplotlib takes long to import, and the worker processes have no use for it
    from lookbehind.experiments.output import machine, versions
    from lookbehind.experiments.pages import write_pages
    from lookbehind.experiments.report import About

    this, scale, seeds = experiment(name), wanted.at, wanted.seeds_of(name)
    runs = runs_of_experiment(wanted, name)
    tasks = tuple(scale.tasks_of(this.tasks))
    # rows that were not asked for are shown too, if they are there
    every = {
        run.id: run
        for task in tasks
        for arm in this.arms(task, scale)
        for run in (*arm.search(task, seeds), *arm.runs(task, seeds))
    }
    found = known(wanted, name, every.values())
    lacking = sum(run.id not in found for run in runs)
    notices = [] if scale.judges else [f"the scale {scale.name} {scale.about}: its verdicts mean nothing"]
    notices += dict.fromkeys(errors)
    if lacking:
        notices.append(f"{lacking} of {len(runs)} runs are not finished: start again with the same command to go on")
    about = About(
        title=this.title,
        command=command,
        settings=_settings(wanted, tasks, seeds, len(runs) - lacking, len(runs)),
        versions=versions(),
        machine=machine(runs[0].place),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=monotonic() - began,
        notices=notices,
    )
    out = Path(wanted.storage.out) / wanted.scale / name
    findings = Findings(
        scale, wanted.shown(name), tasks, found, wanted.searching(name), before=wanted.choices_for(name)
    )
    output = this.show(findings)
    write_pages(out, this, output.without_others(wanted.rows) if wanted.rows else output, about)
    if this.best_of_rows:
        write_choices(out / "choices.json", choices_of(name, findings, this.arms))  # beside what stands there
    return out


def _settings(wanted: Reproduction, tasks: Sequence[Task], seeds: range, finished: int, runs: int) -> dict[str, Any]:
    searched = min(wanted.search_seeds or len(seeds), len(seeds))
    searching = "" if wanted.search_seeds is None else f"; settings were searched with the first {searched}"
    if wanted.fresh:
        searching += ", which are not shown"
    if wanted.search_tasks is not None:
        searching += f"; settings were searched on the first {wanted.search_tasks} tasks"
    if wanted.choices is not None:
        searching += f"; settings that {wanted.choices.name} has were searched before"
    return {
        "scale": f"{wanted.scale}: {wanted.at.about}",
        "seeds": f"{seeds.start} to {seeds.stop - 1}{searching}",
        **({"rows": f"only {', '.join(wanted.rows)}, and others that were trained before"} if wanted.rows else {}),
        "runs": f"{finished} of {runs} runs finished",
        "changes": " ".join(wanted.change) or "none",
        "tasks": json.dumps([task.title for task in tasks]),
    }
