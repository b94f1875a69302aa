"""The command line: training and evaluating, lists, help, and what it says of wrong words."""

from __future__ import annotations

import json

import pytest
from quick import QUICK_WORDS

from lookbehind import cli
from lookbehind.training.methods import METHODS
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, finished_records


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
