"""``lookbehind translation``: train a network that translates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console

from lookbehind.commands.shared import INTERRUPTED, say, watched
from lookbehind.experiments.pool import run_all
from lookbehind.training.parallel import started_by_torchrun
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
        if started_by_torchrun():
            raise ValueError("a translation training runs in one process: call it without torchrun")
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
        from lookbehind.experiments.translation_report import summary, write_report

        out, records = self.storage.directory(run), watch.ended[0].records
        if records[-1]["diverged"]:
            say(console, f"the loss ceased to be finite; lower the learning rate. Records  {out}")
            return 0
        for name, value in summary(records[-1]).items():
            say(console, f"{name:<46}{value:>8}")
        write_report(out, run, records, command, began)
        say(console, f"report            {out / 'report.html'}\nrecords, weights  {out}")
        say(console, f'try it            lookbehind translate {out} "{records[-1]["examples"][0][0]}"')
        return 0
