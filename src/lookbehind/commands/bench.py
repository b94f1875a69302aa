"""``lookbehind bench``: how fast it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from lookbehind.bench.run import Bench as Wanted
from lookbehind.bench.run import bench
from lookbehind.bench.tables import overview
from lookbehind.commands.shared import say


@dataclass(frozen=True)
class Bench:
    """Measure speed and memory: steps against what they are made of, the authors' way, peers, input, import.

    For example:

    lookbehind bench

    lookbehind bench --only steps peers --repetitions 30
    """

    bench: Wanted = field(default_factory=Wanted)

    def __call__(self, console: Console, command: str) -> int:
        """Measure and print; the exit code tells nothing, for a busy machine is no error."""
        with console.status("measuring") as status:
            found = bench(self.bench, lambda what: status.update(f"measuring {what}"))
        heads, lines = overview(found, "[bold red]{}[/]".format)
        table = Table(*heads, caption="in brackets what must be reached; bold: not reached")
        for line in lines:
            table.add_row(*line)
        console.print(table)
        say(console, f"results  {self.bench.out / 'results.json'}, {self.bench.out / 'results.md'}")
        return 0
