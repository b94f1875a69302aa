"""What several commands do: plain text on the terminal, and the progress of runs with how they ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from lookbehind.experiments.display import Display
from lookbehind.experiments.pool import Ended, Told
from lookbehind.training.job import Job

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
