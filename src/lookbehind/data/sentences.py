"""Sentence pairs as numbers, in minibatches of so many tokens: a pure function of seed, epoch and number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lookbehind.data.batches import generator_for
from lookbehind.data.subwords import END, PADDING, Subwords
from lookbehind.data.text import ParallelText

MULTIPLE = 8  # of the sentences in a minibatch, where there are more: as fairseq has it


@dataclass(frozen=True)
class TextBatch:
    """Sentences of about the same length, one per row, filled up on the right."""

    source: Tensor
    previous: Tensor
    """The target one place later: what the decoder has seen when it is asked for the next subword."""
    target: Tensor
    tokens: int
    """Of the target, without the filling."""


@dataclass(frozen=True)
class TokenBatches:
    """Minibatches of sentence pairs.

    A minibatch has as many sentences of about the same length as fit: the longest of its sentences, in either language
    and with its end, times their number is at most ``max_tokens``. Which sentences are together is drawn by the seed,
    the order of the minibatches by seed and epoch.

    Args:
        source: sentences as numbers, each with its end.
        target: their translations.
        max_tokens: per minibatch.
        seed: draws which sentences are together, and the order.
        device: where the minibatches are wanted.
    """

    source: Sequence[Sequence[int]]
    target: Sequence[Sequence[int]]
    max_tokens: int
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        longest = max(map(max, self._lengths), default=0)
        if longest > self.max_tokens:
            raise ValueError(f"max_tokens={self.max_tokens}: the longest sentence has {longest}; give at least as many")

    @cached_property
    def _lengths(self) -> list[tuple[int, int]]:
        return [(len(one), len(other)) for one, other in zip(self.source, self.target, strict=True)]

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return len(self.members)

    @cached_property
    def members(self) -> list[list[int]]:
        """The numbers of the sentences of every minibatch, from the short to the long."""
        drawn = torch.randperm(len(self._lengths), generator=generator_for(self.seed, "sentences")).tolist()
        order = sorted(drawn, key=lambda number: self._lengths[number])  # stable: equal lengths stay in random order
        found: list[list[int]] = []
        current: list[int] = []
        longest = 0
        for number in order:
            longest = max(longest, *self._lengths[number])
            # more than once where lengths jump: what is left over may be too much beside a much longer sentence
            while current and longest * (len(current) + 1) > self.max_tokens:
                whole = max(len(current) // MULTIPLE * MULTIPLE, len(current) % MULTIPLE)
                found.append(current[:whole])
                current = current[whole:]
                longest = max((max(self._lengths[n]) for n in (*current, number)), default=0)
            current.append(number)
        return [*found, current] if current else found

    def epoch(self, epoch: int, start: int = 0) -> Iterator[TextBatch]:
        """The minibatches of an epoch from number ``start`` on, in the epoch's own random order."""
        order = torch.randperm(len(self), generator=generator_for(self.seed, "order", epoch)).tolist()
        for number in order[start:]:
            yield self._batch(self.members[number])

    def onwards(self, start: int) -> Iterator[TextBatch]:
        """The minibatches of all epochs, one epoch after the other, from number ``start`` of the first on."""
        for epoch in itertools.count(start // len(self)):
            yield from self.epoch(epoch, start % len(self))
            start = 0

    def plain(self) -> Iterator[TextBatch]:
        """All minibatches once, from the short sentences to the long."""
        yield from map(self._batch, self.members)

    def _batch(self, members: Sequence[int]) -> TextBatch:
        target = [self.target[number] for number in members]
        return TextBatch(
            source=filled([self.source[number] for number in members], self.device),
            previous=filled([[END, *sentence[:-1]] for sentence in target], self.device),
            target=filled(target, self.device),
            tokens=sum(map(len, target)),
        )


def filled(sentences: Sequence[Sequence[int]], device: str = "cpu") -> Tensor:
    """Sentences as rows of a tensor, filled up on the right."""
    longest = max(map(len, sentences))
    rows = [[*sentence, *[PADDING] * (longest - len(sentence))] for sentence in sentences]
    return torch.tensor(rows, device=device)


def token_batches(
    text: ParallelText, subwords: Subwords, max_tokens: int, *, seed: int = 0, device: str = "cpu"
) -> TokenBatches:
    """The minibatches of a text."""
    source = subwords.encoded(text.source, subwords.source)
    target = subwords.encoded(text.target, subwords.target)
    return TokenBatches(source, target, max_tokens, seed, device)
