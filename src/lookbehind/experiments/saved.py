"""Measure runs that were trained before, wherever they are, and put them side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from lookbehind.experiments.results import Row, curve, row
from lookbehind.training.evaluate import evaluate
from lookbehind.training.measuring import Measured, Measures, measured
from lookbehind.training.records import Record, read
from lookbehind.training.run import Run, run_from
from lookbehind.training.train import Storage


@dataclass(frozen=True)
class Saved:
    """A finished run and what was found of it."""

    directory: Path
    run: Run
    scores: dict[str, Any]
    """Loss and accuracy on every set, at the final weights."""
    measures: dict[str, Measured]
    """None of a run that diverged."""

    @property
    def records(self) -> list[Record]:
        """Of its training."""
        return read(self.directory / "records.jsonl")


def measure_saved(
    directory: Path, measures: Measures, storage: Storage, watch: Callable[[str], None] = lambda name: None
) -> Saved:
    """Measure the network of a finished run.

    Examples:
        >>> measure_saved(Path("out/compare/runs/sam-seed0-0123456789"), Measures(measures=("noise",)), Storage())
    """
    watch("accuracy")
    scores = evaluate(directory, storage)
    run = run_from(json.loads((directory / "run.json").read_text()))
    diverged = read(directory / "records.jsonl")[-1]["diverged"]
    return Saved(directory, run, scores, {} if diverged else measured(directory, measures, storage, watch))


def is_finished(directory: Path) -> bool:
    """Has a run its weights and the record of its end? Without any records it is for others to say what is wrong."""
    if not (directory / "weights.pt").exists():
        return False
    path = directory / "records.jsonl"
    records = read(path) if path.exists() else None
    return records is None or (bool(records) and records[-1]["event"] == "end")


def by_method(runs: Sequence[Saved]) -> dict[str, list[Saved]]:
    """Runs that differ in their seed only stand together, under the method's name and what sets it apart."""
    groups: dict[str, list[Saved]] = {}
    for saved in runs:
        groups.setdefault(_without_seed(saved.run), []).append(saved)
    named: dict[str, list[Saved]] = {}
    for same in groups.values():
        alike = [other[0].run for other in groups.values() if other[0].run.method == same[0].run.method]
        identities = [run.filled.identity for run in alike]
        keys = sorted({key for one in identities for key in one} - {"seed", "method"})
        apart = [key for key in keys if len({json.dumps(one.get(key)) for one in identities}) > 1]
        own = same[0].run.filled.identity
        label = ",".join(f"{key}={own[key]}" for key in apart if key in own)
        named[f"{same[0].run.method}:{label}" if label else same[0].run.method] = same
    # the cheapest first, as the others are compared with it: the plain base optimizer, where there is one
    return dict(sorted(named.items(), key=lambda item: _cost(item[1][0].run)))


def _cost(run: Run) -> float:
    return max(run.mean_gradients(method) for method in run.methods)


def rows_of(groups: dict[str, list[Saved]]) -> list[Row]:
    """The rows of a table, as of a comparison."""
    return [
        row(label, [(one.run, one.records) for one in some], [one.measures or None for one in some])
        for label, some in groups.items()
    ]


def write_saved(out: Path, groups: dict[str, list[Saved]], rows: Sequence[Row], command: str, began: float) -> None:
    """Write the report of saved runs; ``began`` is when measuring did, by ``time.monotonic``."""
    # matplotlib takes long to import
    from lookbehind.experiments.output import machine, time_of, versions, write_results
    from lookbehind.experiments.report import About

    runs = [one.run.filled for some in groups.values() for one in some]
    tasks = dict.fromkeys(f"{run.data}, {run.model}" for run in runs)
    notices = ["the runs are not all of the same data and network: differences between them mean little"]
    about = About(
        title="; ".join(tasks),
        command=command,
        settings={"runs": [one.directory.name for some in groups.values() for one in some]},
        versions=versions(),
        machine=machine(runs[0].device),
        started=time_of(began),
        seconds=monotonic() - began,
        notices=notices if len(tasks) > 1 else [],
    )
    curves = {label: [curve(one.run, one.records) for one in some] for label, some in groups.items()}
    write_results(out, about, rows, curves)


def _without_seed(run: Run) -> str:
    return json.dumps({key: value for key, value in run.filled.identity.items() if key != "seed"}, sort_keys=True)
