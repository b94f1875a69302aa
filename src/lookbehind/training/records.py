"""Records of a run: one JSON object per line, on disk the moment it is known."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lookbehind.data.files import written_whole

Record = dict[str, Any]


def plain(value: Any) -> Any:
    """A number as JSON knows it: None for what is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def line(record: Record) -> str:
    """A record as a line."""
    return json.dumps({key: plain(value) for key, value in record.items()}, allow_nan=False) + "\n"


def read(path: Path) -> list[Record]:
    """The records in a file. A last line that was cut off is left out; damage elsewhere is named."""
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            record = _checked(json.loads(text))
        except (ValueError, KeyError) as error:
            if number == len(lines):  # no newline behind it: the writing was cut off
                break
            raise ValueError(f"{path}, line {number} is not a record ({error})") from error
        records.append(record)
    return records


def _checked(record: Any) -> Record:
    """The record, if it is one of ours."""
    wanted = {"epoch": ("epoch", "step", "test_accuracy"), "end": ("diverged", "test_accuracy", "gradient_evaluations")}
    if not isinstance(record, dict) or record.get("event") not in wanted:
        raise ValueError("no event")
    if missing := [name for name in wanted[record["event"]] if name not in record]:
        raise ValueError(f"no {missing[0]}")
    return record


class Journal:
    """The file of a run's records.

    A training that goes on starts from the records in its checkpoint: lines that came after it are cut off, because
    they will be made again. A file that is not a journal is put aside under another name.
    """

    def __init__(self, path: Path | None, known: Iterable[Record] = ()) -> None:
        self.path = path
        self.records = list(known)
        if path is None:  # another process writes it
            return
        try:
            if path.exists():
                read(path)
        except ValueError:
            path.replace(path.with_name(f"{path.name}.damaged"))
        with written_whole(path) as file:
            file.write("".join(map(line, self.records)).encode())

    def append(self, record: Record) -> None:
        """Write a record, and see to it that it is on the disk."""
        text = line(record)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        self.records.append(json.loads(text))
