"""Many runs at a time, in processes of their own; what they tell arrives in one place."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import current_process, get_context, parent_process
from queue import Empty
from time import monotonic
from typing import Any

from lookbehind.training.allocator import keep_memory
from lookbehind.training.job import Job
from lookbehind.training.measuring import Measures, Stopped, measured
from lookbehind.training.records import Record
from lookbehind.training.train import Progress, Storage, train

INTERVAL = 0.1  # seconds between two reports of a run: more would only be drawn over
ATTEMPTS = 2  # of a run whose worker process was killed
NOTHING_MORE = Measures()
GUARD = "the script that called lacks `if __name__ == '__main__':`"
KILLED = (
    f"its worker process ended without a word: killed, perhaps for want of memory; or {GUARD}. Start again to go on"
)


@dataclass(frozen=True)
class Notice:
    """A warning from a run."""

    text: str


@dataclass(frozen=True)
class Ended:
    """A run came to its end, was stopped, or failed."""

    run: Job
    records: list[Record]
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Is the run complete?"""
        return bool(self.records) and self.records[-1]["event"] == "end"


@dataclass(frozen=True)
class Measuring:
    """A run is trained, and this is being measured of it."""

    id: str
    name: str


@dataclass(frozen=True)
class Coming:
    """These runs will be trained."""

    runs: Sequence[Job]


Told = Progress | Notice | Coming | Measuring | Ended
Tell = Callable[[Told], None]


def run_all(runs: Sequence[Job], storage: Storage, jobs: int, tell: Tell, measures: Measures = NOTHING_MORE) -> None:
    """Train and measure all runs, ``jobs`` at a time; ``tell`` is called in this process with all that they report.

    On an interrupt (Ctrl-C) every run saves a checkpoint and stops, and the interrupt goes on. A run that fails does
    not stop the others.
    """
    if jobs == 1:
        with _interrupts_as_requests(tell) as asked:
            for run in runs:
                tell(train_and_measure(run, storage, measures, tell, asked.is_set))
                if asked.is_set():
                    raise KeyboardInterrupt
        return
    todo, attempts = list(runs), Counter[str]()
    while todo:
        begun = _run_in_pool(todo, storage, jobs, tell, measures)
        attempts.update(begun)
        for run in [run for run in todo if attempts[run.id] >= ATTEMPTS]:
            tell(Ended(run, [], KILLED))
            todo.remove(run)


def _run_in_pool(todo: list[Job], storage: Storage, jobs: int, tell: Tell, measures: Measures) -> set[str]:
    """Train until all is done, or a worker process dies: then the ids of the runs that may have caused it."""
    if getattr(current_process(), "_inheriting", False):  # a worker, which has to import the script first
        raise RuntimeError(f"a worker process was about to start others: {GUARD}")
    context = _context()
    queue, stop = context.Queue(), context.Event()
    begun: set[str] = set()

    def listen(told: Told) -> None:
        if isinstance(told, (Progress, Measuring)):
            begun.add(told.id)
        tell(told)

    told_to_all = (queue, stop, dict(os.environ))  # a server that was started before knows an older environment
    with ProcessPoolExecutor(min(jobs, len(todo)), context, initializer=_begin, initargs=told_to_all) as pool:
        waiting: dict[Future[Ended], Job] = {}
        try:
            with _interrupts_held_back():  # the workers inherit it: else Ctrl-C would end them while they start
                waiting |= {pool.submit(_work, run, storage, measures): run for run in todo}
            while waiting:
                _pass_on(queue, listen)
                for future in [f for f in waiting if f.done()]:
                    run = waiting.pop(future)
                    ended = future.result()  # BrokenProcessPool if a worker was killed
                    todo.remove(run)
                    begun.discard(run.id)
                    tell(ended)
            _pass_on(queue, listen)
        except BrokenProcessPool:
            return begun or {run.id for run in todo}  # none began: they all fail in the same way
        except KeyboardInterrupt:
            stop.set()
            workers = list(pool._processes.values())
            tell(Notice("stopping: every run ends its step and saves where it is; Ctrl-C again stops at once"))
            try:
                pool.shutdown(cancel_futures=True)
            except KeyboardInterrupt:
                for worker in workers:  # a run that is killed goes on from its last checkpoint
                    worker.kill()
            raise
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return set()


def _context() -> Any:
    """How workers start: not as a fork of this process, since torch's threads do not survive one.

    Where it is safe they are forked from a server that has only imported what they need, once: torch takes seconds.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # torch imports it with the first optimizer
    return context


def _pass_on(queue: Any, tell: Tell) -> None:
    """Hand on what has arrived; waits a moment for the first."""
    try:
        tell(queue.get(timeout=INTERVAL))
        while True:
            tell(queue.get_nowait())
    except Empty:
        return


def _every(seconds: float, tell: Tell) -> Callable[[Progress], None]:
    """Tell at most so often; an epoch's record always."""
    last = 0.0

    def watch(progress: Progress) -> None:
        nonlocal last
        if progress.record is not None or monotonic() - last > seconds:
            last = monotonic()
            tell(progress)

    return watch


def train_and_measure(run: Job, storage: Storage, measures: Measures, tell: Tell, stop: Callable[[], bool]) -> Ended:
    """Train a run and measure it; an error is told, not raised."""
    try:
        with warnings_told(tell):
            ended = Ended(run, train(run, storage, watch=_every(INTERVAL, tell), stop=stop))
            if ended.finished and not ended.records[-1]["diverged"]:
                with suppress(Stopped):
                    watch = lambda name: tell(Measuring(run.id, name))  # noqa: E731
                    measured(storage.directory(run), measures, storage, watch, stop)
            return ended
    except Exception as error:
        return Ended(run, [], f"{type(error).__name__}: {error}")


@contextmanager
def warnings_told(tell: Tell) -> Iterator[None]:
    """Hand warnings on as notices."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: tell(Notice(str(message)))
        yield


# --- Ctrl-C


@contextmanager
def _handling_interrupts(handler: Any, *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only there Python lets one be set
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A Ctrl-C inside this ``with`` comes at its end; processes that are started inside never see one."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: there it would be lost
        with _handling_interrupts(signal.SIG_IGN, signal.SIGINT):
            yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupts_as_requests(tell: Tell) -> Iterator[threading.Event]:
    """The first Ctrl-C asks to stop after the step that is under way, the second does not wait for it.

    So does SIGTERM, by which clusters and torchrun say that the time is over.
    """
    asked = threading.Event()

    def handler(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        tell(Notice("stopping: the run ends its step and saves where it is; Ctrl-C again stops at once"))

    with _handling_interrupts(handler, signal.SIGINT, signal.SIGTERM):
        yield asked


# --- in a worker process

_queue: Any = None
_stop: Any = None


def _begin(queue: Any, stop: Any, environment: dict[str, str]) -> None:
    global _queue, _stop
    _queue, _stop = queue, stop
    os.environ.clear()
    os.environ.update(environment)
    keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent asks us to stop
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A parent that was killed cannot ask us to stop. We may end anywhere: the run goes on from its checkpoint."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(run: Job, storage: Storage, measures: Measures) -> Ended:
    return Ended(run, []) if _stop.is_set() else train_and_measure(run, storage, measures, _queue.put, _stop.is_set)
