"""Lifelong runs as values and from beginning to end: ids, records, resuming, wrong input."""

from __future__ import annotations

import json
import random

import pytest
import torch
from going_on import killed, outcome, stopped_after_every_step

from lookbehind import cli
from lookbehind.data.vision import load
from lookbehind.lifelong import metrics
from lookbehind.lifelong.run import LifelongRun, LifelongSettings
from lookbehind.training.train import Storage, train

SETTINGS = LifelongSettings(tasks=3, epochs=2, width=4, hidden=8, lr=0.1, k=2)
METHODS = ("sgd", "er+sgd", "er+lookahead-sgd", "er+lookbehind-sam", "lookahead-c-maml", "lookbehind-c-maml:alpha=1")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_stopped_after_every_step_ends_as_one_that_is_not(method, tmp_path):
    assert stopped_after_every_step(SETTINGS.run(method, 0), tmp_path) > 20  # in the middle of every task


def test_a_run_that_is_killed_goes_on_bit_for_bit(tmp_path):
    run = SETTINGS.run("er+lookbehind-sam", 0)
    steps = random.Random(run.id).choices(range(1, 14), k=2)
    killed(run, tmp_path, f"from lookbehind.lifelong.run import LifelongRun\nrun = {run}", steps)


def test_records_tell_the_matrix_and_its_metrics(tmp_path):
    run = LifelongRun(tasks=3, epochs=2, lr=0.1, method="er+sam", seed=1)
    records = train(run, Storage(out=tmp_path))
    epochs, end = records[:-1], records[-1]
    assert [(r["task"], r["epoch_of_task"]) for r in epochs] == [(t, e) for t in (1, 2, 3) for e in (1, 2)]
    rows = [r["test_accuracies"] for r in epochs if r["test_accuracies"]]
    assert end["matrix"] == rows
    assert [len(row) for row in rows] == [3, 3, 3]  # all tasks, also those to come
    assert end["test_accuracy"] == metrics.average_accuracy(rows) == end["best_test_accuracy"]
    assert end["forgetting"] == metrics.forgetting(rows)
    assert end["backward_transfer"] == metrics.backward_transfer(rows)
    assert end["learning_accuracy"] == metrics.learning_accuracy(rows)
    assert end["gradient_evaluations"] == 2 * end["steps"]
    assert [r["test_accuracy"] for r in epochs if r["test_accuracies"]] == pytest.approx(metrics.averages_so_far(rows))
    assert end["learning_accuracy"] > 80  # it does learn: two digits at a time
    assert epochs[-1]["remembered"] == 20


def test_tasks_so_far_give_the_same_metrics_as_all(tmp_path):
    ends = []
    for evaluate in ("all", "seen"):
        run = LifelongRun(tasks=3, epochs=1, width=4, hidden=8, method="er+sgd", evaluate=evaluate)
        ends.append(train(run, Storage(out=tmp_path))[-1])
    for name in ("test_accuracy", "forgetting", "backward_transfer", "learning_accuracy", "validation_accuracy"):
        assert ends[0][name] == ends[1][name], name
    assert [len(row) for row in ends[1]["matrix"]] == [1, 2, 3]


def test_validation_images_are_never_learned_and_are_no_test_images():
    run = SETTINGS.run("er+sgd", 0)
    training = run.begin(load("digits", seed=0))
    for task, batches in zip(training.stream.tasks, training._train, strict=True):
        assert len(batches.images) == len(task.train)
        mine = {image.numpy().tobytes() for image in task.train.pixels}
        held_out = {image.numpy().tobytes() for image in task.validation.pixels}
        assert not mine & held_out
        assert not held_out & {image.numpy().tobytes() for image in task.test.pixels}


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    for method in ("sgd", "er+sam", "lookahead-c-maml"):
        run = LifelongRun(tasks=2, epochs=1, width=4, hidden=8, method=method, lr=1e20, clip=None, k=2)
        end = train(run, Storage(out=tmp_path))[-1]
        assert end["diverged"], method
        assert end["test_accuracy"] is None
        assert end["matrix"] is None


def test_sgd_is_replay_with_no_memory(tmp_path):
    alone = train(SETTINGS.run("sgd", 0), Storage(out=tmp_path))[-1]
    none = train(SETTINGS.run("er+sgd:memory=0", 0), Storage(out=tmp_path))[-1]
    assert alone["matrix"] == none["matrix"]


@pytest.mark.parametrize(
    ("method", "unread"),
    [
        ("sgd", {"rho": 0.7, "k": 9, "alpha": 0.1, "memory": 7, "inner_lr": 0.3}),
        ("er+sam", {"k": 9, "alpha": 0.1, "asam_rho": 3.0, "outer": "meta"}),
        ("lookahead-c-maml", {"rho": 0.7, "alpha": "adaptive", "clip_ascent": True, "outer": "meta", "climb": "fast"}),
        ("lookbehind-c-maml", {"asam_rho": 3.0, "clip_ascent": True}),
    ],
)
def test_an_id_follows_from_what_the_method_reads(method, unread):
    from dataclasses import replace

    plain = LifelongRun(method=method)
    assert replace(plain, **unread).id == plain.id
    for name in ("lr", "batch_size", "data", "seed"):
        changed = {"lr": 0.5, "batch_size": 5, "data": "split-cifar100", "seed": 2**53 + 1}[name]
        assert replace(plain, **{name: changed}).id != plain.id, name


def test_ids_do_not_change_between_versions():
    """Runs that people have are found again."""
    assert LifelongRun(method="er+lookbehind-sam", data="split-cifar100").id == "er_lookbehind-sam-seed0-851bfe933f"
    assert (
        LifelongSettings().run("lookbehind-c-maml:k=2,rho=0.005,alpha=1", 2).id == "lookbehind-c-maml-seed2-aac391d4eb"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "split-mnist"}, "data='split-mnist'"),
        ({"tasks": 6}, "tasks=6: split-digits has 5"),
        ({"method": "er+sams"}, r"method='er\+sams': did you mean er\+sam"),
        ({"method": "er+er+sgd"}, r"method='er\+er\+sgd'"),
        ({"method": "er+"}, r"method='er\+'"),
        ({"method": "er+lookahead-c-maml"}, "did you mean lookahead-c-maml"),
        ({"method": "lookbehind-cmaml"}, "did you mean lookbehind-c-maml"),
        ({"method": "lookahead-c-maml", "k": 11}, "k=11 with batch_size=10"),
        ({"method": "er+adam"}, "base is SGD"),
        ({"method": "er+m-sam"}, "one whole minibatch per step"),
        ({"method": "er+lookbehind-sam-switching"}, "one whole minibatch per step"),
        ({"method": "lookahead-c-maml", "alpha": "adaptive", "k": 0}, "k=0"),
        ({"method": "lookbehind-c-maml", "alpha": "adaptive"}, "it needs a number"),
        ({"method": "er+lookahead-sgd", "alpha": "adaptive"}, "it needs a number"),
        ({"memory": -1}, "memory=-1"),
        ({"replay": -2}, "replay=-2"),
        ({"clip": 0.0}, "clip=0"),
        ({"reservoir": "fair"}, "reservoir='fair'"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        LifelongRun(**settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("er+sgd:rho=0.1", "does not read rho"),
        ("er+sgd:epochs=3", "must be the same for all methods"),
        ("er+sgd:replays=3", "did you mean replay"),
        ("er+sgd:memory", "NAME=VALUE"),
        ("lookahead-c-maml:outer=meta", "does not read outer"),
        ("er+sgd:seed=3", "seed is not a setting of a method"),
    ],
)
def test_wrong_overrides_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        LifelongSettings().run(text, 0)


def test_a_method_has_its_own_radius():
    assert LifelongSettings().run("er+lookbehind-asam:rho=0.7", 0).asam_rho == 0.7
    assert LifelongSettings().run("lookbehind-c-maml:rho=0.7,alpha=1", 0).rho == 0.7


# --- the command


def test_the_command_learns_tells_and_writes_a_page(tmp_path, capsys):
    arguments = ["lifelong", "--method", "er+lookbehind-sam", "--k", "2", "--lr", "0.1", "--epochs", "1"]
    arguments += ["--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    told = capsys.readouterr().out
    (directory,) = (tmp_path / "runs").iterdir()
    end = json.loads((directory / "records.jsonl").read_text().splitlines()[-1])
    assert f"{end['test_accuracy']:.2f}" in told
    assert f"{end['forgetting']:.2f}" in told
    page = (directory / "report.html").read_text()
    for words in ("Average accuracy", "Forgetting per task", "Accuracy on every task after every task"):
        assert words in page
    assert "The paper:" not in page
    tables = json.loads((directory / "results.json").read_text())["tables"]
    assert [line[0] for line in tables[1]["lines"]] == ["1", "2", "3", "4", "5"]
    assert tables[1]["lines"][0][2] == f"{end['matrix'][-1][0]:.2f}"
    assert {path.name for path in (directory / "figures").iterdir()} == {
        f"lifelong-{name}.{kind}" for name in ("average", "forgetting", "matrix") for kind in ("svg", "pdf")
    }
    before = (directory / "records.jsonl").read_text()
    assert cli.main(arguments) == 0  # a second time nothing is learned again
    assert (directory / "records.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "split-mnist"], "split-mnist"),
        (["--method", "er+sams"], "did you mean er+sam"),
        (["--method", "lookbehind-c-maml", "--alpha", "adaptive"], "needs a number"),
        (["--tasks", "9"], "split-digits has 5"),
    ],
)
def test_the_command_names_what_is_wrong(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["lifelong", *arguments, "--out", str(tmp_path)])
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_command_whose_loss_diverges_says_so(tmp_path, capsys):
    arguments = [
        "lifelong",
        "--method",
        "sgd",
        "--lr",
        "1e20",
        "--clip",
        "None",
        "--tasks",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(arguments) == 0
    assert "ceased to be finite" in capsys.readouterr().out


def test_a_long_step_is_a_learning_rate_that_is_alpha_k_times_as_large(tmp_path):
    settings = LifelongSettings(tasks=2, epochs=1, width=4, hidden=8, lr=0.02, k=5, alpha=0.5)
    long, plain = settings.run("er+sam-long-step", 0), settings.run("er+sam:lr=0.05", 0)
    for run in (long, plain):
        train(run, Storage(out=tmp_path))
    weights = [outcome(run, Storage(out=tmp_path))[1] for run in (long, plain)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
