"""``lookbehind compare``: methods side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lookbehind.commands.shared import INTERRUPTED, say, watched
from lookbehind.experiments.compare import Comparison, compare, runs_of, unfinished
from lookbehind.experiments.measure_tables import terminal_grids
from lookbehind.experiments.table import CAPTION, answer, terminal_table
from lookbehind.training.parallel import started_by_torchrun
from lookbehind.training.train import finished_records


@dataclass(frozen=True)
class Compare:
    """Compare methods: same data, same seeds, accuracy with its spread and its cost in gradients.

    For example:

    lookbehind compare --data digits

    lookbehind compare --data cifar10 --model resnet8-narrow --pool 2 --train-images 10000 --epochs 20
    --methods sgd sam sam-matched lookbehind-sam lookbehind-sam:k=2,alpha=adaptive

    lookbehind compare --data digits --budget gradients --epochs 240
    """

    comparison: Comparison = field(default_factory=Comparison)

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal."""
        comparison = self.comparison
        if started_by_torchrun():
            raise ValueError("compare starts processes of its own: call it without torchrun, which is for train")
        named = [(label, run) for label, runs in runs_of(comparison).items() for run in runs]
        todo = unfinished(comparison)
        if len(todo) < len(named):
            console.print(f"{len(named) - len(todo)} of {len(named)} runs are finished already")
        out = Path(comparison.storage.out)
        try:
            with watched(console, todo) as watch:
                rows = compare(comparison, watch, command)
        except KeyboardInterrupt:
            some = any(finished_records(run, comparison.storage) for _, run in named)
            so_far = f"what is finished so far: {out / 'report.html'}" if some else "no run has finished yet"
            say(console, f"\nstopped; the same command goes on from here; {so_far}")
            return INTERRUPTED
        console.print(terminal_table(rows, console.width))
        say(console, f"{CAPTION}\n\n{' '.join(answer(rows))}\n", wrapped=True)
        for table in terminal_grids(rows, console.width):
            console.print(table)
        say(console, f"report   {out / 'report.html'}\nresults  {out / 'results.json'}, {out / 'results.md'}")
        if watch.failed:
            say(console, f"{len(watch.failed)} of {len(named)} runs failed; see above")
        return 1 if watch.failed else 0
