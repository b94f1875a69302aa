"""Runs as values: ids that follow from what matters, settings as people write them, errors that help."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from lookbehind.training.methods import METHODS, method, phases
from lookbehind.training.run import Run, run_from, with_overrides
from lookbehind.training.settings import Settings

OTHER = {  # another value for every setting
    "data": "cifar10",
    "model": "wrn-10-1",
    "epochs": 7,
    "gradients": 1000,
    "rho": 0.3,
    "asam_rho": 0.9,
    "eta": 0.2,
    "k": 3,
    "alpha": 0.7,
    "micro_batch": 16,
    "every": 3,
    "ascent_part": 0.5,
    "widen": 3.0,
    "average": 0.9,
    "batchnorm": "all",
    "base": "adamw",
    "lr": 0.7,
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.3,
    "batch_size": 32,
    "schedule": "step",
    "milestones": (2, 3),
    "step_size": 3,
    "gamma": 0.3,
    "lr_changes": "epoch",
    "warmup": 1.0,
    "label_smoothing": 0.1,
    "precision": "bf16",
    "clip": 0.5,
    "checkpointing": True,
    "offload": True,
    "train_images": 100,
    "validation": 10,
    "reserved": 20,
    "pool": 2,
    "augmentation": "flip",
    "preparation": "vit",
    "evaluate_every": 2,
    "device": "cpu:0",
    "threads": 2,
}
FALLING = {"milestones", "step_size", "gamma"}  # read by schedules other than the usual cosine
SAVING = {"checkpointing", "offload"}  # they save memory and change no result


def test_there_is_another_value_for_every_setting():
    assert set(OTHER) == {f.name for f in fields(Settings)}


def ids_differ(run: Run, name: str) -> bool:
    return replace(run, **{name: OTHER[name]}).id != run.id


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        (
            "sgd",
            {
                "rho",
                "asam_rho",
                "eta",
                "k",
                "alpha",
                "micro_batch",
                "every",
                "ascent_part",
                "batchnorm",
                "base",
                "widen",
            },
        ),
        ("sam", {"asam_rho", "eta", "k", "alpha", "micro_batch", "widen"}),
        ("lookbehind-sam", {"asam_rho", "eta", "micro_batch", "widen"}),
        ("lookbehind-m-asam", {"rho", "every", "ascent_part", "widen"}),
        ("multistep-asam", {"rho", "alpha", "micro_batch", "widen"}),
        (
            "lookahead-sgd",
            {"rho", "asam_rho", "eta", "micro_batch", "every", "ascent_part", "batchnorm", "base", "widen"},
        ),
        ("sam-matched", {"asam_rho", "eta", "micro_batch", "widen"}),
        ("sam+lookbehind-asam@3", {"micro_batch"}),
        ("sam+sgd@3", {"asam_rho", "eta", "k", "alpha", "micro_batch", "widen", "base"}),
    ],
)
def test_an_id_follows_from_what_the_method_reads_and_nothing_else(name, unread):
    run = Run(method=name)
    same = {setting for setting in OTHER if not ids_differ(run, setting)}
    assert same == unread | FALLING | SAVING


def test_schedules_read_their_own_settings():
    read = {
        "multistep": {"milestones", "gamma"},
        "step": {"step_size", "gamma"},
        "cosine": {"lr_changes"},
        "constant": set(),
    }
    for schedule, names in read.items():
        run = Run(schedule=schedule)
        assert {name for name in FALLING | {"lr_changes"} if ids_differ(run, name)} == names


def test_an_id_is_the_same_everywhere_and_always():
    """Raise FORMAT if this changes: files of earlier runs would be taken for others."""
    run = Run(data="cifar10", method="lookbehind-sam", k=2, alpha="adaptive", seed=3, device="cpu")
    assert run.id == "lookbehind-sam-seed3-fc9296deab"
    assert Run(method="sam+lookbehind-sam@20", device="cpu").id.startswith("sam_lookbehind-sam_20-seed0-")


def test_what_is_usual_and_what_is_given_are_the_same_run():
    usual = Run(data="digits", method="asam")
    assert usual.id == replace(usual, lr=0.05, epochs=40, asam_rho=0.5, model="convnet").id
    assert Run(data="cifar100", method="sam").filled.rho == 0.1
    assert Run(data="imagenet", method="asam").filled.asam_rho == 1.0


@pytest.mark.parametrize("name", [*METHODS, "sam+lookbehind-asam@3"])
def test_a_saved_run_is_read_again(name):
    run = Run(method=name, schedule="multistep", milestones=(3, 5), alpha=0.3, seed=7)
    again = run_from(json.loads(json.dumps(run.identity)))
    assert again.id == run.id
    assert again.filled.identity == run.identity


def test_a_run_of_another_version_is_named():
    with pytest.raises(ValueError, match="colour: another version of lookbehind"):
        run_from({"data": "digits", "colour": "red"})


def test_the_same_number_is_the_same_run_however_it_is_written():
    import numpy as np

    run = Run(method="lookahead-sgd", lr=1.0, alpha=1.0, warmup=1.0, epochs=3)
    assert Run(method="lookahead-sgd", lr=1, alpha=1, warmup=1, epochs=np.int64(3)).id == run.id
    assert Run(seed=2**53 + 1).seed == 2**53 + 1  # which no float is
    assert Run(milestones=(), schedule="multistep").id == Run(schedule="multistep").id
    assert len(Run(method="+".join(["sgd", *(f"sam@{i}" for i in range(1, 60))])).id) < 100


# --- as people write them


def test_settings_behind_a_method_are_its_own():
    settings = Settings(rho=0.1, asam_rho=1.0, k=5)
    assert with_overrides(settings, "lookbehind-sam:k=2,alpha=adaptive", 1) == Run(
        method="lookbehind-sam", rho=0.1, asam_rho=1.0, k=2, alpha="adaptive", seed=1
    )
    assert with_overrides(settings, "asam:rho=0.7", 0).radius("asam") == 0.7
    assert with_overrides(settings, "sgd+asam@3:rho=0.7", 0).radius("asam") == 0.7
    assert with_overrides(settings, "sam:rho=0.7,batch-size=32,nesterov=true", 0) == Run(
        method="sam", rho=0.7, asam_rho=1.0, batch_size=32, nesterov=True
    )
    assert with_overrides(settings, "sgd:milestones=3/5,schedule=multistep", 0).milestones == (3, 5)
    assert with_overrides(settings, "sam", 0).k == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("samm", "did you mean sam"),
        ("lookbehind-sam:k", "write settings as NAME=VALUE"),
        ("lookbehind-sam:kk=2", "kk is not a setting of a method; did you mean k?"),
        ("sam:data=cifar10", "data is not a setting of a method; it must be the same for all methods"),
        ("sam:seed=3", "seed is not a setting of a method"),
        ("sgd:rho=0.3", "sgd does not read rho; leave it out"),
        ("sam:widen=3", "sam does not read widen; leave it out"),
        ("sam+repeat-sam@5:widen=-1", "widen=-1.0: give a factor from 0 to 1000, such as 3"),
        ("sam+repeat-sam@5:widen=1e308", "widen=1e[+]308: give a factor"),
        ("sam+repeat-sam@5:widen=nan", "widen=nan: give a factor"),
        ("sam:k=3", "sam does not read k"),
        ("sam:milestones=a/b,schedule=multistep", "milestones='a/b': give whole numbers"),
        ("sam@3", "the first method begins at once"),
        ("lookbehind-sam:k=two", "k='two': give a whole number"),
        ("lookbehind-sam:rho=two", "rho='two': give a number"),
        ("lookbehind-sam:k=0", "k=0: give an integer >= 1"),
        ("lookbehind-sam:alpha=1.5", "alpha=1.5: give a number from 0 to 1"),
        ("lookbehind-sam:alpha=adaptiv", "alpha='adaptiv'"),
        ("lookbehind-sam:rho=nan", "rho=nan"),
        ("lookahead-sam:alpha=adaptive", "it needs a number; write lookahead-sam:alpha=0.5"),
        ("sam-matched:alpha=adaptive", "it needs a number; write sam-matched:alpha=0.5"),
        ("sam+lookbehind-sam", "write the later parts as NAME@EPOCH"),
        ("sam+lookbehind-sam@0", "must grow, from 1 on"),
        ("sam+sgd@5+sam@3", "must grow"),
        ("adam+sgd@5", "the base optimizer is kept over a switch"),
        ("", "method=''"),
    ],
)
def test_wrong_methods_are_named_with_a_remedy(text, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        with_overrides(Settings(), text, 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": "mnist"}, "data='mnist': choose one of 'digits'"),
        ({"model": "resnet9"}, "model='resnet9': choose one of"),
        ({"epochs": 0}, "epochs=0"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"momentum": 1.0}, "momentum=1.0: give a number below 1"),
        ({"milestones": (5, 3)}, "growing epochs"),
        ({"device": "gpu"}, "device='gpu': give auto"),
        ({"device": "cuda"}, "torch sees no GPU here"),
        ({"threads": 0}, "threads=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "below 2.63"),
        ({"device": "meta"}, "device='meta': give auto"),
        ({"model": "wrn-11-1"}, "a depth of 6n . 4"),
        ({"model": "wrn-16-0"}, "model='wrn-16-0'"),
        ({"nesterov": True, "momentum": 0.0}, "needs a momentum"),
        ({"augmentation": "cutmix"}, "augmentation='cutmix': choose one of"),
        ({"schedule": "linear"}, "schedule='linear': choose one of"),
    ],
)
def test_wrong_settings_are_named_with_a_remedy(settings, words):
    with pytest.raises(ValueError, match=words):
        Run(**settings)


def test_every_method_tells_its_cost_and_what_it_reads():
    costs = {name: METHODS[name].gradients(4) for name in METHODS}
    assert costs["sgd"] == costs["lookahead-adamw"] == costs["m-sgd"] == 1
    assert {costs[n] for n in ("sam", "m-asam", "lookahead-sam", "repeat-sam", "asam-matched", "sam-long-step")} == {2}
    switching = [n for n in costs if n.endswith("-switching")]
    assert {costs[n] for n in switching} == {2}
    assert {costs[n] for n in costs if n.startswith(("multistep", "lookbehind")) and n not in switching} == {5}
    assert method("lookbehind-m-asam").numbers == ("rho", "eta", "k", "alpha", "micro_batch")
    assert [(p.start, p.method.name) for p in phases("sam+sgd@2")] == [(0, "sam"), (2, "sgd")]
