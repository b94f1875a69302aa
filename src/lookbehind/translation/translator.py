"""Translate with the network of a finished run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError

import torch

from lookbehind.data.subwords import Subwords
from lookbehind.data.text import detokenised, tokenised
from lookbehind.models.transformer import POSITIONS
from lookbehind.training.evaluate import finished_files
from lookbehind.translation.run import TranslationRun, translation_run_from
from lookbehind.translation.search import Search, translations
from lookbehind.translation.training import network

LANGUAGES = ("de", "en")


class Translator:
    """A trained network with its subwords.

    Args:
        directory: of a finished run, ``OUT/runs/ID``.
        device: where it runs.

    Examples:
        >>> Translator(Path("out/translation/runs/adamw-seed0-0123456789")).translate(["Ein Hund läuft."])
        ['a dog runs.']
    """

    def __init__(self, directory: Path, device: str = "cpu") -> None:
        self.run, self.device = _saved_run(directory), device
        try:
            saved = torch.load(directory / "weights.pt", map_location=device, weights_only=True)
            self.subwords = Subwords.of(saved["subwords"])
            self.model = network(self.run, len(self.subwords.source), len(self.subwords.target)).to(device).eval()
            self.model.load_state_dict(saved["model"])
        except (ValueError, TypeError, KeyError, RuntimeError, UnpicklingError, EOFError) as error:
            raise ValueError(f"{directory}: weights.pt is damaged, or not of a translation run") from error

    def search(self, beam: int | None = None, length_penalty: float | None = None) -> Search:
        """The run's, with what is given in its place."""
        changed = {"beam": beam, "length_penalty": length_penalty}
        return replace(self.run.search, **{name: value for name, value in changed.items() if value is not None})  # type: ignore[arg-type]

    def translate(
        self, lines: Sequence[str], search: Search | None = None, watch: Callable[[int], None] = lambda done: None
    ) -> list[str]:
        """A translation for every line, in lower case as the training text; a line without words stays empty.

        Args:
            lines: in the source language, as people write them.
            search: how; as the run says if not given.
            watch: called with how many more lines are translated.
        """
        words = tokenised(lines, LANGUAGES[0])
        encoded = self.subwords.encoded(words, self.subwords.source)
        for number, sentence in enumerate(encoded, 1):
            if len(sentence) > POSITIONS:
                raise ValueError(
                    f"line {number} has {len(sentence):,} subwords, but the network reads {POSITIONS:,}; give one "
                    "sentence per line"
                )
        wanted = [number for number, line in enumerate(words) if line.strip()]
        found = [""] * len(lines)
        sources = [encoded[number] for number in wanted]
        for numbers, best in translations(self.model, sources, search or self.run.search, self.device):
            texts = detokenised(self.subwords.decoded(best), LANGUAGES[1])
            for number, text in zip(numbers, texts, strict=True):
                found[wanted[number]] = text
            watch(len(numbers))
        watch(len(lines) - len(wanted))
        return found


def _saved_run(directory: Path) -> TranslationRun:
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: no such run; give the directory of a finished one, OUT/runs/ID")
    finished_files(directory)
    try:
        identity = json.loads((directory / "run.json").read_text())
    except ValueError as error:
        raise ValueError(f"{directory}: run.json is damaged, or not of a run") from error
    if not isinstance(identity, dict):
        raise ValueError(f"{directory}: run.json is damaged, or not of a run")
    try:
        return translation_run_from(identity)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{directory}: not a translation run ({error})") from error
