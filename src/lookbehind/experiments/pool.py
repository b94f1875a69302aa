"""Many runs at a time, in processes of their own; what they tell arrives in one place."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from queue import Empty
from threading import Event, Thread
from time import monotonic
from typing import Any

from lookbehind.training.records import Record
from lookbehind.training.run import Run
from lookbehind.training.train import Progress, Storage, train

INTERVAL = 0.1  # seconds between two reports of a run: more would only be drawn over


@dataclass(frozen=True)
class Notice:
    """A warning from a run."""

    text: str


@dataclass(frozen=True)
class Ended:
    """A run came to its end, was stopped, or failed."""

    run: Run
    records: list[Record]
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Is the run complete?"""
        return bool(self.records) and self.records[-1]["event"] == "end"


Told = Progress | Notice | Ended


def run_all(runs: Sequence[Run], storage: Storage, jobs: int, tell: Callable[[Told], None]) -> None:
    """Train all runs, ``jobs`` at a time; ``tell`` is called in this process with all that they report.

    On an interrupt (Ctrl-C) every run saves a checkpoint and stops, and the interrupt goes on. A run that fails does
    not stop the others.
    """
    if jobs == 1:
        for run in runs:
            tell(_train(run, storage, _every(INTERVAL, tell), tell, lambda: False))
        return
    context = get_context("spawn")  # torch's threads do not survive a fork
    queue, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(queue, stop))
    with pool:
        waiting: dict[Future[Ended], Run] = {pool.submit(_work, run, storage): run for run in runs}
        try:
            while waiting:
                _pass_on(queue, tell)
                for future in [f for f in waiting if f.done()]:
                    tell(_result(future, waiting.pop(future)))
            _pass_on(queue, tell)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _result(future: Future[Ended], run: Run) -> Ended:
    try:
        return future.result()
    except BrokenProcessPool:
        return Ended(run, [], "a worker process was killed, perhaps for want of memory; start again to go on")


def _pass_on(queue: Any, tell: Callable[[Told], None]) -> None:
    """Hand on what has arrived; waits a moment for the first."""
    try:
        tell(queue.get(timeout=INTERVAL))
        while True:
            tell(queue.get_nowait())
    except Empty:
        return


def _every(seconds: float, tell: Callable[[Told], None]) -> Callable[[Progress], None]:
    """Tell at most so often; an epoch's record always."""
    last = 0.0

    def watch(progress: Progress) -> None:
        nonlocal last
        if progress.record is not None or monotonic() - last > seconds:
            last = monotonic()
            tell(progress)

    return watch


def _train(
    run: Run,
    storage: Storage,
    watch: Callable[[Progress], None],
    tell: Callable[[Told], None],
    stop: Callable[[], bool],
) -> Ended:
    try:
        with _warnings_told(tell):
            return Ended(run, train(run, storage, watch=watch, stop=stop))
    except Exception as error:
        return Ended(run, [], f"{type(error).__name__}: {error}")


@contextmanager
def _warnings_told(tell: Callable[[Told], None]) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: tell(Notice(str(message)))
        yield


# --- in a worker process

_queue: Any = None
_stop: Event | None = None


def _begin(queue: Any, stop: Any) -> None:
    global _queue, _stop
    _queue, _stop = queue, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent asks us to stop
    Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A parent that was killed cannot ask us to stop. We may end anywhere: the run goes on from its checkpoint."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(run: Run, storage: Storage) -> Ended:
    return _train(run, storage, _every(INTERVAL, _queue.put), _queue.put, lambda: _stop is not None and _stop.is_set())
