"""``lookbehind list``: methods, models, data sets and experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from lookbehind.commands.shared import say
from lookbehind.data.tasks import STREAMS
from lookbehind.data.text import CORPORA
from lookbehind.data.vision import SETS
from lookbehind.experiments.paper.catalogue import IDS, experiment
from lookbehind.experiments.paper.plan import Reproduction, cost_in_trainings
from lookbehind.models import CHECKPOINT, MODELS
from lookbehind.training.methods import METHODS


@dataclass(frozen=True)
class List:
    """Show the methods, models and data sets.

    For example:

    lookbehind list

    lookbehind list methods
    """

    what: Annotated[Literal["all", "methods", "models", "data", "experiments"], tyro.conf.Positional] = "all"

    def __call__(self, console: Console, command: str) -> int:
        """Print the tables."""
        shown: dict[str, list[tuple[str, ...]]] = {
            "methods": [(m.name, m.about, _cost(m.name)) for m in METHODS.values()],
            "models": [
                *((name, about) for name, (_, about) in MODELS.items()),
                (CHECKPOINT, "an image classifier of transformers, from a directory or the hub, to fine-tune"),
            ],
            "data": [
                *((name, known.about) for name, known in SETS.items()),
                *((name, f"lifelong learning: {split.about}") for name, split in STREAMS.items()),
                *((name, f"translation: {corpus.about}") for name, corpus in CORPORA.items()),
            ],
            "experiments": [experiment_row(name) for name in IDS] if self.what in ("all", "experiments") else [],
        }
        heads = {
            "methods": ("method", "what it does", "gradients per minibatch"),
            "models": ("model", ""),
            "data": ("data", ""),
            "experiments": ("experiment", "what the paper claims", "laptop, paper: SGD trainings per seed"),
        }
        for name, rows in shown.items():
            if self.what in ("all", name):
                table = Table(box=box.SIMPLE_HEAD)
                for number, head in enumerate(heads[name]):
                    table.add_column(head, overflow="fold", no_wrap=number == 0)  # names are there to be copied
                for row in rows:
                    table.add_row(*row)
                console.print(table)
        if self.what in ("all", "methods"):
            say(console, "A method's own settings follow a colon: lookbehind-sam:k=2,alpha=adaptive")
            say(console, "For lifelong learning also with replay, er+METHOD, and lookahead-c-maml, lookbehind-c-maml")
            say(console, "A method may change on the way: sam+lookbehind-sam@20 changes after epoch 20")
        return 0


def experiment_row(name: str) -> tuple[str, ...]:
    """What an experiment is and costs, in trainings of plain SGD."""
    costs = []
    for scale in ("laptop", "paper"):
        wanted = Reproduction(experiments=(name,), scale=scale, seeds=1)
        costs.append(f"{cost_in_trainings(wanted):.0f}")
    return name, experiment(name).claim, ", ".join(costs)


def _cost(name: str) -> str:
    one, two = (METHODS[name].gradients(k) for k in (5, 6))
    return str(one) if one == two else "k + 1"
