"""Subwords: byte-pair encoding learned on both languages together, and a dictionary for each of them.

A word is a row of characters of which the last is marked (``d o g</w>``). Every merge joins the most frequent pair of
neighbours: ``o g</w> -> og</w>``. What a language's training text is made of then is its dictionary, as fairseq makes
it: ``<s> <pad> </s> <unk>``, the subwords from the most frequent on, and fill-ins up to a multiple of 8.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from lookbehind.data.kept import digest_of_parts, kept
from lookbehind.data.text import TextData, translation_package

START, PADDING, END, UNKNOWN = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
END_OF_WORD = "</w>"
MULTIPLE = 8  # of the size of a dictionary: matrix products of other sizes are slower on some hardware
LEARNING = 1  # raised when subwords are learned in another way


@dataclass(frozen=True)
class Dictionary:
    """Subwords with their numbers."""

    symbols: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """By subword."""
        return {symbol: number for number, symbol in enumerate(self.symbols)}


@dataclass(frozen=True)
class Subwords:
    """Merges in the order they were learned, and the dictionaries of both languages."""

    merges: tuple[tuple[str, str], ...]
    source: Dictionary
    target: Dictionary

    def encoded(self, lines: Iterable[str], dictionary: Dictionary) -> list[list[int]]:
        """Sentences as numbers, with the end of the sentence."""
        known: dict[str, list[int]] = {}

        def numbers(word: str) -> list[int]:
            if word not in known:
                known[word] = [dictionary.numbers.get(piece, UNKNOWN) for piece in self.pieces(word)]
            return known[word]

        return [[number for word in line.split() for number in numbers(word)] + [END] for line in lines]

    def decoded(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        """Words of the target language from numbers."""
        symbols = self.target.symbols
        rows = ((symbols[n] for n in sentence if n not in (START, PADDING, END)) for sentence in sentences)
        # <unk> is a word of its own
        words = ("".join(f"{s} " if s == SPECIAL[UNKNOWN] else s for s in row) for row in rows)
        return [" ".join(row.replace(END_OF_WORD, " ").split()) for row in words]

    def pieces(self, word: str) -> list[str]:
        """A word in subwords."""
        return [token.value for token in self._model.tokenize(word)]

    @cached_property
    def _model(self) -> Any:
        characters = {character for pair in self.merges for side in pair for character in _characters(side)}
        alone = {s for d in (self.source, self.target) for s in d.symbols[len(SPECIAL) :]}
        symbols = sorted(characters | alone | {side for pair in self.merges for side in pair})
        vocabulary = {symbol: i for i, symbol in enumerate([SPECIAL[UNKNOWN], *symbols])}
        for pair in self.merges:
            vocabulary.setdefault("".join(pair), len(vocabulary))
        return translation_package("tokenizers").models.BPE(
            vocab=vocabulary,
            merges=list(self.merges),
            unk_token=SPECIAL[UNKNOWN],
            end_of_word_suffix=END_OF_WORD,
        )

    def state(self) -> dict[str, Any]:
        """As plain lists."""
        return {
            "merges": [list(pair) for pair in self.merges],
            "source": list(self.source.symbols),
            "target": list(self.target.symbols),
        }

    @classmethod
    def of(cls, state: dict[str, Any]) -> Subwords:
        """From ``state``."""
        merges = tuple((one, other) for one, other in state["merges"])
        return cls(merges, Dictionary(tuple(state["source"])), Dictionary(tuple(state["target"])))


def learned(data: TextData, merges: int) -> Subwords:
    """Subwords of the training text; kept beside it.

    Examples:
        >>> subwords = learned(load_text("multi30k", "data"), 5000)
        >>> subwords.pieces("hundehütte")
        ['hunde', 'hü', 'tte</w>']
    """
    translation_package("tokenizers")
    made_from = digest_of_parts([f"{LEARNING} {version('tokenizers')} {merges}", data.train.digest()])
    path = None if data.cache is None else data.cache / f"subwords-{merges}.json"

    def make() -> dict[str, Any]:
        train = data.train
        learned_merges = tuple(_merges([*train.source, *train.target], merges))
        bare = Subwords(learned_merges, Dictionary(_alphabet(train.source)), Dictionary(_alphabet(train.target)))
        sides = (Dictionary(_symbols(bare, lines)) for lines in (train.source, train.target))
        return Subwords(learned_merges, *sides).state()

    return Subwords.of(kept(path, made_from, make))


def _characters(symbol: str) -> Iterable[str]:
    """That a subword is made of, the last one with its mark if there is one."""
    body = symbol.removesuffix(END_OF_WORD)
    return [*body[:-1], body[-1:] + symbol[len(body) :]]


def _alphabet(lines: Iterable[str]) -> tuple[str, ...]:
    """All characters of the words, in the middle and at their ends, behind the special symbols."""
    words = {word for line in lines for word in line.split()}
    return (*SPECIAL, *sorted({c for word in words for c in _characters(word + END_OF_WORD)}))


def _merges(lines: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges, or as many as there are pairs that occur twice."""
    tokenizers = translation_package("tokenizers")
    # given as special tokens, the marked characters get their numbers in this order; else in a random one, and pairs
    # that are equally frequent would be merged in another order every time
    ends = sorted({word[-1] + END_OF_WORD for line in lines for word in line.split()})

    def model(size: int) -> dict[str, Any]:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix=END_OF_WORD))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=ends,
            end_of_word_suffix=END_OF_WORD,
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
        found: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
        return found

    characters = len(model(0)["vocab"])  # the size counts them too
    return [(one, other) for one, other in model(characters + count)["merges"]]


def _symbols(subwords: Subwords, lines: Iterable[str]) -> tuple[str, ...]:
    """A language's dictionary: by how often they occur, those that are equally frequent in alphabetical order."""
    words = Counter(word for line in lines for word in line.split())
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for piece in subwords.pieces(word):
            counts[piece] += times
    found = [*SPECIAL, *sorted(counts, key=lambda piece: (-counts[piece], piece))]
    filled = -(-len(found) // MULTIPLE) * MULTIPLE
    return (*found, *(f"madeupword{number:04d}" for number in range(filled - len(found))))
