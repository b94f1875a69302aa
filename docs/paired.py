"""Differences of two methods in kept records, paired by seed, each with its 95 % t-interval.

    python docs/paired.py docs/results/laptop-convnet/records/frontier.jsonl.gz 5 lookbehind-sam:rho=0.05 sam:rho=0.1

The number is the first seed that counts, for those before chose the settings. Settings are those of run.json, as many
as it takes to say which runs are meant. Pages judge a claim by an error that is estimated from all their rows; this is
the simpler question, of two rows alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from records import RECORDS, kept

from lookbehind.experiments.differences import Difference, difference
from lookbehind.experiments.paper.figure4 import robustness
from lookbehind.experiments.paper.findings import Outcome
from lookbehind.experiments.table import counted, setting, signed

WHAT = {
    "test accuracy": lambda outcome: outcome.end["test_accuracy"],
    "with BatchNorm re-estimated": lambda outcome: outcome.end.get("recalibrated_test_accuracy"),
    "with noise": robustness,
}


def outcomes(file: Path, first_seed: int, text: str) -> dict[int, Outcome]:
    """The runs of a method by their seeds; of its settings those count that are given: sam:rho=0.1."""
    method, settings = _parsed(text)
    runs = [one for one in kept(file) if "method" in one.get("run.json", {})]
    every = [one for one in runs if one["run.json"]["method"] == method]
    if not every:
        there = ", ".join(sorted({one["run.json"]["method"] for one in runs})) or "none"
        raise SystemExit(f"{text}: {file} has no run of {method!r}; its methods: {there}")
    if unknown := settings.keys() - {key for one in every for key in one["run.json"]}:
        known = ", ".join(sorted({key for one in every for key in one["run.json"]}))
        raise SystemExit(f"{text}: no run of {method} has {', '.join(sorted(unknown))}; there are {known}")
    found: dict[int, Outcome] = {}
    for one in every:
        run = one["run.json"]
        if run["seed"] < first_seed or any(setting(run.get(key)) != value for key, value in settings.items()):
            continue
        if run["seed"] in found:
            other: Any = found[run["seed"]].run
            differing = ", ".join(key for key in run if run[key] != other.get(key))
            raise SystemExit(f"{text}: {file} has several such runs of seed {run['seed']}; say which {differing}")
        found[run["seed"]] = Outcome(run, one[RECORDS], one.get("measures.json", {}))
    if not found:
        raise SystemExit(f"{text}: {file} has no such run from seed {first_seed} on")
    return found


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    """A method and its settings, numbers as ``setting`` writes them."""
    method, _, given = text.partition(":")
    settings = {}
    for pair in filter(None, given.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value):
            raise SystemExit(f"{text}: {pair!r} is no setting; write rho=0.1")
        settings[key] = setting(_value(value))
    return method, settings


def _value(text: str) -> object:
    """A number, something else that JSON knows (false, null), or the text itself."""
    for read in (float, json.loads):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def paired(file: Path, first_seed: int, above: str, below: str) -> dict[str, Difference]:
    """What ``above`` has more than ``below``, of everything that was measured."""
    ours, theirs = (outcomes(file, first_seed, text) for text in (above, below))
    found = {}
    for what, value in WHAT.items():
        rows = [{"seeds": [*some], "accuracy": {"values": [*map(value, some.values())]}} for some in (ours, theirs)]
        known = difference(*rows)  # type: ignore[arg-type]
        if known is not None:
            found[what] = known
    if not found:
        raise SystemExit(f"{above} and {below}: no common seed from {first_seed} on")
    return found


def in_words(found: Difference) -> str:
    """Mean and half of the interval."""
    return signed(found.mean) + ("" if found.margin is None else f" ± {found.margin:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="a file that docs/records.py packed")
    parser.add_argument("first_seed", type=int, help="the first seed that counts")
    parser.add_argument("above", help="a method with its settings")
    parser.add_argument("below", help="the one that is subtracted")
    given = parser.parse_args()
    for what, one in paired(given.records, given.first_seed, given.above, given.below).items():
        print(f"{what:28} {in_words(one)}, {counted(one.seeds, 'seed')}")
