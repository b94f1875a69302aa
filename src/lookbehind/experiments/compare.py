"""Compare methods: same data, same seeds, accuracy with its spread and its cost in gradients."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from lookbehind.experiments.pool import Ended, Notice, Told, run_all, warnings_told
from lookbehind.experiments.results import Row, curve, row
from lookbehind.optim.checks import count, one_of
from lookbehind.training.loop import Parts
from lookbehind.training.measuring import Measured, Measures, measured, missing, whole_records
from lookbehind.training.records import Record
from lookbehind.training.run import Run, with_overrides
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage, check_data, finished_records, load

USUAL_METHODS = ("sgd", "sam", "asam", "lookbehind-sam", "lookbehind-asam")
ROUNDED_BY_AT_MOST = 0.1  # of a gradient budget, to make it a whole number of steps for every method


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods side by side, each with the same seeds."""

    methods: tuple[str, ...] = USUAL_METHODS
    """By name, with settings of their own behind a colon: sgd sam:rho=0.1 lookbehind-sam:k=2,alpha=adaptive."""
    seeds: int = 3
    """How many seeds: each draws its own images, first weights and order, the same for all methods."""
    first_seed: int = 0
    """They are numbered from this one on."""
    budget: Literal["epochs", "gradients"] = "epochs"
    """epochs: all methods see the images as often. gradients: all compute as many gradients as SGD in --epochs."""
    jobs: int | None = None
    """Runs at a time; as many as there are cores for if not given."""
    settings: Settings = field(default_factory=Settings)
    measures: Measures = field(default_factory=Measures)
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/compare")))

    def __post_init__(self) -> None:
        count("seeds", self.seeds)
        count("first_seed", self.first_seed, at_least=0)
        one_of("budget", self.budget, ("epochs", "gradients"))
        if self.jobs is not None:
            count("jobs", self.jobs)
        if not self.methods:
            raise ValueError("methods=(): give at least one; `lookbehind list` shows them")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods={' '.join(self.methods)}: one of them is there twice")
        for method in self.methods:
            with_overrides(self.settings, method, self.first_seed)  # a wrong name is found now

    @property
    def workers(self) -> int:
        """Runs at a time."""
        return workers_for(self.jobs, self.settings.threads)


def workers_for(jobs: int | None, threads: int) -> int:
    """As many runs at a time as were asked for, or as there are cores for."""
    return jobs or max(1, (os.cpu_count() or 1) // threads)


Runs = Mapping[str, Sequence[Run]]


def runs_of(comparison: Comparison) -> Runs:
    """The runs of every method, one per seed."""
    seeds = range(comparison.first_seed, comparison.first_seed + comparison.seeds)
    runs = {m: [with_overrides(comparison.settings, m, seed) for seed in seeds] for m in comparison.methods}
    if comparison.budget == "gradients":
        budget = _gradient_budget(comparison, [first for first, *_ in runs.values()])
        runs = {method: [replace(run, gradients=budget) for run in some] for method, some in runs.items()}
    ids: dict[str, str] = {}
    for method, (first, *_) in runs.items():
        if first.id in ids:
            raise ValueError(f"methods: {method} is the same run as {ids[first.id]}; leave one of them out")
        ids[first.id] = method
    return runs


def _gradient_budget(comparison: Comparison, runs: Sequence[Run]) -> int:
    """As many gradients as the epochs have minibatches, made divisible by the cost of every method's step if it can."""
    common = with_overrides(comparison.settings, "sgd", comparison.first_seed).filled
    for name in ("epochs", "gradients", "batch_size"):
        if common.gradients is not None or any(getattr(run.filled, name) != getattr(common, name) for run in runs):
            raise ValueError(
                "budget='gradients': the epochs and the batch size of all methods together set the budget; leave out "
                "--gradients, and epochs, gradients and batch_size of single methods"
            )
    budget = int(common.epochs or 0) * len(Parts(common, load(common, comparison.storage)).train)
    whole = math.lcm(*(math.ceil(run.mean_gradients(method)) for run in runs for method in run.methods))
    rounded = budget - budget % whole
    return rounded if budget - rounded <= ROUNDED_BY_AT_MOST * budget else budget


def compare(comparison: Comparison, tell: Callable[[Told], None] = lambda told: None, command: str = "") -> list[Row]:
    """Train all that is not trained yet, and write ``results.json``, ``results.md`` and ``report.html``.

    Args:
        comparison: what to compare.
        tell: called with the progress of the runs.
        command: the command line, for the report.

    Runs train in processes of their own, unless ``jobs=1``: call it below ``if __name__ == "__main__":`` in a script.

    Examples:
        >>> rows = compare(Comparison(methods=("sgd", "lookbehind-sam"), settings=Settings(data="digits")))
        >>> rows[1]["accuracy"]["mean"]
    """
    began = monotonic()
    runs = runs_of(comparison)
    storage = comparison.storage
    started, spent = _earlier(Path(storage.out))
    notices: dict[str, None] = {}
    errors: dict[str, None] = {}

    def listen(told: Told) -> None:
        if isinstance(told, Notice):
            if told.text in notices:
                return
            notices[told.text] = None
        if isinstance(told, Ended) and told.error:
            errors[f"{told.run.method}, seed {told.run.seed}: {told.error}"] = None
        tell(told)

    def write() -> list[Row]:
        return _write(comparison, runs, [*notices, *errors], command, started, spent + monotonic() - began)

    # seed by seed: stopped early, there is something to compare
    order = [run for nth in zip(*runs.values(), strict=True) for run in nth]
    todo = [run for run in order if not _done(run, comparison)]
    for run in order:
        if run not in todo:
            with suppress(FileNotFoundError):  # the numbers are there, even if the data is no longer
                check_data(run, storage)
    with warnings_told(listen):
        for run in todo[:1]:
            load(run, storage)  # before the processes: data that is missing is told, or fetched, once
    try:
        run_all(todo, storage, comparison.workers, listen, comparison.measures)
    except KeyboardInterrupt:
        write()
        raise
    rows = write()
    if not rows:
        raise RuntimeError(f"no run was finished: {next(iter(errors), 'none was begun')}")
    return rows


def unfinished(comparison: Comparison) -> list[tuple[str, Run]]:
    """The runs that still have to be trained or measured, with their methods as they were written."""
    return [(label, run) for label, runs in runs_of(comparison).items() for run in runs if not _done(run, comparison)]


def _done(run: Run, comparison: Comparison) -> bool:
    return whole_records(run, comparison.storage, comparison.measures) is not None


def _earlier(out: Path) -> tuple[str, float]:
    """When an earlier call began that was stopped or had fewer seeds, and how long it took; else now, and nothing."""
    try:
        about = json.loads((out / "comparison.json").read_text())
        return str(about["started"]), float(about["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return datetime.now(timezone.utc).isoformat(timespec="seconds"), 0.0


def _write(
    comparison: Comparison, runs: Runs, notices: list[str], command: str, started: str, seconds: float
) -> list[Row]:
    # matplotlib takes long to import, and the worker processes have no use for it
    from lookbehind.experiments.output import machine, versions, write_results
    from lookbehind.experiments.report import About

    known = {m: [(run, finished_records(run, comparison.storage)) for run in some] for m, some in runs.items()}
    done: dict[str, list[tuple[Run, list[Record]]]] = {
        method: [(run, records) for run, records in some if records is not None] for method, some in known.items()
    }
    lacking = sum(len(some) for some in runs.values()) - sum(len(some) for some in done.values())
    total = sum(len(some) for some in runs.values())
    unmeasured = sum(not _done(run, comparison) for some in done.values() for run, _ in some)
    if unmeasured:
        notices = [*notices, f"{unmeasured} of {total} runs are not measured yet, and left out of the measures"]
    if lacking:
        notices = [*notices, f"{lacking} of {total} runs are not finished: start again with the same command to go on"]
    rows = [row(method, some, _measures(some, comparison)) for method, some in done.items() if some]
    if not rows:  # what an earlier comparison wrote is better than nothing
        return []
    baseline = next(iter(runs))
    if not done[baseline]:
        notices = [*notices, f"{baseline} has no finished run: differences are to {rows[0]['method']} in its place"]
    costs = {r["gradient_evaluations"] for r in rows if not r["diverged"]}
    if comparison.budget == "gradients" and len(costs) > 1:
        notices = [*notices, f"the methods spend {min(costs):,} to {max(costs):,} gradients: whole steps of each"]
    curves = {method: [curve(run, records) for run, records in some] for method, some in done.items() if some}
    first = next(iter(runs.values()))[0]
    about = About(
        title=f"{first.filled.data}, {first.filled.model}",
        command=command,
        settings=_common(runs) | {"seeds": comparison.seeds, "budget": comparison.budget},
        versions=versions(),
        machine=machine(first.filled.device),
        started=started,
        seconds=seconds,
        notices=notices,
    )
    write_results(Path(comparison.storage.out), about, rows, curves)
    return rows


def _measures(runs: Sequence[tuple[Run, list[Record]]], comparison: Comparison) -> list[dict[str, Measured] | None]:
    """What was measured of each run; none of those that diverged, or were not reached yet."""
    found: list[dict[str, Measured] | None] = []
    for run, records in runs:
        place = comparison.storage.directory(run)
        known = not records[-1]["diverged"] and not missing(place, comparison.measures)
        found.append(measured(place, comparison.measures) if known else None)
    return found


def _common(runs: Runs) -> dict[str, Any]:
    """The settings that all methods share."""
    filled = [run.filled for some in runs.values() for run in some]
    read = {name for run in filled for name in run.identity}
    names = [f.name for f in fields(Settings) if f.name in read]
    values = {name: {json.dumps(getattr(run, name)) for run in filled} for name in names}
    return {name: json.loads(next(iter(found))) for name, found in values.items() if len(found) == 1}
