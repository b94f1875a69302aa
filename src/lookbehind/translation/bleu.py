"""BLEU by sacrebleu, of tokenised text and of text as people write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lookbehind.data.text import detokenised, translation_package


@dataclass(frozen=True)
class Bleu:
    """A score, with how it was computed in sacrebleu's short form."""

    score: float
    signature: str


def tokenised_bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Of Moses's tokens, case-insensitive: the BLEU of fairseq and of the paper's table."""
    return _bleu(translations, references, tokenize="none")


def detokenised_bleu(translations: Sequence[str], references: Sequence[str], language: str = "en") -> Bleu:
    """Of Moses's tokens put together, against references as they were written; sacrebleu's tokens, case-insensitive."""
    return _bleu(detokenised(translations, language), references, tokenize="13a")


def _bleu(translations: Sequence[str], references: Sequence[str], tokenize: str) -> Bleu:
    # force: sacrebleu need not warn that the text looks tokenised
    metric = translation_package("sacrebleu").BLEU(lowercase=True, tokenize=tokenize, force=True)
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(float(score), str(metric.get_signature()))
