"""``lookbehind reproduce``: tables and figures of the paper."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from rich.console import Console

from lookbehind.commands.shared import INTERRUPTED, say, watched
from lookbehind.experiments.claims import NOT_RUN
from lookbehind.experiments.paper.plan import Reproduction
from lookbehind.experiments.paper.reproduce import reproduce


@dataclass(frozen=True)
class Reproduce:
    """Reproduce tables and figures of the paper by their numbers.

    For example:

    lookbehind reproduce table1 --scale smoke

    lookbehind reproduce table1 figure5 figure7 --scale laptop --data-dir data

    lookbehind reproduce table1 --scale paper --shard 3/16
    """

    experiments: Annotated[tuple[str, ...], tyro.conf.Positional]
    """table1, figure5, ...; `lookbehind list experiments` shows them."""
    reproduction: Annotated[Reproduction, tyro.conf.OmitSubcommandPrefixes] = field(default_factory=Reproduction)

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal."""
        wanted = replace(self.reproduction, experiments=self.experiments)
        try:
            with watched(console, []) as watch:
                pages = reproduce(wanted, watch, command)
        except KeyboardInterrupt:
            say(console, "\nstopped; the same command goes on from here")
            return INTERRUPTED
        for name, out in pages.items():
            verdicts = json.loads((out / "results.json").read_text())["verdicts"]
            for verdict in verdicts:
                if verdict["verdict"] != NOT_RUN:
                    say(console, f"{name}: {verdict['verdict']}: {verdict['claim']} ({verdict['where']})", wrapped=True)
            if missing := sum(verdict["verdict"] == NOT_RUN for verdict in verdicts):
                say(console, f"{name}: {missing} of {len(verdicts)} claims need rows that were not run")
            say(console, f"report   {out / 'report.html'}")
        if pages and not wanted.at.judges:
            say(console, f"the scale {wanted.scale} {wanted.at.about}: its verdicts mean nothing", wrapped=True)
        if pages:
            say(console, f"claims   {out.parent / 'index.md'}")
        for one in watch.failed:
            say(console, f"failed: {one.run.method}, seed {one.run.seed}: {one.error}")
        return 1 if watch.failed else 0
