"""``lookbehind lifelong``: tasks one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lookbehind.commands.shared import trained_with_page
from lookbehind.lifelong.run import LifelongRun
from lookbehind.training.train import Storage


@dataclass(frozen=True)
class Lifelong:
    """Learn a stream of tasks with one method: accuracy on all of them, and what was forgotten.

    For example:

    lookbehind lifelong --method er+lookbehind-sam

    lookbehind lifelong --data split-cifar100 --method er+lookbehind-sam --k 2 --alpha 0.5 --lr 0.1 --rho 0.01

    lookbehind lifelong --data split-cifar100 --method lookbehind-c-maml --k 2 --alpha 1 --rho 0.005
    """

    run: LifelongRun = field(default_factory=LifelongRun)
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/lifelong")))

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal, and write its page."""
        return trained_with_page(console, self.run, self.storage, command, "lifelong_report")[0]
