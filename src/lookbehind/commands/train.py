"""``lookbehind train``: one network with one method, in one process or under torchrun."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from lookbehind.commands.shared import INTERRUPTED, say, watched
from lookbehind.experiments.pool import run_all
from lookbehind.training.parallel import joined, started_by_torchrun
from lookbehind.training.run import Run
from lookbehind.training.train import Storage


@dataclass(frozen=True)
class Train:
    """Train one network with one method.

    For example:

    lookbehind train --data digits --method lookbehind-sam --k 5 --alpha 0.5

    lookbehind train --data cifar10 --model resnet18 --method sam+lookbehind-sam@100 --tensorboard

    torchrun --nproc-per-node 4 -m lookbehind train --data cifar10 --model wrn-28-10 --method lookbehind-sam
    """

    run: Run = field(default_factory=Run)
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/train")))

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal."""
        run = as_torchrun_says(self.run)
        with joined(run.filled.device) as team:
            shown = console if team.first else Console(quiet=True)
            try:
                with watched(shown, [(run.method, run)]) as watch:
                    run_all([run], self.storage, 1, watch)
            except KeyboardInterrupt:
                say(shown, "\nstopped; the same command goes on from here")
                return INTERRUPTED
            if watch.failed:
                say(Console(stderr=True), f"process {team.rank} of {team.world}: {watch.failed[0].error}")
                return 1
            say(shown, f"records, weights  {self.storage.directory(run)}")
        return 0


def as_torchrun_says(run: Run) -> Run:
    """The run with ``parallel`` filled in; an error where it does not fit how the processes were started."""
    if started_by_torchrun():
        processes = int(os.environ["WORLD_SIZE"])
        if run.processes not in (1, processes):
            raise ValueError(f"processes={run.processes}: torchrun has started {processes}; leave it out")
        return replace(run, parallel="ddp" if run.parallel == "none" else run.parallel, processes=processes)
    if run.parallel != "none" or run.processes != 1:
        raise ValueError(
            f"parallel={run.parallel!r}: start it with torchrun, as in torchrun --nproc-per-node 2 -m lookbehind train"
        )
    return run
