"""The grids of the paper's experiments: settings and rows as the paper has them, what a change makes of them."""

from __future__ import annotations

import pytest

from lookbehind.experiments.paper import numbers
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import radius, table_1
from lookbehind.experiments.paper.plan import Reproduction, unfinished
from lookbehind.experiments.paper.scale import changed
from lookbehind.experiments.paper.scales import LAPTOP, PAPER, SMOKE
from lookbehind.experiments.paper.table1 import CLAIMS, LONGER
from lookbehind.training.run import with_overrides
from lookbehind.training.train import Storage


def test_the_settings_of_the_paper():
    task = PAPER.task("c10-rn34")
    run = with_overrides(task.settings, "lookbehind-asam:k=5,alpha=0.5", 0).filled
    assert (run.epochs, run.batch_size, run.lr, run.momentum, run.nesterov) == (200, 128, 0.1, 0.9, False)
    assert (run.schedule, run.milestones, run.gamma, run.weight_decay) == ("multistep", (50, 100, 150), 0.1, 1e-4)
    assert (run.augmentation, run.batchnorm, run.eta, run.asam_rho, run.train_images) == (
        "crop-flip",
        "all",
        0.0,
        0.5,
        None,
    )
    assert [radius(PAPER.task(key), "sam") for key in ("c10-rn34", "c100-rn50", "in-rn18")] == [0.05, 0.1, 0.05]
    assert [radius(PAPER.task(key), "asam") for key in ("c10-wrn", "c100-wrn", "in-rn18")] == [0.5, 1.0, 1.0]
    imagenet = with_overrides(PAPER.task("in-rn18").settings, "sgd", 0).filled
    assert (imagenet.epochs, imagenet.batch_size, imagenet.milestones) == (90, 400, (30, 60))
    asam = with_overrides(PAPER.task("c100-wrn-asam").settings, "asam", 0).filled
    assert (asam.weight_decay, asam.label_smoothing, asam.schedule, asam.lr_changes) == (5e-4, 0.1, "cosine", "epoch")


def test_table_1_has_the_runs_of_the_paper():
    """82 per CIFAR model, of which 6 are adaptive and in table 3; the controls are ours."""
    arms = {arm.name: arm for arm in table_1(PAPER.task("c10-rn34"), PAPER)}
    ours = [name for name in arms if name in numbers.ACCURACIES]
    assert sum(len(arms[name].candidates) for name in ours) == 76
    assert set(arms["SAM"].candidates) == {f"sam:rho={rho:g}" for rho in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)}
    assert len(arms["Lookbehind-SAM"].candidates) == 9
    longer = arms["SAM, 3 times the epochs"].candidates
    assert longer == ("sam:rho=0.05,epochs=600,milestones=150/300/450",)
    run = with_overrides(PAPER.task("c10-rn34").settings, longer[0], 0)
    assert (run.epochs, run.milestones) == (600, (150, 300, 450))
    imagenet = {arm.name: arm for arm in table_1(PAPER.task("in-rn18"), PAPER)}
    assert {c.split("k=")[1][0] for c in imagenet["Lookbehind-SAM"].candidates} == {"2"}


def test_the_laptop_scale_is_what_the_facts_prescribe():
    run = with_overrides(LAPTOP.tasks[0].settings, "sgd", 0).filled
    assert (run.data, run.pool, run.train_images - run.validation, run.batch_size, run.epochs) == (
        "cifar10",
        2,
        2000,
        64,
        30,
    )
    assert (run.lr, run.schedule, run.weight_decay) == (0.05, "cosine", 5e-4)


@pytest.mark.parametrize("name", ["figure1", "figure3", "figure6", "figure8", "table9"])
def test_what_varies_something_else_already_has_few_alphas(name):
    def alphas(scale):
        task = scale.tasks[0]
        candidates = [one for arm in experiment(name).arms(task, scale) for one in arm.candidates]
        found = {with_overrides(task.settings, one, 0).alpha for one in candidates if "alpha=" in one}
        return {alpha for alpha in found if alpha != "adaptive"}

    assert alphas(LAPTOP) == alphas(SMOKE) == {0.5}
    assert alphas(PAPER) == {0.2, 0.5, 0.8}


@pytest.mark.parametrize("search_seeds", [None, 1])
def test_parts_of_an_array_job_are_all_of_it(tmp_path, search_seeds):
    """Each run in one of them; behind a search they are not of the same size."""

    def of(shard):
        wanted = Reproduction(
            experiments=("table1",),
            scale="smoke",
            shard=shard,
            search_seeds=search_seeds,
            storage=Storage(out=tmp_path),
        )
        return [run.id for run, _ in unfinished(wanted)]

    parts = [of(f"{i}/3") for i in (1, 2, 3)]
    assert sorted(run for one in parts for run in one) == sorted(of(None))
    assert all(parts)
    assert search_seeds or max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("scale", [SMOKE, LAPTOP, PAPER], ids=lambda scale: scale.name)
def test_claims_of_table_1_are_about_rows_that_it_has(scale):
    for task in scale.tasks_of(experiment("table1").tasks):
        names = {arm.name for arm in table_1(task, scale)}
        for claim in (*CLAIMS, *LONGER):
            assert set(claim.rows) <= names
            assert set(claim.than) & names, claim.text


def test_ambiguities_are_options():
    keys = {task.key for task in PAPER.tasks}
    scale = changed(PAPER, ("weight_decay=5e-4", "batchnorm=first"), keys)
    assert all(task.settings.weight_decay == 5e-4 and task.settings.batchnorm == "first" for task in scale.tasks)
    with pytest.raises(ValueError, match="change='decay=1': give NAME=VALUE"):
        changed(PAPER, ("decay=1",), keys)


def test_a_title_follows_a_change():
    usual = Reproduction(experiments=("frontier",)).at.task("c10-rn34").title
    assert usual == "2,000 images of CIFAR-10 (16 x 16), narrow ResNet-8"
    changes = ("pool=1", "train_images=4500", "data=cifar100", "model=resnet18", "label_smoothing=0.1")
    title = Reproduction(experiments=("frontier",), change=changes).at.task("c10-rn34").title
    assert title == "4,000 images of CIFAR-100 (32 x 32), resnet18, label smoothing"
    plain = Reproduction(experiments=("frontier",), change=("model=plain-convnet",)).at.task("c10-rn34").title
    assert plain == "2,000 images of CIFAR-10 (16 x 16), plain convolutional network"
    longer = Reproduction(experiments=("table2",), change=("epochs=10",)).at.task("split-cifar100")
    assert longer.title == "Split-CIFAR100, 10 epochs per task"


def test_a_change_is_one_of_the_experiments_that_are_wanted_in_its_own_type():
    """Images warm up for a part of an epoch, translation for so many minibatches, and only images know fp16."""
    images = Reproduction(experiments=("table1",), change=("precision=fp16", "warmup=1.5", "data=cifar100"))
    assert {(s.precision, s.warmup, s.data) for s in (images.at.task("c10-rn34").settings,)} == {
        ("fp16", 1.5, "cifar100")
    }
    assert images.at.task("translation") == LAPTOP.task("translation")
    text = Reproduction(experiments=("table4-translation",), change=("warmup=5",))
    assert text.at.task("translation").settings.warmup == 5


@pytest.mark.parametrize(
    "name", ["table1", "table2", "table3", "table4-translation", "table4-vit", "table8", "frontier"]
)
def test_every_claim_is_of_rows_that_there_are(name):
    """At some scale: a name that no row has would be passed over, as a row that is still to be run."""
    one, rows, claimed = experiment(name), set(), set()
    for scale in (SMOKE, LAPTOP, PAPER):
        tasks = tuple(scale.tasks_of(one.tasks))
        rows |= {arm.name for task in tasks for arm in one.arms(task, scale)}
        output = one.show(Findings(scale, range(1), tasks, {}, range(0)))
        claimed |= set().union(*(found.claim.names for _, found in output.verdicts))
    # how many times as long a row trains follows from its k: all that may be are named
    claimed = {name for name in claimed if not name.endswith("times the epochs")}
    assert claimed
    assert claimed <= rows, claimed - rows


@pytest.mark.parametrize("name", ["table1", "table2", "table4-translation"])
def test_runs_with_several_threads_share_the_cores(name, monkeypatch):
    """By the threads of its own tasks, not of other experiments."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert Reproduction(experiments=(name,), scale="smoke").workers == 8
    assert Reproduction(experiments=(name,), scale="smoke", change=("threads=2",)).workers == 4
