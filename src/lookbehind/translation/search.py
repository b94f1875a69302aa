"""Beam search over many sentences at a time, as fairseq does it.

At every step each sentence has ``beam`` beginnings; of all their continuations the ``2 beam`` most probable are looked
at. Those that end the sentence and are among the first ``beam`` are finished with the score ``log p / length^penalty``
(the end counts), the first ``beam`` of the others go on. A sentence is done when ``beam`` hypotheses are finished, or
at its greatest length, where all must end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lookbehind.data.sentences import filled
from lookbehind.data.subwords import END, PADDING
from lookbehind.models.transformer import POSITIONS, Transformer
from lookbehind.optim.checks import count, non_negative

TOGETHER = 64  # sentences per batch of a search


@dataclass(frozen=True)
class Search:
    """How translations are looked for."""

    beam: int = 5
    """Hypotheses that are followed."""
    length_penalty: float = 1.0
    """The exponent of the length that scores are divided by: greater prefers longer sentences."""
    max_len: int = 200
    """A translation has at most ``ratio x + max_len`` subwords before its end; x are in the source, with its end."""
    ratio: float = 0.0

    def __post_init__(self) -> None:
        count("beam", self.beam)
        count("max_len", self.max_len)
        non_negative("ratio", self.ratio)
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty={self.length_penalty}: give a number")

    def longest(self, source: Tensor) -> list[int]:
        """The greatest length of the translation of every row."""
        lengths = source.ne(PADDING).sum(1).tolist()
        return [min(int(self.ratio * length + self.max_len), POSITIONS - 1) for length in lengths]


@dataclass(frozen=True)
class Hypothesis:
    """A translation that was found."""

    tokens: tuple[int, ...]
    """With the end."""
    score: float


class _Cached:
    """Decodes one place at a time, with all that was computed before it."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self._model = model
        self._cache = model.start(*model.encode(source))

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._model.logits(self._model.decode_next(tokens[:, -1:], self._cache)[:, -1])

    def pick(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        self._cache.pick(rows, sentences)


class _Uncached:
    """Decodes all places again at every step: to compare with."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self._model = model
        self._memory, self._mask = model.encode(source)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._model.logits(self._model.decode(tokens, self._memory, self._mask)[:, -1])

    def pick(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        if sentences is not None:
            self._memory, self._mask = self._memory[sentences], self._mask[sentences]


@torch.no_grad()
def searched(
    model: Transformer, source: Tensor, search: Search | None = None, *, cached: bool = True
) -> list[list[Hypothesis]]:
    """The hypotheses of every row of ``source``, the best first.

    Args:
        model: in the mode it is in; call ``eval()`` before.
        source: sentences as numbers, filled up on the right.
        search: how; ``Search()`` if not given.
        cached: keep keys and values of the places before; False computes them again at every step.
    """
    search = search or Search()
    beam, size = search.beam, model.target.tokens.num_embeddings
    if 2 * beam > size - 2:
        raise ValueError(f"beam={beam}: with {size} subwords, give at most {(size - 2) // 2}")
    decoder = (_Cached if cached else _Uncached)(model, source)
    limits = search.longest(source)
    finished: list[list[Hypothesis]] = [[] for _ in limits]
    here = list(range(len(limits)))  # the sentences that are not done
    # at first a row per sentence; its beams come with the first continuations
    tokens = torch.full((len(here), 1), END, device=source.device)
    scores = torch.zeros(len(here), 1, device=source.device)
    step = 0
    while True:
        values, parents, words = _candidates(decoder(tokens), scores, beam, step, [limits[s] for s in here])
        ends = words.eq(END)
        _finish(finished, here, tokens, values, parents, ends, search, step)
        going = [i for i, s in enumerate(here) if len(finished[s]) < beam and step < limits[s]]
        if not going:
            break
        # the first of those that do not end, in their order: at most every second one ends
        order = (ends.long() * 2 * beam + torch.arange(2 * beam, device=ends.device)).argsort(1)[:, :beam]
        values, parents, words = (found.gather(1, order) for found in (values, parents, words))
        rows = parents + scores.shape[1] * torch.arange(len(here), device=parents.device)[:, None]
        kept = None
        if len(going) < len(here):
            kept = torch.tensor(going, device=source.device)
            rows, words, values = rows[kept], words[kept], values[kept]
            here = [here[i] for i in going]
        tokens = torch.cat([tokens[rows.flatten()], words.reshape(-1, 1)], 1)
        decoder.pick(rows.flatten(), kept)
        scores, step = values, step + 1
    if not all(finished):
        raise ValueError(
            "the network's outputs are not finite: there is no translation that is more probable than others"
        )
    return [sorted(found, key=lambda one: -one.score) for found in finished]


def _candidates(
    logits: Tensor, scores: Tensor, beam: int, step: int, limits: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The ``2 beam`` most probable continuations of every sentence: log-probability, which beam, which word."""
    found = F.log_softmax(logits.float(), -1).view(*scores.shape, -1)
    found[..., PADDING] = -math.inf
    if step == 0:
        found[..., END] = -math.inf  # at least one word
    last = [i for i, limit in enumerate(limits) if step >= limit]
    if last:
        ending = found[last, :, END]
        found[last] = -math.inf
        found[last, :, END] = ending
    values, places = (found + scores[..., None]).flatten(1).topk(2 * beam, 1)
    words = found.shape[-1]
    return values, places // words, places % words


def _finish(
    finished: list[list[Hypothesis]],
    here: Sequence[int],
    tokens: Tensor,
    values: Tensor,
    parents: Tensor,
    ends: Tensor,
    search: Search,
    step: int,
) -> None:
    """Note the hypotheses that end here, up to ``beam`` for every sentence."""
    first = ends[:, : search.beam] & values[:, : search.beam].isfinite()
    by_sentence = tokens.view(len(here), -1, tokens.shape[1])
    for i, place in first.nonzero().tolist():
        found = finished[here[i]]
        if len(found) < search.beam:
            words = by_sentence[i, parents[i, place]].tolist()[1:]
            score = float(values[i, place]) / (step + 1) ** search.length_penalty
            found.append(Hypothesis((*words, END), score))


def translated(
    model: Transformer, sentences: Sequence[Sequence[int]], search: Search, device: str = "cpu"
) -> list[tuple[int, ...]]:
    """The best translation of every sentence, in their order."""
    found: list[tuple[int, ...]] = [()] * len(sentences)
    for numbers, best in translations(model, sentences, search, device):
        for number, tokens in zip(numbers, best, strict=True):
            found[number] = tokens
    return found


def translations(
    model: Transformer, sentences: Sequence[Sequence[int]], search: Search, device: str = "cpu"
) -> Iterator[tuple[Sequence[int], Iterable[tuple[int, ...]]]]:
    """The best translations as they are found: numbers of some sentences, and their translations.

    Sentences of about the same length are searched together.
    """
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(order), TOGETHER):
            numbers = order[start : start + TOGETHER]
            found = searched(model, filled([sentences[n] for n in numbers], device), search)
            yield numbers, [hypotheses[0].tokens for hypotheses in found]
    finally:
        model.train(was_training)
