"""``lookbehind translate``: text, with the network of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from lookbehind.commands.shared import say
from lookbehind.data.files import written_whole
from lookbehind.training.settings import check_device, resolved
from lookbehind.translation.translator import Translator

PATIENCE = 2.0  # seconds before a bar is shown


@dataclass(frozen=True)
class Translate:
    """Translate a sentence, or a file with a sentence per line, with the network of a finished run.

    For example:

    lookbehind translate out/translation/runs/adamw-seed0-0123456789 "Ich sehe drei und zwanzig Hunde."

    lookbehind translate out/translation/runs/adamw-seed0-0123456789 --file in.de --out out.en
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of a finished run of `lookbehind translation`, OUT/runs/ID."""
    text: Annotated[str | None, tyro.conf.Positional] = None
    """What to translate."""
    file: Path | None = None
    """Translate every line of this file, in place of a text."""
    out: Path | None = None
    """Write the translations of a file here; to the terminal if not given."""
    beam: int | None = None
    """Hypotheses that are followed; as the run says if not given."""
    length_penalty: float | None = None
    """Greater prefers longer translations; as the run says if not given."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""

    def __call__(self, console: Console, command: str) -> int:
        """Translate and print, or write."""
        lines = self._lines()
        check_device(self.device)
        translator = Translator(self.run, resolved(self.device))
        search = translator.search(self.beam, self.length_penalty)
        with _bar_after_a_while(console, len(lines)) as watch:
            found = translator.translate(lines, search, watch)
        if self.out is None:
            print("\n".join(found))
            return 0
        with written_whole(self.out) as file:
            file.write("".join(f"{line}\n" for line in found).encode())
        say(console, f"{len(found):,} lines  {self.out}")
        return 0

    def _lines(self) -> list[str]:
        if (self.text is None) == (self.file is None):
            raise ValueError('give either a text, such as "Ein Hund läuft.", or --file FILE')
        if self.out is not None and self.file is None:
            raise ValueError(f"out={self.out}: it is for the translations of a file; give --file too, or leave it out")
        if self.out is not None and self.out.is_dir():
            raise ValueError(f"out={self.out}: a directory; give the name of a file")
        if self.file is None:
            lines = [" ".join((self.text or "").split())]
        else:
            try:
                # not at the other breaks of splitlines, such as U+2028: one line in, one line out
                lines = self.file.read_text("utf-8").removesuffix("\n").split("\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.file}: not text in UTF-8, at byte {error.start}") from error
        if not any(line.strip() for line in lines):
            raise ValueError(f"{self.file or 'the text'} is empty: there is nothing to translate")
        return lines


@contextmanager
def _bar_after_a_while(console: Console, lines: int) -> Iterator[Callable[[int], None]]:
    """A function that is told how many more lines are done; a bar comes where it takes longer than a moment."""
    bar = Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    task, began, shown = bar.add_task("translating", total=lines), monotonic(), False

    def watch(done: int) -> None:
        nonlocal shown
        bar.advance(task, done)
        if not shown and console.is_terminal and monotonic() - began > PATIENCE:
            shown = True
            bar.start()

    try:
        yield watch
    finally:
        if shown:
            bar.stop()
