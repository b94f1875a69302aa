"""Translation runs as values and from beginning to end: methods, learning rates, resuming, wrong input, commands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from going_on import killed, stopped_after_every_step

from lookbehind import LookbehindSAM, cli, switching
from lookbehind.data.text import load_text
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.numbers import TABLE_4_TRANSLATION
from lookbehind.experiments.paper.plan import Reproduction, cost_in_trainings
from lookbehind.experiments.paper.reproduce import reproduce
from lookbehind.experiments.paper.scales import LAPTOP, PAPER
from lookbehind.models.transformer import label_smoothed_loss
from lookbehind.training import train as training_module
from lookbehind.training.train import Storage, train
from lookbehind.translation.run import TranslationRun, TranslationSettings
from lookbehind.translation.training import TranslationTraining, network

TINY = {"epochs": 2, "merges": 30, "max_tokens": 200, "layers": 1, "width": 8, "hidden": 8, "heads": 2}
TINY |= {"dropout": 0.1, "warmup": 6, "lr": 0.02, "beam": 2}
SETTINGS = TranslationSettings(**TINY)
SIZES = {"train": 40, "validation": 6, "test": 5}
METHODS = (
    "adamw",
    "asam:rng=replay",
    "lookbehind-sam-switching:k=3",
    "lookbehind-asam:alpha=adaptive",
    "lookahead-adamw",
)


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch):
    monkeypatch.setattr("lookbehind.data.text.TOY_SIZES", SIZES)
    training_module._load.cache_clear()
    yield
    training_module._load.cache_clear()


def begun(run: TranslationRun) -> TranslationTraining:
    return run.begin(load_text("toy-translation"))


def finish(training: TranslationTraining) -> TranslationTraining:
    while not training.finished:
        training.train_epoch(lambda: True)
        training.epoch_record()
    return training


# --- from beginning to end


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_stopped_after_every_step_ends_as_one_that_is_not(method, tmp_path):
    assert stopped_after_every_step(SETTINGS.run(method, 0), tmp_path) > 3  # in the middle of every epoch


def test_a_run_that_is_killed_goes_on_bit_for_bit(tmp_path):
    run = SETTINGS.run("lookbehind-sam-switching", 0)
    made = f"""
from lookbehind.data import text
from lookbehind.translation.run import TranslationRun
text.TOY_SIZES = {SIZES}
run = {run}
"""
    killed(run, tmp_path, made, [3])


def test_records_tell_losses_bleu_and_cost(tmp_path):
    run = replace(SETTINGS.run("sam", 1), epochs=4, evaluate_every=3)
    records = train(run, Storage(out=tmp_path))
    epochs, end = records[:-1], records[-1]
    assert [r["epoch"] for r in epochs] == [1, 2, 3, 4]
    known = [r["epoch"] for r in epochs if r["validation_accuracy"] is not None]
    assert known == [3, 4]  # every third, and the last
    assert all(r["validation_loss"] is not None and r["test_accuracy"] is None for r in epochs)
    assert epochs[-1]["validation_loss"] < epochs[0]["validation_loss"]
    assert end["gradient_evaluations"] == 2 * end["steps"] == epochs[-1]["gradient_evaluations"]
    best = max(epochs[2:], key=lambda r: (r["validation_accuracy"], -r["epoch"]))
    assert (end["best_epoch"], end["validation_accuracy"]) == (best["epoch"], best["validation_accuracy"])
    assert end["test_accuracy"] == end["best_test_accuracy"]
    for name in ("test_bleu_detokenised", "last_test_accuracy", "last_test_bleu_detokenised"):
        assert 0 <= end[name] <= 100
    assert end["test_bleu_signature"].startswith("nrefs:1|case:lc|eff:no|tok:13a")
    assert [len(example) for example in end["examples"]] == [3] * 5
    assert end["examples"][0][:2] == list(load_text("toy-translation").test.written[0])


def test_the_best_network_by_validation_bleu_is_kept(monkeypatch):
    training = begun(SETTINGS.run("adamw:lr=0.01", 0))
    scores = iter([7.0, 9.0, 9.0, 3.0])

    def told(name, *_):
        value = next(scores) if name == "validation" else 1.0
        return {f"{name}_accuracy": value, f"{name}_bleu_detokenised": value, f"{name}_bleu_signature": ""}

    monkeypatch.setattr("lookbehind.translation.training._bleu", told)
    weights = []
    for _ in range(4):
        training.train_epoch(lambda: False)
        training.epoch_record()
        weights.append(training.model.target.tokens.weight.detach().clone())
    assert training.best["bleu"] == 9.0
    assert torch.equal(training.weights()["model"]["target.tokens.weight"], weights[1])  # the first of two equal ones
    assert not torch.equal(weights[1], weights[3])
    training.end_record([])
    assert torch.equal(training.model.target.tokens.weight, weights[1])


def test_methods_have_the_same_number_of_gradients_under_a_budget(tmp_path):
    steps = {}
    for method in ("adamw", "sam", "lookbehind-sam:k=3", "lookbehind-sam-switching:k=2"):
        end = train(replace(SETTINGS, gradients=13).run(method, 0), Storage(out=tmp_path))[-1]
        steps[method] = (end["steps"], end["gradient_evaluations"])
    assert steps == {
        "adamw": (13, 13),
        "sam": (6, 12),
        "lookbehind-sam:k=3": (3, 12),
        "lookbehind-sam-switching:k=2": (6, 12),
    }
    with pytest.raises(ValueError, match="gradients=3: not enough for one step of lookbehind-sam-switching"):
        begun(replace(SETTINGS, gradients=3).run("lookbehind-sam-switching", 0))


def test_the_learning_rate_rises_and_falls_with_the_minibatches():
    training = begun(replace(SETTINGS, warmup=4000, lr=5e-4).run("adamw", 0))
    assert training.lr(0) == pytest.approx(5e-4 / 4000)
    assert training.lr(1999) == pytest.approx(2.5e-4)
    assert training.lr(3999) == pytest.approx(5e-4)
    assert training.lr(15999) == pytest.approx(2.5e-4)
    assert begun(replace(SETTINGS, warmup=0, lr=1.0).run("adamw", 0)).lr(3) == 0.5
    long = begun(SETTINGS.run("sam-long-step:k=4,alpha=0.5", 0))
    assert long.lr(2) == pytest.approx(2 * begun(SETTINGS.run("sam", 0)).lr(2))


@pytest.mark.parametrize(("k", "alpha"), [(2, 0.8), (3, "adaptive")])
def test_switching_is_the_loop_that_a_person_would_write(k, alpha):
    run = replace(SETTINGS, k=k, alpha=alpha, rho=0.3, dropout=0.0).run("lookbehind-sam-switching", 0)
    training = begun(run)
    model = network(run, len(training.subwords.source), len(training.subwords.target))
    model.load_state_dict(training.model.state_dict())
    base = torch.optim.AdamW(model.named_parameters(), lr=0.02, betas=(0.9, 0.98), eps=1e-8, weight_decay=1e-4)
    optimizer = LookbehindSAM(base, rho=0.3, k=k, alpha=alpha, model=model, batchnorm="all")
    factor = lambda n: min((n + 1) / 6, math.sqrt(6 / (n + 1)))  # noqa: E731
    scheduler = torch.optim.lr_scheduler.LambdaLR(base, factor)
    minibatches = [batch for epoch in range(2) for batch in training.train.epoch(epoch)]
    finish(training)
    for first in range(0, len(minibatches) - k + 1, k):

        def closure(batch):
            optimizer.zero_grad()
            wanted = batch.target != 1
            loss = label_smoothed_loss(model(batch.source, batch.previous, wanted), batch.target[wanted], 0.1)
            loss.backward()
            return loss

        optimizer.step(switching(*((lambda b=batch: closure(b)) for batch in minibatches[first : first + k])))
        for _ in range(k):
            scheduler.step()
    assert training.step == len(minibatches) // k * k
    assert training.evaluations == 2 * training.step
    for name, value in model.state_dict().items():
        assert torch.equal(training.model.state_dict()[name], value), name


def test_dropout_is_the_same_in_all_passes_when_it_is_replayed():
    """With a radius of 0 SAM descends with the gradient at the weights: Adam's, if the masks are the same again."""
    plain = finish(begun(SETTINGS.run("adamw", 0))).model.state_dict()
    replayed = finish(begun(SETTINGS.run("sam:rho=0,rng=replay", 0))).model.state_dict()
    fresh = finish(begun(SETTINGS.run("sam:rho=0", 0))).model.state_dict()
    name = "decoder.0.feed_forward.first.weight"
    assert torch.equal(plain[name], replayed[name])
    assert not torch.equal(plain[name], fresh[name])


def test_bf16_and_clipping_train_too():
    for run in (replace(SETTINGS, precision="bf16").run("sam", 0), replace(SETTINGS, clip=0.1).run("adamw", 0)):
        training = begun(run)
        training.train_epoch(lambda: False)  # one step
        assert math.isfinite(training.epoch_record()["loss"])


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    for method in ("adamw", "sam"):
        end = train(replace(SETTINGS, lr=1e30).run(method, 0), Storage(out=tmp_path))[-1]
        assert end["diverged"], method
        assert end["test_accuracy"] is None
        assert end["examples"] == []


# --- as values


@pytest.mark.parametrize(
    ("method", "unread"),
    [
        ("adamw", {"rho": 0.7, "asam_rho": 0.7, "k": 9, "alpha": 0.1, "rng": "replay", "eta": 0.5}),
        ("sam", {"k": 9, "alpha": 0.1, "asam_rho": 3.0}),
        ("lookbehind-asam-switching", {"rho": 3.0}),
    ],
)
def test_an_id_follows_from_what_the_method_reads(method, unread):
    plain = TranslationRun(method=method)
    assert replace(plain, **unread).id == plain.id
    for name, changed in {"lr": 0.5, "data": "iwslt14", "seed": 3, "gradients": 10, "dropout": 0.2}.items():
        assert replace(plain, **{name: changed}).id != plain.id, name


def test_ids_do_not_change_between_versions():
    """Runs that people have are found again."""
    paper = TranslationRun(method="lookbehind-sam-switching", data="iwslt14")
    assert paper.id == "lookbehind-sam-switching-seed0-a4c69f9bf8"
    settings = TranslationSettings(data="multi30k", gradients=4000)
    assert settings.run("asam:rho=0.5", 2).id == "asam-seed2-c624b5eccc"


def test_the_usual_settings_of_iwslt14_are_the_papers():
    run = TranslationRun(data="iwslt14").filled
    assert (run.layers, run.width, run.hidden, run.heads, run.dropout) == (6, 512, 1024, 4, 0.3)
    assert (run.merges, run.max_tokens, run.lr, run.warmup, run.epochs) == (10_000, 4096, 5e-4, 4000, 50)
    assert (run.base, run.beta1, run.beta2, run.eps, run.weight_decay) == ("adamw", 0.9, 0.98, 1e-8, 1e-4)
    assert (run.label_smoothing, run.beam, run.length_penalty, run.max_len) == (0.1, 5, 1.0, 200)
    group = begun(replace(SETTINGS.run("adamw", 0), weight_decay=0.2)).base.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-8, 0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "wmt"}, "data='wmt'"),
        ({"method": "sams"}, "did you mean sam"),
        ({"method": "sgd"}, "trains with adamw or adam"),
        ({"method": "m-sam"}, "whole minibatches"),
        ({"method": "lookahead-adamw", "alpha": "adaptive"}, "it needs a number"),
        ({"k": 0}, "k=0"),
        ({"beam": 0}, "beam=0"),
        ({"dropout": 1.0}, "dropout=1"),
        ({"warmup": -1}, "warmup=-1"),
        ({"rng": "same"}, "rng='same'"),
        ({"precision": "fp16"}, "precision='fp16'"),
        ({"clip": 0.0}, "clip=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TranslationRun(**settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adamw:rho=0.1", "does not read rho"),
        ("adamw:merges=3", "must be the same for all methods"),
        ("sam:dropouts=0.1", "did you mean dropout"),
        ("lookbehind-asam-switching:seed=3", "seed is not a setting of a method"),
    ],
)
def test_wrong_overrides_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        TranslationSettings().run(text, 0)


def test_a_method_has_its_own_radius():
    assert TranslationSettings().run("lookbehind-asam-switching:rho=0.7", 0).asam_rho == 0.7
    assert TranslationSettings().run("sam:rho=0.7", 0).rho == 0.7


def test_sizes_that_do_not_fit_the_text_are_named():
    with pytest.raises(ValueError, match="train_pairs=41: there are only 40"):
        begun(replace(SETTINGS, train_pairs=41).run("adamw", 0))
    with pytest.raises(ValueError, match="k=40 with lookbehind-sam-switching: a step takes as many minibatches"):
        begun(replace(SETTINGS, k=40).run("lookbehind-sam-switching", 0))


# --- the commands

ARGUMENTS = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_the_commands_train_write_a_page_and_translate(tmp_path, capsys):
    arguments = ["translation", "--method", "lookbehind-sam-switching", *ARGUMENTS, "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    told = capsys.readouterr().out
    (directory,) = (tmp_path / "runs").iterdir()
    end = json.loads((directory / "records.jsonl").read_text().splitlines()[-1])
    assert f"{end['test_accuracy']:.2f} BLEU" in told
    page = (directory / "report.html").read_text()
    for words in ("Validation BLEU", "Some translations", end["examples"][0][0], "tok:13a"):
        assert words in page
    assert "The paper:" not in page
    assert {path.name for path in (directory / "figures").iterdir()} == {
        f"translation-{name}.{kind}" for name in ("loss", "bleu") for kind in ("svg", "pdf")
    }

    assert cli.main(["translate", str(directory), end["examples"][0][0]]) == 0
    assert capsys.readouterr().out == f"{end['examples'][0][2]}\n"
    written, out = tmp_path / "in.de", tmp_path / "out.en"
    written.write_text(f"{end['examples'][0][0]}\n\n{end['examples'][1][0]}\n")
    assert cli.main(["translate", str(directory), "--file", str(written), "--out", str(out)]) == 0
    assert out.read_text().splitlines() == [end["examples"][0][2], "", end["examples"][1][2]]
    # a line has one translation, whatever else Unicode takes for the end of a line
    written.write_text(f"{end['examples'][0][0]}\u2028\n{end['examples'][1][0]}\x85\n")
    assert cli.main(["translate", str(directory), "--file", str(written), "--out", str(out)]) == 0
    assert len(out.read_text().removesuffix("\n").split("\n")) == 2
    assert cli.main(["translate", str(directory), "Hunde", "--beam", "1"]) == 0

    wrong = {
        ("translate", str(tmp_path / "nowhere"), "Hunde"): "no such run",
        ("translate", str(tmp_path), "Hunde"): "has no run.json",
        ("translate", str(directory), " "): "the text is empty",
        ("translate", str(directory)): "give either a text",
        ("translate", str(directory), "Hunde", "--file", str(written)): "give either a text",
        ("translate", str(directory), "Hunde", "--out", str(out)): "give --file too",
        ("translate", str(directory), "--file", str(tmp_path / "none.de")): "No such file",
        ("translate", str(directory), "hu " * 1100): "line 1 has",
        ("translate", str(directory), "Hunde", "--beam", "900"): "beam=900",
    }
    capsys.readouterr()
    for command, message in wrong.items():
        assert cli.main(list(command)) == 2, command
        assert message in capsys.readouterr().err
    (directory / "run.json").write_text(json.dumps({"data": "digits", "method": "sam"}))
    assert cli.main(["translate", str(directory), "Hunde"]) == 2
    assert "not a translation run" in capsys.readouterr().err


# --- table 4


def test_the_rows_of_table_4():
    task = PAPER.task("translation")
    run = task.settings.run("lookbehind-asam-switching:k=2,alpha=0.8", 0).filled
    assert (run.data, run.epochs, run.lr, run.warmup, run.asam_rho) == ("iwslt14", 50, 5e-4, 4000, 0.2)
    found = {arm.name: arm.candidates for arm in experiment("table4-translation").arms(task, PAPER)}
    assert found["Adam, twice the epochs"] == ("adamw:epochs=100",)
    assert found["SAM"] == ("sam:rho=0.1",)
    assert found["Lookbehind-ASAM"] == ("lookbehind-asam-switching:k=2,alpha=0.8,rho=0.2",)
    assert set(TABLE_4_TRANSLATION) == set(found) - {"Adam, twice the epochs"}
    assert TABLE_4_TRANSLATION["Lookbehind-ASAM"]["IWSLT'14"] == "35.40 ± 0.01"
    # by epochs all but Adam cost two trainings of Adam, and so does Adam for twice as long: 1 + 2 * 7
    assert cost_in_trainings(Reproduction(experiments=("table4-translation",), scale="paper", seeds=1)) == 15
    # with a budget of gradients all rows have the same
    task = LAPTOP.task("translation")
    runs = [run for arm in experiment("table4-translation").arms(task, LAPTOP) for run in arm.runs(task, range(1))]
    assert sorted(run.filled.lr for run in runs) == [0.002] * 7 + [0.004] * 7
    assert {run.cost for run in runs} == {task.settings.gradients}


def test_table_4_shows_what_the_runs_found(tmp_path):
    storage = Storage(out=tmp_path)
    change = (f"train_pairs={SIZES['train']}", "max_tokens=200")
    names = ("table4-translation",)
    wanted = Reproduction(experiments=names, scale="smoke", seeds=1, change=change, jobs=1, storage=storage)
    page = reproduce(wanted)["table4-translation"]
    results = json.loads((page / "results.json").read_text())
    (table,) = results["tables"]
    assert [line[0] for line in table["lines"]] == list(TABLE_4_TRANSLATION)
    for line in table["lines"]:
        assert line[-1] == "12"
        assert line[-2] == ("12" if line[0] == "Adam" else "6")
    records = [json.loads(path.read_text().splitlines()[-1]) for path in tmp_path.glob("runs/*/records.jsonl")]
    assert sorted(f"{end['test_accuracy']:.2f}" for end in records) == sorted(line[1] for line in table["lines"])
    assert len(results["figures"]) == 1
    assert {verdict["verdict"] for verdict in results["verdicts"]} == {"not resolved"}  # by one seed


def test_a_command_whose_loss_diverges_says_so(tmp_path, capsys):
    assert cli.main(["translation", *ARGUMENTS[: ARGUMENTS.index("--lr")], "--lr", "1e30", "--out", str(tmp_path)]) == 0
    assert "ceased to be finite" in capsys.readouterr().out


def test_wrong_settings_of_a_command_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["translation", "--method", "sams", "--out", str(tmp_path)])
    assert "did you mean sam" in capsys.readouterr().err
    assert cli.main(["translation", "--data", "multi30k", "--data-dir", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "multi30k for train.de" in capsys.readouterr().err
    assert Path(tmp_path / "runs").exists()
