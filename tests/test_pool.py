"""Runs in processes: workers that fail, are killed or interrupted, their environment, a script without guard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from quick import QUICK, without_seconds

from lookbehind.experiments import pool
from lookbehind.experiments.compare import Comparison, compare
from lookbehind.experiments.pool import Ended, run_all
from lookbehind.training.run import Run
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage, train


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    def failing(run, *args, **kwargs):
        if run.method == "sam":
            raise MemoryError("no more")
        return train(run, *args, **kwargs)

    monkeypatch.setattr(pool, "train", failing)
    comparison = Comparison(methods=("sam", "sgd"), seeds=1, jobs=1, settings=QUICK, storage=Storage(out=tmp_path))
    rows = compare(comparison)
    assert [r["method"] for r in rows] == ["sgd"]
    notices = json.loads((tmp_path / "comparison.json").read_text())["notices"]
    assert notices == [
        "sam, seed 0: MemoryError: no more",
        "1 of 2 runs are not finished: start again with the same command to go on",
        "sam has no finished run: differences are to sgd in its place",
    ]


def test_a_warning_of_a_run_is_told_once(tmp_path, monkeypatch):
    def warning(run, *args, **kwargs):
        import warnings

        warnings.warn("mind this", stacklevel=1)
        return train(run, *args, **kwargs)

    monkeypatch.setattr(pool, "train", warning)
    told = []
    comparison = Comparison(methods=("sgd",), seeds=2, jobs=1, settings=QUICK, storage=Storage(out=tmp_path))
    compare(comparison, told.append)
    assert [t.text for t in told if isinstance(t, pool.Notice)] == ["mind this"]
    assert json.loads((tmp_path / "comparison.json").read_text())["notices"] == ["mind this"]


def test_a_worker_that_is_killed_is_told_of(tmp_path):
    run = Run(method="lookbehind-sam", epochs=1000)
    told = []

    def tell(what):
        told.append(what)
        if isinstance(what, pool.Progress):
            for worker in workers_of(os.getpid()):
                os.kill(worker, signal.SIGKILL)

    run_all([run, Run(method="sam", epochs=1000)], Storage(out=tmp_path), 2, tell)
    errors = [t.error for t in told if isinstance(t, Ended)]
    assert len(errors) == 2
    assert all("its worker process ended without a word" in error for error in errors)


def ended_with_the_environment(run, storage, measures):
    return Ended(run, [], os.getenv("LOOKBEHIND_TRIED"))


def test_workers_have_the_environment_of_the_call(tmp_path, monkeypatch):
    """Not that of the first call, which started the server that they are forked from."""
    monkeypatch.setattr(pool, "_work", ended_with_the_environment)
    for value in ("first", "second"):
        monkeypatch.setenv("LOOKBEHIND_TRIED", value)
        told = []
        run_all([Run(seed=0), Run(seed=1)], Storage(out=tmp_path), 2, told.append)
        assert [one.error for one in told if isinstance(one, Ended)] == [value, value]


def workers_of(parent: int) -> list[int]:
    """The processes that were forked from the server that a process has started."""
    return [worker for server in _forked_by(parent) for worker in _forked_by(server)]


def _forked_by(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, command = (entry / "stat").read_text().rsplit(")", 1)[1].split(), (entry / "cmdline").read_text()
        except OSError:
            continue
        if int(state[1]) == parent and "forkserver" in command:
            found.append(int(entry.name))
    return found


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    words = ["--methods", "sgd", "sam", "--seeds", "1", "--jobs", "2", "--epochs", "100000", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "lookbehind.cli", "compare", *words], stdout=subprocess.DEVNULL, start_new_session=True
    )
    workers = waited_for(lambda: len(list(tmp_path.glob("runs/*/records.jsonl"))) == 2 and workers_of(process.pid))
    process.kill()
    process.wait()
    assert len(workers) == 2
    assert waited_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_a_second_interrupt_does_not_wait_for_workers(tmp_path):
    """Which cannot end their step here: they stand still."""
    words = ["--methods", "sgd", "sam", "--seeds", "1", "--jobs", "2", "--epochs", "100000", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "lookbehind.cli", "compare", *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    workers = waited_for(lambda: len(list(tmp_path.glob("runs/*/records.jsonl"))) == 2 and workers_of(process.pid))
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)  # for the workers, with one
    os.kill(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Ctrl-C again stops at once" in " ".join(shown.split())
    assert waited_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 10)


def waited_for(condition, seconds=120):
    """What the condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_an_interrupt_of_a_single_process_saves_where_it_is(tmp_path):
    """Also in the middle of an epoch, of a hundred steps here."""
    words = ["train", "--batch-size", "3", "--epochs", "1000", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "lookbehind.cli", *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    waited_for(lambda: any(tmp_path.glob("runs/*/records.jsonl")))
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping: the run ends its step" in shown
    (checkpoint, *_) = sorted(tmp_path.glob("runs/*/checkpoint-*.pt"), key=lambda p: -int(p.name.split("-")[1]))
    assert int(checkpoint.name.split("-")[1]) > 0


def test_an_interrupt_stops_it_and_the_same_command_goes_on(tmp_path):
    """Ctrl-C in the middle, with two processes at work; in the end all is as if nothing had happened."""
    settings = Settings(epochs=5, batch_size=100, pool=2)
    methods = ("sgd", "lookbehind-sam")
    out = tmp_path / "stopped"
    words = [
        "--methods",
        *methods,
        "--seeds",
        "2",
        "--jobs",
        "2",
        "--epochs",
        "5",
        "--batch-size",
        "100",
        "--pool",
        "2",
    ]
    command = [sys.executable, "-m", "lookbehind.cli", "compare", *words, "--out", str(out)]

    def start() -> subprocess.Popen:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # a shell starts what it runs in the background with Ctrl-C ignored, and tests may be run so
        heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True, preexec_fn=heeding
        )

    process = start()
    waited_for(lambda: any((out / "runs").glob("lookbehind*/records.jsonl")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on" in shown
    assert list((out / "runs").glob("*/checkpoint-*.pt"))
    again = start()
    again.communicate(timeout=120)
    assert again.returncode == 0
    whole = Comparison(methods=methods, seeds=2, jobs=1, settings=settings, storage=Storage(out=tmp_path / "whole"))
    assert without_seconds(json.loads((out / "results.json").read_text())) == without_seconds(compare(whole))


def test_a_script_without_the_usual_guard_is_told_what_it_lacks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from lookbehind.experiments.compare import Comparison, compare\n"
        "from lookbehind.training.settings import Settings\n"
        "compare(Comparison(methods=('sgd', 'sam'), seeds=1, jobs=2, settings=Settings(epochs=1)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "lacks `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]
