"""What several commands do: plain text on the terminal, and the progress of runs with how they ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import monotonic

from rich.console import Console

from lookbehind.experiments.display import Display
from lookbehind.experiments.pool import Ended, Told, run_all
from lookbehind.training.job import Job
from lookbehind.training.parallel import started_by_torchrun
from lookbehind.training.records import Record
from lookbehind.training.train import Storage

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def say(console: Console, text: str, *, wrapped: bool = False) -> None:
    """Print plain text: a path may have brackets, which are no markup, and should not be broken."""
    console.print(text, markup=False, highlight=False, soft_wrap=not wrapped)


class Watch:
    """Draws what runs tell, and keeps how they ended."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.ended: list[Ended] = []

    def __call__(self, told: Told) -> None:
        """Take a report."""
        self._display(told)
        if isinstance(told, Ended):
            self.ended.append(told)

    @property
    def failed(self) -> list[Ended]:
        """The runs that ended with an error."""
        return [one for one in self.ended if one.error]


@contextmanager
def watched(console: Console, runs: Sequence[tuple[str, Job]]) -> Iterator[Watch]:
    """Inside this ``with`` the progress of runs, each with a name for people, is on the terminal."""
    with Display(console, runs) as display:
        yield Watch(display)


def trained_alone(console: Console, run: Job, storage: Storage) -> tuple[int, list[Record]]:
    """Train one run in this process, with its progress on the terminal.

    Its records; none, and the exit code, where it was stopped, failed or has nothing to show.
    """
    if started_by_torchrun():
        raise ValueError("such a training runs in one process: call it without torchrun")
    try:
        with watched(console, [(run.method, run)]) as watch:
            run_all([run], storage, 1, watch)
    except KeyboardInterrupt:
        say(console, "\nstopped; the same command goes on from here")
        return INTERRUPTED, []
    if watch.failed:
        say(Console(stderr=True), f"error: {watch.failed[0].error}")
        return 1, []
    records = watch.ended[0].records
    if records[-1]["diverged"]:
        say(console, f"the loss ceased to be finite; lower the learning rate. Records  {storage.directory(run)}")
        return 0, []
    return 0, records


def trained_with_page(
    console: Console, run: Job, storage: Storage, command: str, report: str
) -> tuple[int, list[Record]]:
    """The same, and its page by a module of ``lookbehind.experiments``; what came out is on the terminal."""
    began = monotonic()
    code, records = trained_alone(console, run, storage)
    if records:
        # only now: matplotlib takes long to import, and there was nothing to draw before
        pages = import_module(f"lookbehind.experiments.{report}")
        out = storage.directory(run)
        _say_where(console, pages.write_report(out, run, records, command, began), out)
    return code, records


def _say_where(console: Console, numbers: Mapping[str, str], out: Path) -> None:
    """What came out of a run, and where its files are."""
    for name, value in numbers.items():
        say(console, f"{name:<46}{value:>8}")
    say(console, f"report            {out / 'report.html'}\nrecords, weights  {out}")
