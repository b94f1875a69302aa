"""A run that is stopped, killed or damaged ends with the weights and records of one that was not."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked import Script

from lookbehind.data import files
from lookbehind.data.vision import load as load_data
from lookbehind.training import checkpoint
from lookbehind.training.methods import METHODS
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, train

TRAIN = """
import sys, torch
from pathlib import Path
from torch import nn
from lookbehind import models
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, train

class Dropping(models.ConvNet):  # so that the global random numbers matter
    def forward(self, images):
        return self.head(nn.functional.dropout(self.features(images).mean((2, 3)), 0.5, self.training))

models.MODELS["dropping"] = (Dropping, "")
method, minutes, out = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
settings = dict(k=2, alpha=0.5, epochs=4, batch_size=50, train_images=150, micro_batch=25, pool=2)
run = Run(method=method, model="dropping", **settings)
train(run, Storage(out=out, checkpoint_minutes=minutes), watch=lambda progress: print(progress.step, flush=True))
"""


def outcome(directory: Path) -> tuple[list[dict], dict]:
    """All records but for the seconds, and the weights."""
    lines = (directory / "records.jsonl").read_text().splitlines()
    told = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
    return told, torch.load(directory / "weights.pt", weights_only=True)


def assert_same(one: Path, two: Path) -> None:
    (told, weights), (others, expected) = outcome(one), outcome(two)
    assert told == others
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


def only_run(out: Path) -> Path:
    (directory,) = (out / "runs").iterdir()
    return directory


@pytest.mark.parametrize(
    ("method", "minutes"),
    [("lookahead-sam", 0.0), ("lookbehind-m-asam", 5.0), ("sgd+lookbehind-sam@2", 0.0)],
)
def test_killed_at_random_moments_it_ends_the_same_bit_for_bit(method, minutes, tmp_path):
    """With checkpoints after every step (0 minutes) and only after epochs (5)."""
    whole = Script(TRAIN, method, str(minutes), str(tmp_path / "whole"))
    told = whole.ended()
    assert whole.returncode == 0, told
    chance, kills = random.Random(f"{method} {minutes}"), 0
    for _ in range(40):
        process = Script(TRAIN, method, str(minutes), str(tmp_path / "killed"))
        if kills < 2:
            for _ in range(chance.randrange(1, 6)):  # so many steps, or the end
                process.stdout.readline()
            time.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        told = process.ended()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, told
        kills += 1
    assert kills >= 2
    assert_same(only_run(tmp_path / "killed"), only_run(tmp_path / "whole"))
    left = {path.name for path in only_run(tmp_path / "killed").iterdir()}
    assert left <= {"run.json", "data.json", "records.jsonl", "weights.pt", ".lock"}


def stopping_after(steps: int):
    """Ask to stop after so many steps."""
    asked = iter(range(1, 1000))
    return lambda: next(asked) >= steps


@pytest.mark.parametrize("method", [*METHODS, "sam+sam@1"])
def test_stopped_in_the_middle_of_epochs_every_method_goes_on(method, tmp_path):
    """Also one that takes over from itself, with a wider climb."""
    run = Run(method=method, widen=3.0, k=2, epochs=3, batch_size=50, train_images=100, micro_batch=25, pool=2)
    train(run, Storage(out=tmp_path / "whole"))
    told: list = []
    for _ in range(10):
        told = train(run, Storage(out=tmp_path / "stopped"), stop=stopping_after(1))
        if told and told[-1]["event"] == "end":
            break
    assert told[-1]["event"] == "end"
    assert_same(only_run(tmp_path / "stopped"), only_run(tmp_path / "whole"))


RUN = Run(method="lookbehind-sam", k=2, epochs=4, batch_size=50, train_images=100, pool=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    train(RUN, Storage(out=out))
    return only_run(out)


def interrupted(out: Path, steps: int) -> Path:
    """A run that was stopped, with a checkpoint after every step."""
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count >= steps

    train(RUN, Storage(out=out, checkpoint_minutes=0), stop=stop)
    return only_run(out)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(tmp_path, whole):
    directory = interrupted(tmp_path, 3)
    newest, older = checkpoint.existing(directory)
    damage(newest)
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged.*going on from the one before it"):
        assert checkpoint.load_latest(directory)["training"]["step"] == int(older.name.split("-")[1])
    train(RUN, Storage(out=tmp_path))
    assert_same(directory, whole)


@pytest.mark.parametrize("harm", [damage, lambda p: p.write_bytes(p.read_bytes()[:-100]), lambda p: p.write_bytes(b"")])
def test_without_a_whole_checkpoint_it_starts_again_and_says_so(tmp_path, whole, harm):
    directory = interrupted(tmp_path, 3)
    for path in checkpoint.existing(directory):
        harm(path)
    with (
        pytest.warns(UserWarning, match="is damaged.*going on from the one before it"),
        pytest.warns(UserWarning, match="is damaged.*starting from the beginning"),
    ):
        train(RUN, Storage(out=tmp_path))
    assert_same(directory, whole)


def test_an_error_of_the_disk_does_not_cost_a_checkpoint(tmp_path, monkeypatch):
    directory = interrupted(tmp_path, 3)
    before = checkpoint.existing(directory)

    def failing(path):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing)
        with pytest.raises(OSError, match="Too many open files"):
            checkpoint.load_latest(directory)
    assert checkpoint.existing(directory) == before != []


def test_records_that_are_damaged_are_put_aside_and_made_again(tmp_path, whole):
    directory = interrupted(tmp_path, 3)
    (directory / "records.jsonl").write_bytes(b"\xff\n5\n")
    with pytest.warns(UserWarning, match=r"line 1 is not a record.*goes on from its last checkpoint"):
        train(RUN, Storage(out=tmp_path))
    assert_same(directory, whole)
    assert (directory / "records.jsonl.damaged").read_bytes() == b"\xff\n5\n"


def test_other_images_are_not_mixed_into_a_run(tmp_path, monkeypatch):
    from lookbehind.training import train as module

    interrupted(tmp_path, 3)
    monkeypatch.setattr(module, "load", lambda run, storage: load_data("digits", seed=99))
    with pytest.raises(ValueError, match="was trained on other data than that of digits in data; give another --out"):
        train(RUN, Storage(out=tmp_path))


def test_a_note_of_the_data_that_is_damaged_is_named(tmp_path):
    directory = interrupted(tmp_path, 3)
    (directory / "data.json").write_text('{"train"')
    with pytest.raises(ValueError, match=r"data\.json is damaged; if the data are still those of before, remove it"):
        train(RUN, Storage(out=tmp_path))


def test_it_stops_at_the_end_of_an_epoch_too(tmp_path):
    """With one minibatch per epoch there is no other moment."""
    told = train(Run(batch_size=300, epochs=3), Storage(out=tmp_path), stop=lambda: True)
    assert [record["epoch"] for record in told] == [1]


def test_lines_after_the_last_checkpoint_are_cut_off(tmp_path, whole):
    directory = interrupted(tmp_path, 3)
    with (directory / "records.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epoch": 99, "step": 99, "test_accuracy": 1.0}\n{"event": "en')
    train(RUN, Storage(out=tmp_path))
    assert_same(directory, whole)


def test_a_full_disk_keeps_what_was_there(tmp_path, whole, monkeypatch):
    directory = interrupted(tmp_path, 3)
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".pt"}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match=r"could not be written \(No space left"):
            checkpoint.save(directory, 4, {"a": 1})
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".pt"} == before
    assert not list(directory.glob(".*.part"))
    train(RUN, Storage(out=tmp_path))
    assert_same(directory, whole)


def test_two_processes_do_not_train_the_same_run(tmp_path):
    script = f"""
import time
from filelock import FileLock
with FileLock({str(tmp_path / "runs" / RUN.id / ".lock")!r}):
    print("held", flush=True)
    time.sleep(60)
"""
    (tmp_path / "runs" / RUN.id).mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RuntimeError, match="another process is training this run"):
            train(RUN, Storage(out=tmp_path))
    finally:
        holder.kill()
        holder.communicate()


def test_a_checkpoint_is_read_without_executing_anything(tmp_path):
    """A foreign file under a right name: torch refuses it, and nothing runs."""
    import hashlib
    import pickle

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    content = pickle.dumps(Hostile(), protocol=2)
    path = tmp_path / f"checkpoint-1-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a checkpoint of a run"):
        checkpoint.load(path)
    assert not (tmp_path / "executed").exists()
