"""``lookbehind translation``: train a network that translates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console

from lookbehind.commands.shared import say, say_where, trained_alone
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
        run, began = self.run, monotonic()
        code, records = trained_alone(console, run, self.storage)
        if not records:
            return code
        # matplotlib takes long to import, and there is nothing to draw before
        from lookbehind.experiments.translation_report import summary, write_report

        out = self.storage.directory(run)
        write_report(out, run, records, command, began)
        say_where(console, summary(records[-1]), out)
        say(console, f'try it            lookbehind translate {out} "{records[-1]["examples"][0][0]}"')
        return 0
