"""Lifelong learning as the paper's table 2: its rows and grids, what its page says of runs that are missing."""

from __future__ import annotations

from dataclasses import replace

from outcomes import lifelong_outcome

from lookbehind.experiments.lifelong_pictures import lifelong_pictures
from lookbehind.experiments.lifelong_report import summary
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.choices import Choices
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.numbers import TABLE_2
from lookbehind.experiments.paper.scales import LAPTOP, PAPER, SMOKE

TASK = SMOKE.lifelong.tasks[0]
LOWER = [[90.0], [80.0, 70.0], [60.0, 50.0, 40.0]]


def rows(scale=PAPER, key="split-cifar100"):
    return {arm.name: arm.candidates for arm in experiment("table2").arms(scale.task(key), scale)}


def test_the_grid_of_the_paper():
    """Table 6: ten learning rates, four radii, three k, five alphas."""
    found = rows()
    lrs, rhos, ks, alphas = 10, 4, 3, 5
    for before in ("", "ER + "):
        assert len(found[f"{before}SGD"]) == lrs
        assert len(found[f"{before}SAM"]) == lrs * rhos
        assert len(found[f"{before}Multistep-SAM"]) == len(found[f"{before}Multistep-SAM, average"]) == lrs * rhos * ks
        assert len(found[f"{before}Lookbehind-SAM"]) == lrs * rhos * ks * alphas
    # what the paper found best by it (table 7) is among them
    assert "sam:lr=0.03,rho=0.05" in found["SAM"]
    assert "er+lookbehind-sam:lr=0.03,rho=0.05,k=10,alpha=0.2" in found["ER + Lookbehind-SAM"]
    assert "lookbehind-sam:lr=0.1,rho=0.05,k=10,alpha=0.1" in found["Lookbehind-SAM"]
    assert "lookbehind-c-maml:lr=0.03,rho=0.005,k=2,alpha=1" in found["Lookbehind-C-MAML"]


def test_both_readings_and_the_missing_baselines_are_rows():
    for scale, key in ((PAPER, "split-cifar100"), (PAPER, "split-tiny-imagenet"), (LAPTOP, "split-cifar100")):
        found = rows(scale, key)
        assert TABLE_2.keys() <= found.keys()
        restarted = found["Lookbehind-C-MAML, restarted at the climbed point"]
        assert restarted == tuple(f"{one},outer=meta" for one in found["Lookbehind-C-MAML"])
        assert {f"{before}Multistep-SAM, average" for before in ("", "ER + ")} <= found.keys()
        assert found["ER + SGD, lr 0.03"] == ("er+sgd:lr=0.03",)
        assert found["Lookahead-C-MAML, 2 inner steps, lr 0.03"] == ("lookahead-c-maml:lr=0.03,k=2",)
    la_maml = "Lookahead-C-MAML, 5 inner steps, mean loss"
    assert rows()[la_maml] == ("lookahead-c-maml:lr=0.075,k=5,meta_loss=mean",)
    assert rows(key="split-tiny-imagenet")[la_maml] == ("lookahead-c-maml:lr=0.03,k=5,meta_loss=mean",)
    assert rows()["ER + SGD, 1 replayed image"] == ("er+sgd:lr=0.03,replay=1",)
    assert rows(key="split-tiny-imagenet")["ER + SGD, 1 replayed image"] == ("er+sgd:lr=0.01,replay=1",)


def test_the_paper_s_own_settings_are_rows_beside_its_numbers():
    """Table 7; of those with replay, where its grid has them."""
    found, tiny = rows(), rows(key="split-tiny-imagenet")
    of = ("ER + SAM", "ER + Multistep-SAM", "ER + Lookbehind-SAM")
    assert [found[f"{name}, settings of the paper"] for name in of] == [
        ("er+sam:lr=0.1,rho=0.05",),
        ("er+multistep-sam:lr=0.1,rho=0.05,k=10",),
        ("er+lookbehind-sam:lr=0.03,rho=0.05,k=10,alpha=0.2",),
    ]
    for name in of:
        assert set(found[f"{name}, settings of the paper"]) < set(found[name])
        assert set(tiny[f"{name}, settings of the paper"]) < set(tiny[name])
    (table, _) = experiment("table2").show(findings()).tables
    shown = {line[0]: line[table.heads.index("paper, accuracy")] for line in table.lines}
    assert shown["ER + SAM, settings of the paper"] == shown["ER + SAM"] == "68.28 ± 1.30"


def findings(*candidates, seeds=2, images=2250, before=None):
    """Rows of the table that have so many seeds; all settings of a row are there, alike."""
    known = {}
    for candidate, trained in candidates:
        known |= dict(lifelong_outcome(TASK, candidate, seed, LOWER, images_per_task=images) for seed in range(trained))
    chosen = Choices("table2", before or {})
    return Findings(SMOKE, range(seeds), (TASK,), known, range(0), chosen)


def choice(**names):
    return {TASK.key: dict.fromkeys(("honest", "paper"), names)}


def test_a_row_that_lacks_seeds_is_drawn_and_says_so():
    control = "lookahead-c-maml:lr=0.1,k=2"
    before = choice(**{"SGD": "sgd:lr=0.1", "Lookahead-C-MAML": control})
    found = findings(("sgd:lr=0.1", 2), (control, 1), before=before)
    output = experiment("table2").show(found)
    captions = {picture.name: picture.caption for picture in output.pictures}
    assert "SGD 50.0" in captions[f"table2-{TASK.key}-alone-average"]
    assert "Lookahead-C-MAML (1 of 2 seeds) 50.0" in captions[f"table2-{TASK.key}-memory-average"]
    assert "mean over seeds, band from least to greatest" in captions[f"table2-{TASK.key}-alone-average"]
    assert "one seed" in captions[f"table2-{TASK.key}-memory-average"]


def test_the_page_says_where_settings_come_from_and_how_many_images_there_were():
    """Also where no row has all its seeds."""
    before = choice(SGD="sgd:lr=0.1")
    (honest, paper) = experiment("table2").show(findings(("sgd:lr=0.1", 1), images=450, before=before)).tables
    for table in (honest, paper):
        assert "450 training images per task (the paper: 2,250)" in table.note
        assert "in an earlier search (`--choices`)" in table.note
    assert "held-out images" in honest.note
    assert "test images of all tasks, so too good" in paper.note
    (searched, _) = experiment("table2").show(findings()).tables
    assert "earlier" not in searched.note


def test_a_row_whose_settings_were_not_searched_says_whose_they_are():
    before = choice(**{"SGD": "sgd:lr=0.1", "ER + SGD": "er+sgd:lr=0.1"})
    found = findings(("sgd:lr=0.1", 2), ("er+sgd:lr=0.1", 2), before=before)
    found = replace(found, before=replace(found.before, like={TASK.key: {"ER + SGD": "SGD"}}))
    for table in experiment("table2").show(found).tables:
        settings = {line[0]: line[table.heads.index("settings")] for line in table.lines}
        assert settings["SGD"] == "lr 0.1"
        assert settings["ER + SGD"] == "lr 0.1 (not searched: as SGD)"
    # of the protocol whose settings are in the file
    half = {TASK.key: {"honest": found.before.chosen[TASK.key]["honest"]}}
    searched = findings(("er+sgd:lr=0.1", 2), ("er+sgd:lr=0.03", 2), before=half)
    searched = replace(searched, before=replace(searched.before, like=found.before.like))
    tables = experiment("table2").show(searched).tables
    lines = [next(line for line in table.lines if line[0] == "ER + SGD") for table in tables]
    assert ["not searched" in line[tables[0].heads.index("settings")] for line in lines] == [True, False]


def test_a_run_on_fewer_images_says_so():
    end = dict.fromkeys(("test_accuracy", "forgetting", "backward_transfer", "learning_accuracy"), 1.0)
    end |= {"validation_accuracy": 1.0, "gradient_evaluations": 10, "images_per_task": 450}
    assert summary(end, 2250)["training images per task"] == "450 of 2,250"
    assert summary(end, 450)["training images per task"] == "450"


def test_a_caption_tells_of_bands_only_where_there_are_some():
    """With more than eight methods there are none."""
    several = {f"method {i}": [LOWER, [[70.0], [60.0, 60.0], [50.0, 40.0, 30.0]]] for i in range(9)}
    captions = [picture.caption for picture in lifelong_pictures(several)]
    assert "mean over seeds; bands are left out, there would be too many" in captions[0]
    fewer = [picture.caption for picture in lifelong_pictures(dict(list(several.items())[:8]))]
    assert "mean over seeds, band from least to greatest" in fewer[0]
