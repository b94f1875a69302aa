"""Parallel text: Multi30k and IWSLT'14 German-English from their official files, and a small corpus that is generated.

Text is tokenised as Moses does it and lower-cased. Files are read as text; nothing in them is executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from lookbehind.data.files import unpack
from lookbehind.data.kept import digest_of_parts, kept
from lookbehind.data.number_words import number_sentences

PREPARATION = 1  # raised when text is prepared in another way, so that what was kept is made again


def translation_package(name: str) -> Any:
    """A package of the extra ``translation``, or an error that names the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"translation needs {name}: pip install 'lookbehind[translation]'", name=name) from error


@dataclass(frozen=True)
class ParallelText:
    """Sentences in two languages: words with blanks between them, tokenised and lower-case."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    written: tuple[tuple[str, str], ...] = ()
    """The same pairs as they were written; training text has none."""

    def __len__(self) -> int:
        return len(self.source)

    def digest(self) -> str:
        """Tells this text from others."""
        return digest_of_parts(chain(self.source, self.target, *self.written))

    def __getitem__(self, part: slice) -> ParallelText:
        return ParallelText(self.source[part], self.target[part], self.written[part])


@dataclass(frozen=True)
class TextData:
    """Parallel text to train, choose and test on."""

    train: ParallelText
    validation: ParallelText
    test: ParallelText
    languages: tuple[str, str] = ("de", "en")
    cache: Path | None = None
    """A directory for what is learned from the text."""


# --- preparing


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Moses's tokens with blanks between them, special characters escaped as its script does, in lower case."""
    moses = translation_package("sacremoses").MosesTokenizer(lang=language)
    return [moses.tokenize(line, return_str=True, escape=True).lower() for line in lines]


def detokenised(lines: Iterable[str], language: str) -> list[str]:
    """Text as people write it from Moses's tokens; it stays in lower case."""
    moses = translation_package("sacremoses").MosesDetokenizer(lang=language)
    return [moses.detokenize(line.split()) for line in lines]


Pair = tuple[str, str]


def cleaned(pairs: Iterable[Pair], *, longest: int = 175, ratio: float = 1.5) -> Iterator[int]:
    """Which pairs Moses's clean-corpus-n keeps: 1 to ``longest`` words, neither side over ``ratio`` times the other."""
    for number, pair in enumerate(pairs):
        one, other = (len(text.split()) for text in pair)
        if min(one, other) >= 1 and max(one, other) <= min(longest, ratio * min(one, other)):
            yield number


# --- readers


def _read_lines(path: Path) -> list[str]:
    """Of a file, which may end without a newline; a form feed or a separator in a line does not end it."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error.reason} at byte {error.start}); fetch it again") from error
    return text.removesuffix("\n").split("\n")


def _read_pairs(directory: Path, names: Sequence[str], lines: Callable[[Path], list[str]]) -> list[Pair]:
    """The pairs of a German and an English file."""
    both = [lines(directory / name) for name in names]
    if len(both[0]) != len(both[1]):
        raise ValueError(
            f"{directory}: {names[0]} has {len(both[0]):,} lines and {names[1]} {len(both[1]):,}, but they should be "
            "pairs; fetch them again"
        )
    return list(zip(*both, strict=True))


def _tokenised_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    german, english = zip(*pairs, strict=True)
    return list(zip(tokenised(german, "de"), tokenised(english, "en"), strict=True))


def _part(pairs: Sequence[Pair], written: Sequence[Pair] = ()) -> dict[str, Any]:
    """As it is kept."""
    source, target = zip(*pairs, strict=True) if pairs else ((), ())
    return {"source": source, "target": target, "written": [list(pair) for pair in written]}


def _data(parts: dict[str, Any], cache: Path | None = None) -> TextData:
    def text(part: dict[str, Any]) -> ParallelText:
        return ParallelText(tuple(part["source"]), tuple(part["target"]), tuple((a, b) for a, b in part["written"]))

    return TextData(text(parts["train"]), text(parts["validation"]), text(parts["test"]), cache=cache)


def _prepared(directory: Path, files: Sequence[str], make: Callable[[], dict[str, Any]]) -> TextData:
    """The parts that ``make`` returns, from files that take long to tokenise, or as they were kept."""
    translation_package("sacremoses")
    contents = ((directory / name).read_bytes() for name in files)
    made_from = digest_of_parts([f"{PREPARATION} {version('sacremoses')}", *contents])
    return _data(kept(directory / "prepared.json", made_from, make), directory)


def _missing(directory: Path, files: Sequence[str], remedy: str) -> None:
    absent = [name for name in files if not (directory / name).is_file()]
    if absent:
        some = f"{', '.join(absent[:3])}{' ...' if len(absent) > 3 else ''}"
        raise FileNotFoundError(f"looked in {directory} for {some}. {remedy}, or name its directory (--data-dir)")


MULTI30K = {
    part: (f"{name}.de", f"{name}.en")
    for part, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr"))
}


def _multi30k(directory: Path) -> TextData:
    folder = directory / "multi30k"
    files = [*chain.from_iterable(MULTI30K.values())]
    _missing(
        folder,
        files,
        "Put the raw text of task 1 there, unpacked, from https://github.com/multi30k/dataset (data/task1/raw)",
    )

    def make() -> dict[str, Any]:
        pairs = {part: _read_pairs(folder, names, _read_lines) for part, names in MULTI30K.items()}
        words = {part: _tokenised_pairs(found) for part, found in pairs.items()}
        return {part: _part(words[part], pairs[part] if part != "train" else ()) for part in pairs}

    return _prepared(folder, files, make)


TAGGED = tuple(f"train.tags.de-en.{language}" for language in ("de", "en"))
TESTS = tuple(
    tuple(f"IWSLT14.{name}.de-en.{language}.xml" for language in ("de", "en"))
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
)
EVERY = 23  # such line of the training text is held out


def tagged_lines(path: Path) -> list[str]:
    """Of a file of tagged talks: without the lines of addresses, numbers and keywords, titles without their tags."""
    dropped = ("<url>", "<talkid>", "<keywords>")
    lines = (line for line in _read_lines(path) if not any(tag in line for tag in dropped))
    return [re.sub("</?(title|description)>", "", line) for line in lines]


def segment_lines(path: Path) -> list[str]:
    """Of an XML file of segments, each on a line of its own; a typographic apostrophe becomes a plain one."""
    lines = (line for line in _read_lines(path) if "<seg id" in line)
    bare = (re.sub(r'<seg id="[0-9]*">\s*|\s*</seg>\s*', "", line) for line in lines)
    return [line.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") for line in bare]


def _iwslt14(directory: Path) -> TextData:
    folder, archive = directory / "iwslt14" / "de-en", directory / "iwslt14" / "de-en.tgz"
    if not folder.exists() and archive.exists():
        unpack(archive, archive.parent)
    files = [*TAGGED, *chain.from_iterable(TESTS)]
    _missing(
        folder,
        files,
        f"Put the archive https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz into {archive.parent}",
    )

    def make() -> dict[str, Any]:
        pairs = _read_pairs(folder, TAGGED, tagged_lines)
        words = _tokenised_pairs(pairs)
        numbers = list(cleaned(words))
        held_out = numbers[EVERY - 1 :: EVERY]
        trained = [number for place, number in enumerate(numbers, 1) if place % EVERY]
        tests = [pair for names in TESTS for pair in _read_pairs(folder, names, segment_lines)]
        return {
            "train": _part([words[n] for n in trained]),
            "validation": _part([words[n] for n in held_out], [pairs[n] for n in held_out]),
            "test": _part(_tokenised_pairs(tests), tests),
        }

    return _prepared(folder, files, make)


# --- a corpus by rule

TOY_SIZES = {"train": 600, "validation": 60, "test": 60}


def _toy(directory: Path) -> TextData:
    pairs = number_sentences(sum(TOY_SIZES.values()))
    words, parts, start = _tokenised_pairs(pairs), {}, 0
    for name, size in TOY_SIZES.items():
        end = start + size
        parts[name] = _part(words[start:end], pairs[start:end] if name != "train" else ())
        start = end
    return _data(parts)


@dataclass(frozen=True)
class Corpus:
    """How a corpus is read."""

    read: Callable[[Path], TextData]
    about: str


CORPORA: dict[str, Corpus] = {
    "toy-translation": Corpus(_toy, "720 pairs with numbers in words, German to English, generated by rule"),
    "multi30k": Corpus(_multi30k, "29,000 pairs that describe pictures, German to English; obtained by hand"),
    "iwslt14": Corpus(_iwslt14, "160,239 pairs of talks, German to English, as the paper has them; obtained by hand"),
}


def load_text(name: str, directory: str | Path = "data") -> TextData:
    """Read parallel text from its official files.

    Args:
        name: one of ``CORPORA``.
        directory: where the files are, in their official layout.

    Examples:
        >>> data = load_text("multi30k", "data")
        >>> data.train.source[0]
        'zwei junge weiße männer sind im freien in der nähe vieler büsche .'
    """
    if name not in CORPORA:
        raise ValueError(f"data={name!r}: choose one of {', '.join(CORPORA)}")
    return CORPORA[name].read(Path(directory))
