"""Train a run and keep what it yields; killed at any moment, it goes on bit for bit when it is called again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from filelock import FileLock, Timeout

from lookbehind.data.files import written_whole
from lookbehind.data.text import CORPORA, load_text
from lookbehind.data.vision import load as load_data
from lookbehind.optim.checks import non_negative
from lookbehind.training import checkpoint
from lookbehind.training.events import Events
from lookbehind.training.job import Job
from lookbehind.training.parallel import team
from lookbehind.training.records import Journal, Record, read

STEPS_BETWEEN_TALKS = 20  # of several processes, about stopping and saving


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where things are, and what is kept. Nothing here changes the outcome of a run."""

    out: Path = Path("out")
    """Results go here; run again with the same directory to go on."""
    data_dir: Path = Path("data")
    """The data sets' official files, in their official layout."""
    download: bool = True
    """May missing data be fetched from its official address?"""
    tensorboard: bool = False
    """Write TensorBoard event files as well."""
    checkpoint_minutes: float = 5.0
    """Save in the middle of an epoch that takes longer than this; at the end of an epoch it is saved anyway."""

    def __post_init__(self) -> None:
        non_negative("checkpoint_minutes", self.checkpoint_minutes)
        if Path(self.out).exists() and not Path(self.out).is_dir():
            raise ValueError(f"out={self.out}: a file; give a directory")

    def directory(self, run: Job) -> Path:
        """Where a run's files are."""
        return Path(self.out) / "runs" / run.id


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    id: str
    step: int
    steps: int
    record: Record | None = None
    """Of the epoch that has just ended."""


def load(run: Job, storage: Storage) -> Any:
    """The data set of a run, images or text, kept in memory for the next one."""
    # only the digits have no official split
    seed = run.seed if run.source == "digits" else 0
    return _load(run.source, Path(storage.data_dir), seed, storage.download)


@lru_cache(maxsize=2)
def _load(name: str, directory: Path, seed: int, download: bool) -> Any:
    if name in CORPORA:
        return load_text(name, directory)
    return load_data(name, directory, seed=seed, allow_download=download)


def check_data(run: Job, storage: Storage, directory: Path | None = None) -> None:
    """See to it that a run which was begun before goes on with the same data; the first time, note which it is.

    Its files are in the usual directory if none is given.
    """
    directory = directory or storage.directory(run)
    data, path = load(run, storage), directory / "data.json"
    here = {"train": data.train.digest(), "test": data.test.digest()}
    if not path.exists():
        with written_whole(path) as file:
            file.write(json.dumps(here).encode())
        return
    try:
        before = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged; if the data are still those of before, remove it") from error
    if before != here:
        raise ValueError(
            f"{directory} was trained on other data than that of {run.data} in {storage.data_dir}; "
            "give another --out, or the --data-dir of before"
        )


def finished_records(run: Job, storage: Storage) -> list[Record] | None:
    """The records of a run that was finished before."""
    path = storage.directory(run) / "records.jsonl"
    try:
        records = read(path) if path.exists() else []
    except ValueError as error:
        warnings.warn(f"{error}; the run goes on from its last checkpoint, or begins again", stacklevel=2)
        return None
    return records if records and records[-1]["event"] == "end" else None


def train(
    run: Job,
    storage: Storage | None = None,
    *,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Train a run to its end, from where it was left, and return its records: one per epoch and one for the end.

    A run that was finished before is not trained again. In ``OUT/runs/ID`` there are ``run.json``, ``records.jsonl``
    and, in the end, ``weights.pt``.

    Args:
        run: what to train.
        storage: where; ``Storage()`` if not given.
        watch: called after every step and with every epoch's record.
        stop: asked after every step; True saves a checkpoint and returns what is known so far.

    Examples:
        >>> records = train(Run(data="digits", method="lookbehind-sam", seed=0), Storage(out="out/digits"))
        >>> records[-1]["test_accuracy"]
    """
    storage = storage or Storage()
    directory, processes = storage.directory(run), team()
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory) if processes.first else nullcontext(), as_the_run_says(run):
        known = None
        if processes.first:
            check_data(run, storage)
            known = finished_records(run, storage)
        known = processes.told(known)
        if known is None and processes.first:
            for left_over in directory.glob(".*.part"):  # of a process that was killed while it wrote
                left_over.unlink(missing_ok=True)
            with written_whole(directory / "run.json") as file:
                file.write(json.dumps(run.identity, indent=2).encode())
        if known is not None:
            if processes.first:
                _clear(directory)
            return known
        return _train(run, storage, directory, watch, stop)


def _train(
    run: Job, storage: Storage, directory: Path, watch: Callable[[Progress], None], stop: Callable[[], bool]
) -> list[Record]:
    training = run.begin(load(run, storage))
    processes = training.team
    saved = checkpoint.load_latest(directory, run.place) if processes.first else None
    # the others after the first, which removes what is damaged
    if processes.told(saved is not None) and not processes.first:
        saved = checkpoint.load_latest(directory, run.place)
    if saved is not None:
        training.load(saved["training"])
    journal = Journal(directory / "records.jsonl" if processes.first else None, saved["records"] if saved else ())
    writes_events = storage.tensorboard and processes.first
    events = Events(directory / "events", len(journal.records)) if writes_events else None
    due = monotonic() + 60 * storage.checkpoint_minutes

    def save() -> None:
        content = {"training": training.state(), "records": journal.records}
        if processes.first:
            checkpoint.save(directory, training.step, content)

    def after_step() -> bool:
        nonlocal due
        watch(Progress(run.id, training.step, training.steps))
        if processes.world > 1 and training.step % STEPS_BETWEEN_TALKS:
            return True  # what one decides alone, the others must be told, which takes time
        wishes = processes.told((stop(), monotonic() > due))
        if wishes[0]:
            return False
        if wishes[1]:
            save()
            due = monotonic() + 60 * storage.checkpoint_minutes
        return True

    while not training.finished:
        if not training.train_epoch(after_step):
            save()
            return journal.records
        record = training.epoch_record()
        journal.append(record)
        if events:
            events.append(record)
        save()
        watch(Progress(run.id, training.step, training.steps, record))
        if processes.told(stop()):
            return journal.records
    end = training.end_record(journal.records)
    weights = training.weights()
    if processes.first:
        with written_whole(directory / "weights.pt") as file:
            torch.save(weights, file)
    journal.append(end)
    if events:
        events.close()
    if processes.first:
        _clear(directory)
    return journal.records


def _clear(directory: Path) -> None:
    """A finished run needs no checkpoints."""
    for path in checkpoint.existing(directory):
        path.unlink(missing_ok=True)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RuntimeError(f"{directory}: another process is training this run; wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def as_the_run_says(run: Job) -> Iterator[None]:
    """Threads, random numbers and deterministic kernels of a run; all as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        with torch.random.fork_rng(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    finally:
        torch.set_num_threads(threads)
