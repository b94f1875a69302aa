"""Which settings a search has chosen for the rows of a table, as a file that another machine can go on from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookbehind.data.files import written_whole
from lookbehind.experiments.paper.grid import Arm

Chosen = Mapping[str, Mapping[str, Mapping[str, str]]]
"""By the key of the task, the protocol and the name of the row: a method with its settings."""


@dataclass(frozen=True)
class Choices:
    """What searches have chosen before, for one table."""

    experiment: str
    chosen: Chosen = field(default_factory=dict)
    like: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Rows whose settings were not searched but taken from another row, by the key of the task: row, other row."""

    def of(self, task: str, protocol: str, row: str) -> str | None:
        """The method with its settings; None where nothing was chosen."""
        return self.chosen.get(task, {}).get(protocol, {}).get(row)

    def check(self, tasks: Mapping[str, Iterable[Arm]], protocols: Collection[str], file: Path) -> None:
        """Do the tasks and rows exist, and are these settings among those that they are searched over?"""
        candidates = {key: {arm.name: arm.candidates for arm in arms} for key, arms in tasks.items()}

        def candidates_of(key: str, row: str) -> tuple[str, ...]:
            if row not in candidates.get(key, {}):
                raise ValueError(f"choices={file}: {self.experiment} has no row {row!r} on {key!r} at this scale")
            return candidates[key][row]

        for key, protocol, row, one in self._each():
            if protocol not in protocols:
                raise ValueError(f"choices={file}: {protocol!r} is no protocol; there are {', '.join(protocols)}")
            known = candidates_of(key, row)
            if one not in known:
                raise ValueError(f"choices={file}: {one!r} is none of the settings of {row!r}: {', '.join(known)}")
        for key, borrowed in self.like.items():
            for row, other in borrowed.items():
                candidates_of(key, row)
                candidates_of(key, other)
                self._check_taken(key, row, other, file)

    def _check_taken(self, key: str, row: str, other: str, file: Path) -> None:
        """One of the two may have a setting more; those that both have are the same."""
        if row == other:
            raise ValueError(f"choices={file}: {row!r} is like itself; name the row that its settings are of")
        for protocol in self.chosen.get(key, {}):
            mine, theirs = self.of(key, protocol, row), self.of(key, protocol, other)
            if mine is None or theirs is None:
                continue
            settings = [set(one.partition(":")[2].split(",")) for one in (mine, theirs)]
            if not (settings[0] <= settings[1] or settings[1] <= settings[0]):
                raise ValueError(
                    f"choices={file}: {row!r} is said to have the settings of {other!r}, but it has {mine!r} where "
                    f"that has {theirs!r}; choose those, or take {row!r} out of 'like'"
                )

    def _each(self) -> Iterator[tuple[str, str, str, str]]:
        for key, protocols in self.chosen.items():
            for protocol, rows in protocols.items():
                for row, one in rows.items():
                    yield key, protocol, row, one


NOTHING = Choices("")


def read_choices(file: Path) -> Choices:
    """The choices in a file that ``write_choices`` wrote."""
    try:
        found: Any = json.loads(Path(file).read_text())
        choices = Choices(str(found["experiment"]), found["chosen"], found.get("like", {}))
        borrowed = [pair for rows in choices.like.values() for pair in rows.items()]
        if not all(isinstance(word, str) for words in (*choices._each(), *borrowed) for word in words):
            raise TypeError("a name that is no text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"choices={file}: cannot be read ({type(error).__name__}: {error}); give a choices.json that "
            "`lookbehind reproduce` wrote"
        ) from error
    return choices


def write_choices(file: Path, choices: Choices) -> None:
    """As a file; rows that it has and of which nothing is known now stay, for the runs of their search may be gone."""
    before = read_choices(file) if file.exists() else NOTHING
    chosen = {
        task: {
            protocol: {**before.chosen.get(task, {}).get(protocol, {}), **rows}
            for protocol, rows in choices.chosen[task].items()
        }
        for task in choices.chosen
    }
    like: dict[str, dict[str, str]] = {}
    for task, protocols in choices.chosen.items():
        new = {row for rows in protocols.values() for row in rows}  # chosen now: what was said of them before is over
        kept = {row: other for row, other in before.like.get(task, {}).items() if row not in new}
        if marked := {**kept, **choices.like.get(task, {})}:
            like[task] = marked
    found = {"experiment": choices.experiment, "chosen": chosen, **({"like": like} if like else {})}
    with written_whole(file) as out:
        out.write(json.dumps(found, indent=2).encode() + b"\n")
