"""Many runs on the machines of a Ray cluster: same ids, same records, and a lost machine's runs begin where they were.

All machines must see the same ``out`` and ``data_dir``, on a shared file system: a run that is started again on another
machine goes on from its checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lookbehind.experiments.pool import Ended, Notice, Tell, Told, train_and_measure
from lookbehind.training.allocator import keep_memory
from lookbehind.training.job import Job
from lookbehind.training.measuring import Measures
from lookbehind.training.records import read
from lookbehind.training.train import Progress, Storage

SECONDS = 1.0  # between two looks at how far the runs are


def run_all_on_ray(
    runs: Sequence[tuple[Job, Measures]], storage: Storage, tell: Tell, address: str, patience: int = 10
) -> None:
    """Train and measure all runs, as many at a time as the cluster has cores for.

    Args:
        runs: each with what is to be measured of it.
        storage: on a file system that all machines share.
        tell: called in this process with what the runs report.
        address: of the cluster, ``auto`` for the one on this machine, or ``host:port``.
        patience: how often a run is started again when its machine is lost.

    A run that fails does not stop the others.
    """
    try:
        import ray
    except ImportError:
        raise ImportError("--ray needs Ray: pip install 'lookbehind[cluster]'") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    storage = replace(storage, out=Path(storage.out).resolve(), data_dir=Path(storage.data_dir).resolve())
    try:
        begun = {
            ray.remote(_work).options(num_cpus=run.threads, max_retries=patience).remote(run, storage, measures): run
            for run, measures in runs
        }
        waiting, seen = list(begun), dict[str, int]()
        while waiting:
            done, waiting = ray.wait(waiting, timeout=SECONDS)
            for progress in _progress([begun[one] for one in waiting], storage, seen):
                tell(progress)
            for one in done:
                for told in _told(ray, one, begun[one], patience):
                    tell(told)
    finally:
        if own:
            ray.shutdown()


def _told(ray: Any, one: Any, run: Job, patience: int) -> list[Told]:
    """What a finished task has to say."""
    try:
        ended, notices = ray.get(one)
    except ray.exceptions.RayError as error:
        return [Ended(run, [], f"{type(error).__name__}: lost with its machine more than {patience} times")]
    return [*notices, ended]


def _progress(runs: Sequence[Job], storage: Storage, seen: dict[str, int]) -> Iterator[Progress]:
    """The epochs that have ended since the last look, from the records on the shared file system."""
    for run in runs:
        try:
            epochs = [record for record in read(storage.directory(run) / "records.jsonl") if record["event"] == "epoch"]
        except (OSError, ValueError):
            continue
        if len(epochs) > seen.get(run.id, 0):
            seen[run.id] = len(epochs)
            whole = max(run.whole_epochs, epochs[-1]["epoch"])
            yield Progress(run.id, epochs[-1]["epoch"], whole, epochs[-1])


def _work(run: Job, storage: Storage, measures: Measures) -> tuple[Ended, list[Notice]]:
    keep_memory()
    notices: list[Notice] = []
    keep = notices.append
    ended = train_and_measure(
        run, storage, measures, lambda told: keep(told) if isinstance(told, Notice) else None, lambda: False
    )
    return ended, notices
