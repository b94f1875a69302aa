"""Parallel text: read from the official layouts, cleaned, split into subwords, put into minibatches of tokens."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tarfile
from collections import Counter

import pytest

from lookbehind.data import text
from lookbehind.data.kept import kept
from lookbehind.data.number_words import english_number, german_number, number_sentences
from lookbehind.data.sentences import TokenBatches, token_batches
from lookbehind.data.subwords import END, END_OF_WORD, PADDING, SPECIAL, UNKNOWN, Subwords, learned
from lookbehind.data.text import ParallelText, TextData, load_text

# --- corpora


@pytest.mark.parametrize(
    ("number", "german", "english"),
    [
        (0, "null", "zero"),
        (16, "sechzehn", "sixteen"),
        (21, "ein und zwanzig", "twenty one"),
        (30, "dreißig", "thirty"),
        (101, "ein hundert eins", "one hundred one"),
        (500, "fünf hundert", "five hundred"),
        (731, "sieben hundert ein und dreißig", "seven hundred thirty one"),
    ],
)
def test_numbers_in_words(number, german, english):
    assert (german_number(number), english_number(number)) == (german, english)


def test_the_generated_corpus_has_no_sentence_twice():
    data = load_text("toy-translation")
    assert (len(data.train), len(data.validation), len(data.test)) == (600, 60, 60)
    assert len({*data.train.source, *data.validation.source, *data.test.source}) == 720
    assert len(set(number_sentences(998 * 15))) == 998 * 15  # all there are
    assert data.test.written[0] == (
        "Ich sehe ein hundert sechs und dreißig Hunde.",
        "I see one hundred thirty six dogs.",
    )
    assert data.test.source[0] == "ich sehe ein hundert sechs und dreißig hunde ."


@pytest.fixture
def multi30k(tmp_path):
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name, lines in {"train": 30, "val": 4, "test_2016_flickr": 5}.items():
        (folder / f"{name}.de").write_text("".join(f"Ein Mann, {i} Hunde.\n" for i in range(lines)))
        (folder / f"{name}.en").write_text(
            "\n".join(f"A man's {i} dogs." for i in range(lines))
        )  # no newline at the end
    return folder


def test_multi30k_from_its_files(multi30k):
    data = load_text("multi30k", multi30k.parent)
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 4, 5)
    assert data.train.source[1] == "ein mann , 1 hunde ."
    assert data.train.target[1] == "a man &apos;s 1 dogs ."
    assert data.train.written == ()
    assert data.test.written[4] == ("Ein Mann, 4 Hunde.", "A man's 4 dogs.")


def test_prepared_text_is_kept_until_the_files_change(multi30k, monkeypatch):
    first = load_text("multi30k", multi30k.parent)
    with monkeypatch.context() as patched:
        patched.setattr(text, "tokenised", lambda *_: pytest.fail("prepared again"))
        assert load_text("multi30k", multi30k.parent) == first
    (multi30k / "prepared.json").write_bytes((multi30k / "prepared.json").read_bytes()[:-9])  # damaged
    assert load_text("multi30k", multi30k.parent) == first
    (multi30k / "val.de").write_text("Vier\nFünf\nSechs\nSieben\n")
    assert load_text("multi30k", multi30k.parent).validation.source[0] == "vier"


def test_what_is_kept_must_be_whole_and_of_the_same_input(tmp_path):
    path = tmp_path / "kept.json"
    assert kept(path, "a", lambda: {"x": ["ä"]}) == {"x": ["ä"]}
    assert kept(path, "a", lambda: pytest.fail("made again")) == {"x": ["ä"]}
    assert kept(path, "b", lambda: {"x": [1]}) == {"x": [1]}
    path.write_text(path.read_text().replace("[1]", "[2]"))
    assert kept(path, "b", lambda: {"x": [1]}) == {"x": [1]}
    assert kept(tmp_path / "nowhere" / "kept.json", "a", lambda: 3) == 3  # cannot be written: made every time
    assert kept(None, "a", lambda: 3) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["kept.json"]


def iwslt14(directory, pairs: int = 70) -> None:
    """The official archive in small: talks with tags, and five test files of two segments each."""
    folder = directory / "de-en"
    folder.mkdir(parents=True)
    for language, word in (("de", "Wort"), ("en", "word")):
        lines = [
            "<url>http://www.ted.com/talks/1</url>",
            "<keywords>talks, art</keywords>",
            "<talkid>1</talkid>",
            f"<title>Der Titel {word}</title>",
            f"<description>Eine {word} Beschreibung.</description>",
        ]
        lines += [f" {word} {i}, ja. " for i in range(pairs)]
        lines += ["Drei kleine Worte" if language == "de" else "five words that are longer"]  # over 1.5 times
        lines += ["Drei kleine Worte" if language == "de" else "these are four words"]  # not over
        lines += ["", "z " * (176 if language == "de" else 170), "y " * 175]
        (folder / f"train.tags.de-en.{language}").write_text("\n".join(lines) + "\n")
        for names in text.TESTS:
            name = names[0 if language == "de" else 1]
            apostrophe = "\N{RIGHT SINGLE QUOTATION MARK}"
            first = f'<seg id="1"> {name[8:15]} it{apostrophe}s {word}. </seg>'
            body = f'<doc>\n{first}\n<seg id="22">Zwei</seg>\n</doc>\n'
            (folder / name).write_text(body)


def test_iwslt14_is_prepared_as_fairseq_does_it(tmp_path):
    place = tmp_path / "iwslt14"
    iwslt14(place)
    with tarfile.open(place / "de-en.tgz", "w:gz") as archive:
        archive.add(place / "de-en", "de-en")
    (place / "de-en").rename(tmp_path / "aside")  # it is unpacked
    data = load_text("iwslt14", tmp_path)
    german = ["der titel wort", "eine wort beschreibung .", *(f"wort {i} , ja ." for i in range(70))]
    german += ["drei kleine worte", " ".join("y" * 175)]
    held_out = german[22::23]
    assert list(data.validation.source) == held_out == ["wort 20 , ja .", "wort 43 , ja .", "wort 66 , ja ."]
    assert list(data.train.source) == [line for line in german if line not in held_out]
    assert data.train.target[-2] == "these are four words"
    assert data.validation.written[0] == (" Wort 20, ja. ", " word 20, ja. ")
    names = ["ted.dev", "tedx.de", "ted.tst", "ted.tst", "ted.tst"]
    assert list(data.test.source[::2]) == [f"{name} it &apos; s wort ." for name in names]  # by the rules of German
    assert list(data.test.target) == [line for name in names for line in (f"{name} it &apos;s word .", "zwei")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("multi30k", ("multi30k for train.de, train.en, val.de ...", "github.com/multi30k", "--data-dir")),
        ("iwslt14", ("iwslt14/de-en for train.tags.de-en.de", "de-en.tgz into", "--data-dir")),
    ],
)
def test_missing_files_are_named_with_the_remedy(name, words, tmp_path):
    with pytest.raises(FileNotFoundError) as told:
        load_text(name, tmp_path)
    for part in words:
        assert part in str(told.value)


def test_files_that_are_no_pairs_are_named(multi30k):
    (multi30k / "val.en").write_text("Only one\n")
    with pytest.raises(ValueError, match=r"val\.de has 4 lines and val\.en 1"):
        load_text("multi30k", multi30k.parent)
    (multi30k / "val.en").write_bytes(b"caf\xe9\n" * 4)
    with pytest.raises(ValueError, match=r"val\.en: not text in UTF-8"):
        load_text("multi30k", multi30k.parent)
    with pytest.raises(ValueError, match="data='wmt': choose one of toy-translation, multi30k, iwslt14"):
        load_text("wmt")


# --- subwords


@pytest.fixture(scope="module")
def toy() -> TextData:
    return load_text("toy-translation")


def pairs_of(words: Counter) -> Counter:
    counts: Counter = Counter()
    for symbols, times in words.items():
        for pair in itertools.pairwise(symbols):
            counts[pair] += times
    return counts


def merged(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for symbol in symbols:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
            symbol = None
        if symbol is not None:
            out.append(symbol)
    return tuple(out)


def test_every_merge_joins_the_most_frequent_pair(toy):
    """Against the algorithm written out: characters, the last one marked; count pairs; join; again."""
    lines = [*toy.train.source, *toy.train.target]
    counted = Counter(word for line in lines for word in line.split())
    words = Counter({(*word[:-1], word[-1] + END_OF_WORD): times for word, times in counted.items()})
    subwords = learned(toy, 80)
    assert len(subwords.merges) == 80
    for pair in subwords.merges:
        counts = pairs_of(words)
        assert counts[pair] == max(counts.values()) >= 2
        words = Counter({merged(symbols, pair): times for symbols, times in words.items()})
    for symbols in words:  # and words are split in the same way when it is applied
        word = "".join(symbols).removesuffix(END_OF_WORD)
        assert tuple(subwords.pieces(word)) == symbols


def test_subwords_are_the_same_in_every_process(toy):
    code = (
        "from lookbehind.data.subwords import learned; from lookbehind.data.text import load_text; import json;"
        "print(json.dumps(learned(load_text('toy-translation'), 90).state()))"
    )
    here = learned(toy, 90).state()
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert json.loads(there) == here


def test_a_dictionary_has_what_its_language_uses_and_a_multiple_of_8(toy):
    subwords = learned(toy, 60)
    for dictionary, lines in ((subwords.source, toy.train.source), (subwords.target, toy.train.target)):
        counts = Counter(piece for line in lines for word in line.split() for piece in subwords.pieces(word))
        own = dictionary.symbols[4:][: len(counts)]
        assert dictionary.symbols[:4] == SPECIAL
        assert list(own) == sorted(counts, key=lambda piece: (-counts[piece], piece))
        fill = dictionary.symbols[4 + len(counts) :]
        assert [*fill] == [f"madeupword{i:04d}" for i in range(len(fill))]
        assert len(fill) < 8
        assert len(dictionary) % 8 == 0
    assert subwords.source.symbols != subwords.target.symbols


def test_text_is_what_it_was_after_encoding_and_decoding(toy):
    subwords = learned(toy, 60)
    encoded = subwords.encoded(toy.train.target, subwords.target)
    assert all(sentence[-1] == END and UNKNOWN not in sentence for sentence in encoded)
    assert subwords.decoded(encoded) == list(toy.train.target)
    assert subwords.encoded(["hunde Ω"], subwords.source)[0][-2:] == [UNKNOWN, END]
    assert subwords.decoded([[UNKNOWN, *encoded[0]]])[0] == f"<unk> {toy.train.target[0]}"
    assert Subwords.of(json.loads(json.dumps(subwords.state()))) == subwords


def test_subwords_are_kept_beside_the_text(toy, tmp_path, monkeypatch):
    data = TextData(toy.train, toy.validation, toy.test, cache=tmp_path)
    first = learned(data, 30)
    monkeypatch.setattr("lookbehind.data.subwords._merges", lambda *_: pytest.fail("learned again"))
    assert learned(data, 30) == first
    assert [file.name for file in tmp_path.iterdir()] == ["subwords-30.json"]
    other = TextData(toy.validation, toy.validation, toy.test, cache=tmp_path)
    with pytest.raises(pytest.fail.Exception):
        learned(other, 30)


def test_more_merges_than_there_are_pairs_are_no_error():
    few = ParallelText(("a b ab ab",), ("ab a",))
    assert learned(TextData(few, few, few), 1000).merges == (("a", "b</w>"),)


# --- minibatches


@pytest.fixture(scope="module")
def batches(toy) -> TokenBatches:
    return token_batches(toy.train, learned(toy, 60), 512, seed=3)


def test_an_epoch_has_every_sentence_once(batches):
    for epoch in (0, 1):
        targets = [row[row != PADDING].tolist() for batch in batches.epoch(epoch) for row in batch.target]
        assert sorted(targets) == sorted(map(list, batches.target))
    assert len(list(batches.epoch(0))) == len(batches)


def test_a_minibatch_is_full_but_not_over(batches):
    for members in batches.members:
        longest = max(max(len(batches.source[n]), len(batches.target[n])) for n in members)
        assert longest * len(members) <= 512
        assert len(members) % 8 == 0 or len(members) < 8 or members is batches.members[-1]
    sizes = [sum(len(batches.source[n]) for n in members) for members in batches.members[:-1]]
    assert sum(sizes) / len(sizes) > 0.7 * 512  # sentences of about the same length are together


def test_a_minibatch_is_not_over_where_lengths_jump():
    """Sorted by source, the targets of neighbours can differ by much."""
    batches = TokenBatches([[7] * 10] * 16, [[7] * 10] * 15 + [[7] * 100], 150)
    assert sorted(n for members in batches.members for n in members) == list(range(16))
    for members in batches.members:
        assert max(len(batches.target[n]) for n in members) * len(members) <= 150


def test_minibatches_follow_from_seed_epoch_and_number(toy, batches):
    again = TokenBatches(batches.source, batches.target, 512, seed=3)
    everything = [batch.target for epoch in (0, 1, 2) for batch in batches.epoch(epoch)]
    for start in (0, 1, len(batches) - 1, len(batches), len(batches) + 2):
        for expected, batch in zip(everything[start:], again.onwards(start), strict=False):
            assert batch.target.equal(expected)
    first = [batch.target.tolist() for batch in batches.epoch(0)]
    assert first != [batch.target.tolist() for batch in batches.epoch(1)]
    other = TokenBatches(batches.source, batches.target, 512, seed=4)
    assert first != [batch.target.tolist() for batch in other.epoch(0)]
    assert batches.members != other.members


def test_the_decoder_sees_the_target_one_place_later(batches):
    batch = next(batches.epoch(0))
    assert batch.previous[:, 0].tolist() == [END] * len(batch.target)
    ends = batch.target.eq(END)
    assert ends.sum(1).tolist() == [1] * len(batch.target)
    seen, wanted = batch.previous[:, 1:], batch.target[:, :-1]
    assert (seen.eq(wanted) | ends[:, :-1]).all()
    assert seen[ends[:, :-1]].eq(PADDING).all()
    assert batch.tokens == int(batch.target.ne(PADDING).sum())


def test_a_sentence_that_is_too_long_for_a_minibatch_is_named(toy):
    with pytest.raises(ValueError, match="max_tokens=8: the longest sentence has"):
        token_batches(toy.train, learned(toy, 60), 8)


# --- without the extra

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sacremoses", "tokenizers", "sacrebleu"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import lookbehind.cli
sys.exit(lookbehind.cli.main(["translation", "--out", sys.argv[1]]))
"""


def test_without_the_extra_the_command_line_works_and_translation_names_it(tmp_path):
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "translation needs sacremoses: pip install 'lookbehind[translation]'" in done.stderr
