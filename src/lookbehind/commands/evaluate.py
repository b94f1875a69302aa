"""``lookbehind evaluate``: networks that were trained before, measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from lookbehind.commands.shared import say
from lookbehind.experiments.measure_tables import terminal_grids
from lookbehind.experiments.saved import Saved, by_method, is_finished, measure_saved, rows_of, write_saved
from lookbehind.experiments.table import accuracy, loss
from lookbehind.training.measuring import Measures
from lookbehind.training.train import Storage


@dataclass(frozen=True)
class Evaluate:
    """Measure the networks of finished runs: loss and accuracy, sharpness, robustness, curvature, landscape.

    For example:

    lookbehind evaluate out/compare/runs/*

    lookbehind evaluate out/compare/runs/* --measures sharpness,noise,curvature,landscape --out out/measured

    lookbehind evaluate out/compare/runs/sgd-* --measures towards --towards out/compare/runs/sam-seed0-0123456789
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of finished runs, OUT/runs/ID."""
    measures: Measures = field(default_factory=Measures)
    data_dir: Path = Path("data")
    """The data sets' official files."""
    out: Path | None = None
    """Write report.html, results.json, results.md and the figures here."""
    json: bool = False
    """Print JSON in place of tables."""

    def __call__(self, console: Console, command: str) -> int:
        """Measure and print."""
        began = monotonic()
        if not self.runs:
            raise ValueError("give the directories of finished runs, such as out/compare/runs/*")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={self.out}: a file; give a directory")
        if self.out is not None and (self.out / "runs").exists():
            raise ValueError(f"out={self.out}: has runs and their results; give a directory of its own")
        found, failed = self._measured(console)
        if not found:
            raise ValueError("none of these is a finished run that can be measured")
        if self.json:
            print(json.dumps([one.scores | {"measures": one.measures} for one in found], indent=2, allow_nan=False))
        else:
            console.print(_scores(found))
        if self.out is not None or not self.json:
            groups = by_method(found)
            rows = rows_of(groups)
            if not self.json:
                for table in terminal_grids(rows, console.width):
                    console.print(table)
            if self.out is not None:
                write_saved(self.out, groups, rows, command, began)
                if not self.json:
                    say(console, f"report   {self.out / 'report.html'}\nfigures  {self.out / 'figures'}")
        return 1 if failed else 0

    def _measured(self, console: Console) -> tuple[list[Saved], int]:
        """Each finished run once, and how many could not be measured; with a bar on the terminal."""
        storage, errors = Storage(data_dir=self.data_dir), Console(stderr=True)
        runs = list({path.resolve(): path for path in self.runs}.values())
        found: list[Saved] = []
        failed, steps = 0, 1 + len(self.measures.measures)
        bar = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True)
        bar.disable = self.json or not console.is_terminal
        with bar:
            task = bar.add_task("measuring", total=len(runs) * steps)
            for number, path in enumerate(runs):
                if (path / "run.json").exists() and not is_finished(path):
                    say(errors, f"note: {path} is not finished, so it is left out")
                    continue

                def watch(name: str, path: Path = path) -> None:
                    bar.advance(task)
                    bar.update(task, description=f"{escape(path.name)}: {name}")

                try:
                    one = measure_saved(path, self.measures, storage, watch)
                except (ValueError, RuntimeError, OSError) as error:
                    if len(runs) == 1:
                        raise
                    say(errors, f"error: {error}")
                    failed += 1
                    continue
                if one.run.id in {other.run.id for other in found}:
                    say(errors, f"note: {path} is a copy of a run that is there already, so it is left out")
                    continue
                found.append(one)
                bar.update(task, completed=(number + 1) * steps)
        return found, failed


def _scores(found: Sequence[Saved]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in ("seed", "train\nloss", "train\n%", "test\nloss", "test\n%", "BatchNorm\nre-estimated %"):
        table.add_column(name, justify="right", no_wrap=True)
    keys = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "recalibrated_test_accuracy")
    for one in found:
        values = (loss(one.scores[key]) if "loss" in key else accuracy(one.scores[key]) for key in keys)
        table.add_row(escape(one.run.method), str(one.run.seed), *values)
    return table
