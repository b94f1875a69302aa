"""Comparisons: rows that follow from the records, equal budgets, processes that stop and go on; the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import pytest

from lookbehind import cli
from lookbehind.experiments import pool
from lookbehind.experiments.compare import Comparison, compare, runs_of
from lookbehind.experiments.pool import Ended, run_all
from lookbehind.experiments.results import method_settings, row, spread
from lookbehind.experiments.table import signed
from lookbehind.training.methods import METHODS
from lookbehind.training.records import read
from lookbehind.training.run import Run
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage, finished_records, train

QUICK = Settings(epochs=2, batch_size=100, k=2, validation=60, pool=2)
METHOD_NAMES = ("sgd", "sam-matched", "lookbehind-asam", "lookbehind-sam:alpha=adaptive")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison, made in this process: its directory and its rows."""
    out = tmp_path_factory.mktemp("compared")
    comparison = Comparison(methods=METHOD_NAMES, seeds=2, jobs=1, settings=QUICK, storage=Storage(out=out))
    return comparison, out, compare(comparison, command="lookbehind compare --quick")


def test_a_row_is_what_the_runs_recorded(compared):
    comparison, out, rows = compared
    assert json.loads((out / "results.json").read_text()) == rows
    assert [r["method"] for r in rows] == list(METHOD_NAMES)
    for label, runs in runs_of(comparison).items():
        ends = [read(out / "runs" / run.id / "records.jsonl")[-1] for run in runs]
        found = next(r for r in rows if r["method"] == label)
        accuracies = [end["test_accuracy"] for end in ends]
        assert found["accuracy"] == {"mean": mean(accuracies), "std": stdev(accuracies), "values": accuracies}
        for name, key in (
            ("best_accuracy", "best_test_accuracy"),
            ("recalibrated_accuracy", "recalibrated_test_accuracy"),
            ("validation_accuracy", "validation_accuracy"),
            ("train_loss", "train_loss"),
            ("seconds", "seconds"),
        ):
            assert found[name]["values"] == [end[key] for end in ends]
        assert found["gradient_evaluations"] == ends[0]["gradient_evaluations"]
        assert found["seeds"] == [0, 1]
        assert (found["epochs"], found["diverged"]) == (2.0, 0)


def test_a_row_tells_what_the_method_ran_with(compared):
    settings = {r["method"]: r["settings"] for r in compared[2]}
    assert settings["sgd"] == {"base": "sgd", "lr": 0.05}
    # alpha k = 1, (k + 1) / 2 = 1.5
    assert settings["sam-matched"] == {"rho": pytest.approx(0.075), "k": 2, "alpha": 0.5, "base": "sgd", "lr": 0.05}
    assert settings["lookbehind-asam"] == {"rho": 0.5, "eta": 0.01, "k": 2, "alpha": 0.5, "base": "sgd", "lr": 0.05}
    assert settings["lookbehind-sam:alpha=adaptive"]["alpha"] == "adaptive"
    switched = method_settings(Run(method="sam+asam@3"))
    assert switched == {"sam_rho": 0.05, "asam_rho": 0.5, "eta": 0.01, "base": "sgd", "lr": 0.05}
    wider = method_settings(Run(method="sam+sam-matched@3", rho=0.1, widen=2.0, k=3, alpha=0.5))
    # alpha k = 1.5 and (k + 1) / 2 = 2, from the switch on
    assert wider == {"rho": pytest.approx([0.1, 0.4]), "k": 3, "alpha": 0.5, "base": "sgd",
                     "lr": pytest.approx([0.05, 0.075])}  # fmt: skip


def test_the_page_and_its_making_are_written(compared):
    _, out, rows = compared
    page = (out / "report.html").read_text()
    assert "lookbehind compare --quick" in page
    assert f"{rows[0]['accuracy']['mean']:.2f}" in page
    lines = (out / "results.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("| `sam-matched`")]
    assert line.startswith(f"| `sam-matched` | {rows[1]['accuracy']['mean']:.2f} ± {rows[1]['accuracy']['std']:.2f} | ")
    assert f"| {signed(mean(rows[1]['accuracy']['values']) - mean(rows[0]['accuracy']['values']))} (" in line
    assert line.endswith("| 12 (2.0×) |")  # noqa: RUF001
    assert "    lookbehind compare --quick" in lines
    about = json.loads((out / "comparison.json").read_text())
    assert about["settings"]["batch_size"] == 100
    assert about["settings"]["k"] == 2
    assert "alpha" not in about["settings"]  # one method has its own
    assert about["notices"] == []


def test_finished_runs_are_not_trained_again(compared, monkeypatch):
    comparison, _, rows = compared
    monkeypatch.setattr(pool, "train", lambda *_, **__: pytest.fail("trained again"))
    before = json.loads((comparison.storage.out / "comparison.json").read_text())
    assert compare(comparison) == rows
    after = json.loads((comparison.storage.out / "comparison.json").read_text())
    assert after["started"] == before["started"]
    assert after["seconds"] > before["seconds"] > 0  # the time of all calls together


def without_seconds(rows):
    return [{key: value for key, value in r.items() if key != "seconds"} for r in rows]


def test_parallel_processes_give_the_same_rows(compared, tmp_path):
    comparison, _, rows = compared
    told = []
    parallel = Comparison(
        methods=METHOD_NAMES[:3], seeds=2, jobs=2, settings=comparison.settings, storage=Storage(out=tmp_path)
    )
    assert without_seconds(compare(parallel, told.append)) == without_seconds(rows[:3])
    ended = [t for t in told if isinstance(t, Ended)]
    assert len(ended) == 6
    assert all(e.finished and e.error is None for e in ended)
    assert any(isinstance(t, pool.Progress) and t.record for t in told)


def test_an_equal_number_of_gradients(tmp_path):
    methods = ("sgd", "sam", "lookbehind-sam", "multistep-asam-mean:k=3", "m-sgd")
    settings = Settings(epochs=26, batch_size=100, evaluate_every=100, pool=2)
    comparison = Comparison(
        methods=methods, seeds=1, budget="gradients", jobs=1, settings=settings, storage=Storage(out=tmp_path)
    )
    rows = compare(comparison)
    assert [r["gradient_evaluations"] for r in rows] == [72] * 5  # 78, divisible by 1, 2, 6 and 4 with 72
    assert [r["epochs"] for r in rows] == [24, 12, 4, 6, 24]


def test_a_budget_that_would_lose_much_by_rounding_is_kept():
    comparison = Comparison(methods=("sgd", "lookbehind-sam:k=10"), budget="gradients", settings=Settings(epochs=3))
    assert {run.gradients for runs in runs_of(comparison).values() for run in runs} == {15}  # not 11


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


def test_a_comparison_without_a_finished_run_leaves_an_earlier_one_alone(tmp_path, monkeypatch):
    storage = Storage(out=tmp_path)
    compare(Comparison(methods=("sgd",), seeds=1, jobs=1, settings=QUICK, storage=storage))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert tmp_path / "results.json" in before

    def failing(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "train", failing)
    with pytest.raises(KeyboardInterrupt):
        compare(Comparison(methods=("sam",), seeds=1, jobs=1, settings=QUICK, storage=storage))
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


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


def test_diverged_seeds_are_left_out_of_the_mean_and_counted():
    def end(accuracy):
        told = dict.fromkeys(
            ("best_test_accuracy", "recalibrated_test_accuracy", "validation_accuracy", "train_loss", "train_accuracy")
        )
        rest = {"test_loss": None, "alpha": None, "gradient_evaluations": 5, "passes": 1.0, "seconds": 1.0}
        return [{**told, **rest, "event": "end", "test_accuracy": accuracy, "diverged": accuracy is None}]

    found = row("sam", [(Run(seed=s), end(a)) for s, a in enumerate([90.0, None, 92.0])])
    assert found["accuracy"] == {"mean": 91.0, "std": pytest.approx(2**0.5), "values": [90.0, None, 92.0]}
    assert found["diverged"] == 1
    assert spread([3.0]) == {"mean": 3.0, "std": None, "values": [3.0]}
    assert spread([None, float("nan")]) == {"mean": None, "std": None, "values": [None, None]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ()}, "give at least one"),
        ({"methods": ("sam", "sam")}, "one of them is there twice"),
        ({"methods": ("samm",)}, "did you mean sam"),
        ({"methods": ("sam", "sam:rho=0.05")}, "sam:rho=0.05 is the same run as sam"),
        ({"seeds": 0}, "seeds=0"),
        ({"jobs": 0}, "jobs=0"),
        ({"budget": "time"}, "budget='time': choose one of"),
        ({"methods": ("lookahead-sgd",), "settings": Settings(alpha="adaptive")}, "lookahead-sgd:alpha=0.5"),
    ],
)
def test_wrong_comparisons_are_named_with_a_remedy(options, words):
    with pytest.raises(ValueError, match=words):
        runs_of(Comparison(**options))


@pytest.mark.parametrize(
    ("methods", "settings"),
    [
        (("sgd", "sgd:epochs=7"), Settings()),
        (("sgd:batch_size=10", "sam"), Settings()),
        (("sgd", "sam"), Settings(gradients=1000)),
    ],
)
def test_a_budget_is_set_by_all_methods_together(methods, settings):
    with pytest.raises(ValueError, match="set the budget; leave out --gradients, and epochs"):
        runs_of(Comparison(methods=methods, settings=settings, budget="gradients"))


def test_without_any_finished_run_it_fails_and_says_why(tmp_path, monkeypatch):
    def failing(run, *args, **kwargs):
        raise MemoryError("no more")

    monkeypatch.setattr(pool, "train", failing)
    comparison = Comparison(methods=("sam",), seeds=1, jobs=1, settings=QUICK, storage=Storage(out=tmp_path))
    with pytest.raises(RuntimeError, match="no run was finished: sam, seed 0: MemoryError: no more"):
        compare(comparison)


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


# --- the command line

QUICK_WORDS = ["--epochs", "2", "--batch-size", "100", "--k", "2", "--validation", "60", "--pool", "2"]


def test_the_command_line_is_the_python_api(compared, capsys):
    _, out, rows = compared
    command = ["compare", "--data", "digits", "--methods", *METHOD_NAMES, "--seeds", "2", "--jobs", "1", *QUICK_WORDS]
    assert cli.main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "8 of 8 runs are finished already" in shown
    assert f"{rows[0]['accuracy']['mean']:.2f}" in shown
    assert str(out / "report.html") in shown.replace("\n", "")


def test_train_and_evaluate(tmp_path, capsys):
    assert cli.main(["train", "--method", "sam", *QUICK_WORDS, "--out", str(tmp_path)]) == 0
    assert "12 gradients" in capsys.readouterr().out
    (directory,) = (tmp_path / "runs").iterdir()
    end = finished_records(Run(method="sam", epochs=2, batch_size=100, validation=60, pool=2), Storage(out=tmp_path))[
        -1
    ]
    assert cli.main(["evaluate", str(directory), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    for name in ("train_loss", "train_accuracy", "validation_accuracy", "test_loss", "recalibrated_test_accuracy"):
        assert found[name] == end[name], name
    assert cli.main(["evaluate", str(directory)]) == 0
    assert f"{end['test_accuracy']:.2f}" in capsys.readouterr().out


def test_paths_with_brackets_and_unfinished_runs(tmp_path, capsys):
    out = tmp_path / "a[/x]b"
    assert (
        cli.main(["compare", "--methods", "sgd", "--seeds", "1", "--jobs", "1", *QUICK_WORDS, "--out", str(out)]) == 0
    )
    assert "a[/x]b/report.html" in capsys.readouterr().out
    (finished,) = (out / "runs").iterdir()
    (out / "runs" / "unfinished").mkdir()
    (out / "runs" / "unfinished" / "run.json").write_text("{}")
    assert cli.main(["evaluate", str(finished), str(out / "runs" / "unfinished")]) == 0
    shown = capsys.readouterr()
    assert "unfinished is not finished" in shown.err
    assert "sgd" in shown.out


@pytest.mark.parametrize("width", [60, 72, 80, 120])
def test_the_table_fits_the_terminal(compared, width, capsys, monkeypatch):
    from rich.console import Console

    from lookbehind.experiments.table import terminal_table

    console = Console(width=width)
    console.print(terminal_table(compared[2], width))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert ("seconds" in "".join(lines)) == (width >= 78)
    assert "gradients" in "".join(lines)


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


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "lookbehind 0.1.0\n"


def test_the_lists_are_complete(capsys):
    assert cli.main(["list", "methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in METHODS)
    assert "k + 1" in shown
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("wrn-28-10", "resnet18-imagenet", "tiny-imagenet", "lookbehind-m-asam"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["train", "--method", "samm"], "did you mean sam"),
        (["train", "--data", "mnist"], "choose one of 'digits'"),
        (["train", "--k", "five"], "--k"),
        (["compare", "--methods", "sam", "sam"], "there twice"),
        (["evaluate"], "runs"),
        (["evaluate", "/nowhere"], "has no run.json"),
        (["train", "--data", "cifar10", "--no-download", "--data-dir", "/nowhere"], "cifar-10-batches-py"),
        (["compare", "--data", "cifar100", "--no-download", "--data-dir", "/nowhere"], "looked in /nowhere"),
        (["train", "--train-images", "100000"], "train_images=100000: there are only 300"),
        (["train", "--out", "a_file"], "out=a_file: a file; give a directory"),
        (["evaluate", "damaged"], "run.json or weights.pt is damaged"),
        (["compare", "--alpah", "0.5"], "--alpha"),
        (["fly"], "compare"),
    ],
)
def test_wrong_commands_say_what_is_wrong(command, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    (tmp_path / "damaged").mkdir()
    for name in ("run.json", "weights.pt"):
        (tmp_path / "damaged" / name).touch()
    try:
        code = cli.main(command)
    except SystemExit as exit_:
        code = exit_.code
    shown = capsys.readouterr()
    text = " ".join((shown.out + shown.err).replace("│", " ").split())
    assert code in (1, 2)
    assert words in text
    assert "Traceback" not in text


def test_help_has_examples(capsys):
    for command in ("compare", "train", "evaluate", "list"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert f"lookbehind {command}" in capsys.readouterr().out.split("For example", 1)[1]


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
