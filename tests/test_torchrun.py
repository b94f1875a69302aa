"""``lookbehind train`` under torchrun: DDP and FSDP2 on two processes, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from problems import OLD_TORCH

from lookbehind import cli
from lookbehind.training import loop
from lookbehind.training.parallel import Team
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, load, train

QUICK = ["--epochs", "2", "--batch-size", "100"]
LONGER = ["--method", "lookbehind-sam", "--epochs", "6", "--batch-size", "100", "--lr", "0.02"]  # time to be killed

WAYS = ("ddp",) if OLD_TORCH else ("ddp", "fsdp")


def torchrun(*words, processes=2, wait=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    started = subprocess.Popen(
        [*command, "-m", "lookbehind", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if not wait:
        return started
    shown, _ = started.communicate(timeout=120)
    return started.returncode, shown


def only_run(out):
    (directory,) = (out / "runs").iterdir()
    return directory


def weights_of(directory):
    return torch.load(directory / "weights.pt", weights_only=True)


def distance(a, b):
    learned = [name for name in a if "running" not in name and "tracked" not in name]
    return max(float((a[name].float() - b[name].float()).abs().max()) for name in learned)


def ends(directory):
    return [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same run with DDP and with FSDP2."""
    out = tmp_path_factory.mktemp("torchrun")
    for parallel in WAYS:
        code, shown = torchrun(*LONGER, "--parallel", parallel, "--out", str(out / parallel))
        assert code == 0, shown
        assert shown.count("lookbehind-sam, seed 0:") == 1  # one of them talks
    return out


@pytest.mark.skipif(OLD_TORCH, reason="FSDP2 on the CPU needs torch 2.7")
def test_ddp_and_fsdp_are_the_same_training(trained):
    ddp, fsdp = (only_run(trained / parallel) for parallel in ("ddp", "fsdp"))
    # not to the last bits: FSDP2 needs another memory format, whose sums are rounded otherwise
    assert distance(weights_of(ddp), weights_of(fsdp)) < 1e-3
    one, two = ends(ddp), ends(fsdp)
    assert [record["event"] for record in one] == [*["epoch"] * 6, "end"] == [record["event"] for record in two]
    for a, b in zip(one, two, strict=True):
        assert a["gradient_evaluations"] == b["gradient_evaluations"]
        assert a["test_accuracy"] == pytest.approx(b["test_accuracy"], abs=0.5)
    assert one[0]["loss"] == pytest.approx(two[0]["loss"], rel=1e-5)
    assert one[-1]["gradient_evaluations"] == 6 * 3 * 6
    names = {path.name for path in ddp.iterdir()}
    assert {"run.json", "records.jsonl", "weights.pt", "data.json"} <= names
    assert not any(name.startswith("checkpoint") for name in names)


def test_they_are_measured_like_any_other_run(trained, capsys):
    for parallel in WAYS:
        directory = only_run(trained / parallel)
        assert cli.main(["evaluate", str(directory), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["test_accuracy"] == pytest.approx(ends(directory)[-1]["test_accuracy"], abs=1e-9)


def test_processes_that_climb_apart_are_m_sam_with_their_parts_as_micro_batches(tmp_path):
    code, shown = torchrun(
        "--method", "sam", "--parallel", "ddp", "--ranks", "apart", *QUICK, "--out", str(tmp_path / "two")
    )
    assert code == 0, shown
    run = Run(method="m-sam", micro_batch=50, epochs=2, batch_size=100)
    train(run, Storage(out=tmp_path / "one"))
    one, two = weights_of(only_run(tmp_path / "one")), weights_of(only_run(tmp_path / "two"))
    assert distance(one, two) < 1e-5
    end, expected = ends(only_run(tmp_path / "two"))[-2], ends(only_run(tmp_path / "one"))[-2]
    assert end["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert end["train_accuracy"] == expected["train_accuracy"]


@pytest.mark.skipif(not OLD_TORCH, reason="is for torch below 2.7")
def test_fsdp_on_the_cpu_is_refused_where_torch_is_too_old(tmp_path):
    code, shown = torchrun("--method", "sam", "--parallel", "fsdp", *QUICK, "--out", str(tmp_path))
    assert code != 0
    assert "parallel='fsdp' on the CPU needs torch 2.7 or newer" in " ".join(shown.split())


@pytest.mark.parametrize("parallel", WAYS)
def test_a_killed_process_ends_all_and_the_same_command_goes_on(tmp_path, parallel, trained):
    words = [*LONGER, "--parallel", parallel, "--out", str(tmp_path)]
    started = torchrun(*words, wait=False)
    records = tmp_path / "runs"
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in records.glob("*/records.jsonl")):
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(started.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
    shown, _ = started.communicate(timeout=90)
    assert started.returncode != 0
    assert "SIGKILL" in shown  # torchrun says which process it was
    killed, whole = only_run(tmp_path), only_run(trained / parallel)
    assert not (killed / "weights.pt").exists()
    code, shown = torchrun(*words)
    assert code == 0, shown
    one, two = weights_of(killed), weights_of(whole)
    assert all(torch.equal(one[name], two[name]) for name in two)

    def without_times(directory):
        return [{k: v for k, v in record.items() if k != "seconds"} for record in ends(directory)]

    assert without_times(killed) == without_times(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parallel", "ddp"], "start it with torchrun"),
        (["--ranks", "apart"], "only ddp can climb apart"),
        (["--method", "m-sam", "--parallel", "fsdp"], "give --parallel ddp --ranks apart"),
    ],
)
def test_what_does_not_fit_is_refused(words, message, tmp_path, capsys):
    try:
        code = cli.main(["train", *words, "--out", str(tmp_path)])
    except SystemExit as ended:
        code = ended.code
    shown = capsys.readouterr()
    assert code == 2
    assert message in " ".join((shown.out + shown.err).replace("│", " ").split())


def test_compare_does_not_start_under_torchrun(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert cli.main(["compare", "--out", str(tmp_path)]) == 2
    assert "call it without torchrun" in capsys.readouterr().err


def test_every_process_needs_a_part_of_every_minibatch(monkeypatch):
    run = Run(batch_size=299)  # of 300 images: the last minibatch has one
    monkeypatch.setattr(loop, "team", lambda: Team(0, 2))
    with pytest.raises(
        ValueError, match="2 processes, but the smallest minibatch has 1 image: give another --batch-size"
    ):
        loop.Training(run, load(run, Storage()))


def test_a_checkpoint_of_another_number_of_processes_is_refused():
    run = Run()
    training = loop.Training(run, load(run, Storage()))
    state = training.state()
    state["ranks"] *= 2
    before = training.weights()
    with pytest.raises(ValueError, match=r"a checkpoint of 2 processes, but now there are 1: .* start as many"):
        training.load(state)
    assert all(torch.equal(value, before[name]) for name, value in training.weights().items())
