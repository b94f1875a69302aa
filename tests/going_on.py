"""Runs that are stopped or killed and go on end the same, bit for bit, as those that were left alone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from forked import Script

from lookbehind.training.job import Job
from lookbehind.training.train import Storage, train

TRAIN = """
import sys
from pathlib import Path
from lookbehind.training.train import Storage, train
{made}
storage = Storage(out=Path(sys.argv[1]), checkpoint_minutes=0)
train(run, storage, watch=lambda progress: print(progress.step, flush=True))
"""


def stopped_after_every_step(run: Job, out: Path) -> int:
    """How often it had to be started."""
    straight, stopped = Storage(out=out / "one"), Storage(out=out / "two")
    train(run, straight)
    calls = 0
    while not (stopped.directory(run) / "weights.pt").exists():
        train(run, stopped, stop=lambda: True)
        calls += 1
    _assert_same(run, straight, stopped)
    return calls


def killed(run: Job, out: Path, made: str, steps: Iterable[int]) -> None:
    """After so many steps, each time anew; ``made`` is code that makes the run in another process."""
    straight, stopped = Storage(out=out / "one"), Storage(out=out / "two")
    train(run, straight)
    for count in steps:
        process = Script(TRAIN.format(made=made), str(stopped.out))
        for _ in range(count):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.ended()
        assert process.returncode == -signal.SIGKILL  # and had not ended by itself
    assert not (stopped.directory(run) / "weights.pt").exists()
    train(run, stopped)
    _assert_same(run, straight, stopped)


def _assert_same(run: Job, one: Storage, two: Storage) -> None:
    (told, weights), (others, expected) = outcome(run, one), outcome(run, two)
    assert told == others
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(weights[name], value) if isinstance(value, torch.Tensor) else weights[name] == value
        assert same, name


def outcome(run: Job, storage: Storage) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All records but for the seconds, and what was saved, in one dictionary."""
    directory = storage.directory(run)
    lines = (directory / "records.jsonl").read_text().splitlines()
    told = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
    saved = torch.load(directory / "weights.pt", weights_only=True)
    model = saved.pop("model", {})  # a translator is saved with its subwords
    return told, {**saved, **model}
