"""Comparisons: rows that follow from the records, equal budgets, a page and a table; wrong ones are named."""

from __future__ import annotations

import json
from statistics import mean, stdev

import pytest
from quick import QUICK, QUICK_WORDS, without_seconds

from lookbehind import cli
from lookbehind.experiments import pool
from lookbehind.experiments.compare import Comparison, compare, runs_of
from lookbehind.experiments.pool import Ended
from lookbehind.experiments.results import method_settings, row, spread
from lookbehind.experiments.table import signed
from lookbehind.training.records import read
from lookbehind.training.run import Run
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage

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
    assert wider == {"rho": [0.1, 0.4], "k": 3, "alpha": 0.5, "base": "sgd", "lr": [0.05, 0.075]}
    plain_between = method_settings(Run(method="sam+sgd@1+sam@2", rho=0.1, widen=3.0))
    assert plain_between["rho"] == [0.1, 0.0, 0.3]


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


def test_the_command_line_is_the_python_api(compared, capsys):
    _, out, rows = compared
    command = ["compare", "--data", "digits", "--methods", *METHOD_NAMES, "--seeds", "2", "--jobs", "1", *QUICK_WORDS]
    assert cli.main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "8 of 8 runs are finished already" in shown
    assert f"{rows[0]['accuracy']['mean']:.2f}" in shown
    assert str(out / "report.html") in shown.replace("\n", "")


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
