"""``lookbehind translation``: train a network that translates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lookbehind.commands.shared import say, trained_with_page
from lookbehind.training.train import Storage
from lookbehind.translation.run import TranslationRun


@dataclass(frozen=True)
class Translation:
    """Train a Transformer that translates German to English, with one method: BLEU on the test text.

    For example:

    lookbehind translation --method lookbehind-sam-switching

    lookbehind translation --data multi30k --method lookbehind-asam-switching --k 2 --alpha adaptive --gradients 4000

    lookbehind translation --data iwslt14 --method lookbehind-sam-switching --rho 0.1 --k 2 --alpha 0.8 --device cuda
    """

    run: TranslationRun = field(default_factory=TranslationRun)
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/translation")))

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal, and write its page."""
        code, records = trained_with_page(console, self.run, self.storage, command, "translation_report")
        if records:
            example = records[-1]["examples"][0][0]
            say(console, f'try it            lookbehind translate {self.storage.directory(self.run)} "{example}"')
        return code
