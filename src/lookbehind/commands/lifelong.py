"""``lookbehind lifelong``: tasks one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console

from lookbehind.commands.shared import INTERRUPTED, say, watched
from lookbehind.experiments.pool import run_all
from lookbehind.lifelong.run import LifelongRun
from lookbehind.training.parallel import started_by_torchrun
from lookbehind.training.train import Storage


@dataclass(frozen=True)
class Lifelong:
    """Learn a stream of tasks with one method: accuracy on all of them, and what was forgotten.

    For example:

    lookbehind lifelong --method er+lookbehind-sam

    lookbehind lifelong --data split-cifar100 --method er+lookbehind-sam --k 10 --alpha 0.2 --lr 0.03

    lookbehind lifelong --data split-cifar100 --method lookbehind-c-maml --k 2 --alpha 1 --rho 0.005
    """

    run: LifelongRun = field(default_factory=LifelongRun)
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/lifelong")))

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal, and write its page."""
        if started_by_torchrun():
            raise ValueError("a lifelong training runs in one process: call it without torchrun")
        run, began = self.run, monotonic()
        try:
            with watched(console, [(run.method, run)]) as watch:
                run_all([run], self.storage, 1, watch)
        except KeyboardInterrupt:
            say(console, "\nstopped; the same command goes on from here")
            return INTERRUPTED
        if watch.failed:
            say(Console(stderr=True), f"error: {watch.failed[0].error}")
            return 1
        # matplotlib takes long to import, and there is nothing to draw before
        from lookbehind.experiments.lifelong_report import summary, write_report

        out, records = self.storage.directory(run), watch.ended[0].records
        if records[-1]["diverged"]:
            say(console, f"the loss ceased to be finite; lower the learning rate. Records  {out}")
            return 0
        for name, value in summary(records[-1]).items():
            say(console, f"{name:<46}{value:>8}")
        write_report(out, run, records, command, began)
        say(console, f"report            {out / 'report.html'}\nrecords, weights  {out}")
        return 0
