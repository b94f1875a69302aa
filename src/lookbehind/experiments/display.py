"""Progress on the terminal: which runs are under way, how far, how good, how long still."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lookbehind.experiments.pool import Coming, Ended, Measuring, Notice, Told
from lookbehind.experiments.table import accuracy
from lookbehind.training.job import Job, described
from lookbehind.training.train import Progress as RunProgress


class Display:
    """Bars for all runs together and for those under way; a line stays for every run that has ended.

    Args:
        console: where to draw.
        runs: the runs to come, each with a name for people; more can be told of later.
    """

    def __init__(self, console: Console, runs: Sequence[tuple[str, Job]]) -> None:
        self._names: dict[str, str] = {}
        self._tasks: dict[str, TaskID] = {}
        # work still to do is estimated in gradients: runs differ in their cost by much
        self._costs: dict[str, float] = {}
        self._units: dict[str, str] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            speed_estimate_period=600,
        )
        self._all = self._bars.add_task("", total=1.0, words="")
        self._done: dict[str, float] = {}
        self._expect(runs)

    def __enter__(self) -> Display:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def __call__(self, told: Told) -> None:
        """Show what a run told."""
        if isinstance(told, Notice):
            self._bars.console.print(f"[yellow]note:[/] {escape(told.text)}")
        elif isinstance(told, Coming):
            self._expect([(described(run), run) for run in told.runs])
        elif isinstance(told, Ended):
            self._end(told)
        elif isinstance(told, Measuring):
            self._bars.update(self._task(told.id), words=f"measuring {told.name}")
        else:
            self._move(told)

    def _expect(self, runs: Sequence[tuple[str, Job]]) -> None:
        self._names |= {run.id: f"{label}, seed {run.seed}" for label, run in runs}
        self._costs |= {run.id: run.cost for _, run in runs}
        self._units |= {run.id: run.unit for _, run in runs}
        total = float(sum(self._costs.values())) or 1.0
        self._bars.update(self._all, description=f"{len(self._names)} runs", total=total)

    def _task(self, run: str) -> TaskID:
        if run not in self._tasks:
            self._tasks[run] = self._bars.add_task(escape(self._names[run]), total=1.0, words="")
        return self._tasks[run]

    def _move(self, told: RunProgress) -> None:
        task = self._task(told.id)
        self._bars.update(task, completed=told.step / told.steps)
        if told.record is not None:
            known = (told.record.get(name) for name in ("test_accuracy", "validation_accuracy"))
            latest = next((value for value in known if value is not None), None)
            shown = f", {latest:.1f} {self._units[told.id]}" if latest is not None else ""
            self._bars.update(task, words=f"epoch {told.record['epoch']}{shown}")
        self._advance(told.id, told.step / told.steps)

    def _advance(self, run: str, share: float) -> None:
        self._done[run] = share
        self._bars.update(self._all, completed=sum(self._costs[r] * s for r, s in self._done.items()))

    def _end(self, told: Ended) -> None:
        if told.run.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(told.run.id))
        if told.error is not None:
            words = f"[red]failed:[/] {escape(told.error)}"
        elif not told.finished:
            return
        else:
            end = told.records[-1]
            result = "[red]diverged[/]" if end["diverged"] else f"{accuracy(end['test_accuracy'])} {told.run.unit}"
            words = f"{result}, {end['gradient_evaluations']:,} gradients, {end['seconds']:.1f} s"
        self._advance(told.run.id, 1.0)
        self._bars.console.print(f"{escape(self._names[told.run.id])}: {words}", highlight=False)
