"""The paper's experiments: grids as the paper has them, verdicts worked by hand, every page at the smallest scale."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from outcomes import outcome

from lookbehind import cli
from lookbehind.experiments.figures import non_dominated
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.pages import latex
from lookbehind.experiments.paper import numbers
from lookbehind.experiments.paper.catalogue import IDS, experiment
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import Arm, in_words, radius, table_1
from lookbehind.experiments.paper.plan import Reproduction, runs_of, unfinished
from lookbehind.experiments.paper.reproduce import _with_data, reproduce
from lookbehind.experiments.paper.scale import changed
from lookbehind.experiments.paper.scales import LAPTOP, PAPER, SMOKE
from lookbehind.experiments.paper.table1 import CLAIMS, LONGER
from lookbehind.experiments.paper.tables import row_of
from lookbehind.experiments.pool import Ended
from lookbehind.training.measuring import Measures
from lookbehind.training.run import with_overrides
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Every experiment at the smallest scale; runs that they share are trained once."""
    out = tmp_path_factory.mktemp("paper")
    wanted = Reproduction(experiments=IDS, scale="smoke", jobs=1, storage=Storage(out=out))
    ended = []
    pages = reproduce(wanted, lambda told: ended.append(told) if isinstance(told, Ended) else None, "lookbehind ...")
    return wanted, pages, [one.run.id for one in ended]


# --- grids


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


def test_captions_say_what_was_searched(smoke):
    assert in_words(k=(2, 5), alpha=(0.5, 0.8)) == "the best k and alpha"
    assert in_words(k=(2, 5), alpha=(0.5,)) == "the best k, alpha 0.5"
    assert in_words(alpha=(0.5,)) == "alpha 0.5"
    _, pages, _ = smoke
    for name, words in (
        ("figure1", "; k 2, alpha 0.5."),
        ("figure3", "; k 2, alpha 0.5, the least sharp"),
        ("figure5", "default rho, the best alpha at every k"),
        ("figure6", "; k 2, alpha 0.5 at every rho"),
        ("figure8", "default rho, alpha 0.5 at every point"),
    ):
        for figure in json.loads((pages[name] / "results.json").read_text())["figures"]:
            assert words in figure["caption"]


def test_experiments_share_their_runs(smoke):
    wanted, _, trained = smoke
    alone = sum(len(runs_of(Reproduction(experiments=(name,), scale="smoke"))) for name in IDS)
    together = runs_of(wanted)
    assert len(trained) == len(set(trained)) == len(together) < alone / 2
    assert unfinished(wanted) == []


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


def test_what_is_not_the_papers_says_so_first(smoke):
    _, pages, _ = smoke
    found = [
        one["claim"] for page in pages.values() for one in json.loads((page / "results.json").read_text())["verdicts"]
    ]
    ours = [claim for claim in found if "not in the paper" in claim]
    assert len(ours) > 10
    assert all(claim.startswith("not in the paper: ") for claim in ours)


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


# --- pages


@pytest.mark.parametrize("name", IDS)
def test_every_experiment_has_its_page(smoke, name):
    _, pages, _ = smoke
    out = pages[name]
    found = json.loads((out / "results.json").read_text())
    assert found["experiment"] == name
    assert found["claim"] == experiment(name).claim
    assert found["tables"] or found["figures"]
    page = (out / "report.html").read_text()
    assert "None" not in page.replace("None of", "")
    assert page.count("<svg") == len(found["figures"])
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert not any("." in one for one in ids)
    for drawing in found["figures"]:
        assert (out / "figures" / f"{drawing['name']}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / "figures" / f"{drawing['name']}.svg").exists()
    assert experiment(name).title in (out / "results.md").read_text()
    if found["tables"]:
        assert (out / "results.tex").read_text().count(r"\begin{tabular}") == len(found["tables"])
    for verdict in found["verdicts"]:
        assert verdict["verdict"] in ("holds", "contradicted", "not resolved", "not run")


def test_the_table_shows_ours_beside_the_papers(smoke):
    wanted, pages, _ = smoke
    honest, _ = json.loads((pages["table1"] / "results.json").read_text())["tables"]
    assert honest["heads"][3] == "paper, C10 RN-34"
    row = next(line for line in honest["lines"] if line[0] == "Lookbehind-SAM")
    assert row[3] == "96.27 ± 0.07"
    # worked again from the records: the candidate with the best held-out accuracy, its test accuracy in the last epoch
    task = SMOKE.tasks[0]
    best = None
    for candidate in next(arm for arm in table_1(task, SMOKE) if arm.name == "Lookbehind-SAM").candidates:
        ends = []
        for seed in range(2):
            path = wanted.storage.directory(with_overrides(task.settings, candidate, seed)) / "records.jsonl"
            ends.append(json.loads(path.read_text().splitlines()[-1]))
        held = sum(end["validation_accuracy"] for end in ends)
        if best is None or held > best[0]:
            best = held, np.mean([end["test_accuracy"] for end in ends])
    assert row[1].startswith(f"{best[1]:.2f}")


def test_sharpness_stands_beside_what_it_depends_on(smoke):
    wanted, pages, _ = smoke
    (table,) = json.loads((pages["figure1"] / "results.json").read_text())["tables"]
    row = next(line for line in table["lines"] if line[0] == "SAM, rho 0.05")
    ends = []
    for seed in range(2):
        directory = wanted.storage.directory(with_overrides(SMOKE.tasks[0].settings, "sam:rho=0.05", seed))
        ends.append(json.loads((directory / "records.jsonl").read_text().splitlines()[-1]))
    losses, accuracies = ([end[key] for end in ends] for key in ("train_loss", "test_accuracy"))
    assert row[table["heads"].index("training loss")].startswith(f"{np.mean(losses):.3f}")
    assert row[table["heads"].index("test accuracy %")].startswith(f"{np.mean(accuracies):.2f}")
    size = float(row[table["heads"].index("norm of the weights")].split()[0])
    assert float(row[table["heads"].index("largest radius / norm")]) == pytest.approx(1.0 / size, abs=0.006)
    both = json.loads((pages["figure3"] / "results.json").read_text())["tables"]
    assert [len(one["lines"]) for one in both] == [8, 8]  # four methods at two radii


def test_latex_escapes_what_it_must():
    text = latex(Grid("t", "", ["method", "a_b %"], [["x & y", "1 ± 2"]]))
    assert r"a\_b \%" in text
    assert r"x \& y & 1 $\pm$ 2 \\" in text


def test_data_that_is_missing_leaves_the_rest_alone(tmp_path):
    wanted = Reproduction(experiments=("table1",), storage=Storage(out=tmp_path, data_dir=tmp_path, download=False))
    there, lacking = ((with_overrides(Settings(data=data), "sgd", 0), Measures()) for data in ("digits", "cifar10"))
    told = []
    assert _with_data(wanted, [lacking, there], told.append) == [there]
    notice, coming, ended = told
    assert coming.runs == [lacking[0]]
    assert "cifar10 is left out" in notice.text
    assert (ended.run, ended.error) == (lacking[0], notice.text)
    with pytest.raises(FileNotFoundError, match="cifar-10"):
        _with_data(wanted, [lacking], told.append)
    # nothing is left to train, but other tasks, finished before, have a page to be written
    more = replace(wanted, experiments=("table1", "table2"))
    assert _with_data(more, [lacking], told.append) == []


def test_the_smallest_scale_says_that_it_judges_nothing(smoke):
    _, pages, _ = smoke
    notices = json.loads((pages["table1"] / "results.json").read_text())["about"]["notices"]
    assert notices == [
        "the scale smoke shows in seconds that everything works, and nothing else: its verdicts mean nothing"
    ]
    assert PAPER.judges
    assert LAPTOP.judges


def test_the_command(smoke, capsys):
    wanted, pages, _ = smoke
    out = str(wanted.storage.out)
    assert cli.main(["reproduce", "table5", "--scale", "smoke", "--no-train", "--out", out]) == 0
    assert str(pages["table5"] / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert cli.main(["list", "experiments"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in IDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table7"], "choose one of table1"),
        (["table1", "--shard", "4/3"], "shard='4/3': give I/N"),
        (["table1", "--change", "nothing"], "give NAME=VALUE"),
        (["table1", "figure5", "--search-seeds", "1"], "figure5 shows more than every row"),
        (["table1", "--search-seeds", "0"], "search_seeds=0"),
        (["table1", "--fresh"], "fresh=True: give search_seeds too"),
        (["table1", "--fresh", "--search-seeds", "2"], "fresh=True: all 2 seeds search; give more --seeds"),
        (["table2", "--search-tasks", "0"], "search_tasks=0"),
        (["table2", "--search-tasks", "3"], "search_tasks=3: digits, 3 tasks has 3 tasks; give fewer"),
        (["table1", "--search-tasks", "2"], "search_tasks=2: table1 is no lifelong learning"),
        (["table1", "--search-tasks", "5"], "search_tasks=5: table1 is no lifelong learning"),
        (["table1", "table2", "--rows", "ER + SGD"], "table1 has none of them"),
        (["table1", "--jobs", "0"], "jobs=0"),
        (["table1", "--rows", "ER", "SGD"], "rows='ER': choose one of 'SGD'"),
    ],
)
def test_wrong_words(words, message, capsys, tmp_path):
    try:
        code = cli.main(["reproduce", *words, "--scale", "smoke", "--out", str(tmp_path)])
    except SystemExit as ended:
        code = ended.code
    shown = capsys.readouterr()
    assert code == 2
    assert message in " ".join((shown.out + shown.err).replace("│", " ").split())


def test_all_claims_are_on_one_page(smoke):
    _, pages, _ = smoke
    directory = next(iter(pages.values())).parent
    text = (directory / "index.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    told = {name: json.loads((page / "results.json").read_text())["verdicts"] for name, page in pages.items()}
    assert len(rows) == sum(max(1, len(verdicts)) for verdicts in told.values())
    for name, verdicts in told.items():
        mine = [row for row in rows if row.startswith(f"| [{name}](")]
        assert [row.split(" | ")[-1].rstrip(" |") for row in mine] == (
            [one["verdict"] for one in verdicts] or ["shown, not judged"]
        )


def diverged(found, key):
    found[key].records[-1].update(diverged=True, test_accuracy=None, validation_accuracy=None)


def test_why_a_row_has_no_number():
    """The search is not finished, or all it tried diverged, or what it chose did; or other seeds are still to come."""
    task, arm = SMOKE.tasks[0], Arm("SAM", ("sam:rho=0.05", "sam:rho=0.1"))
    known = dict(
        outcome(task, one, seed, validation_accuracy=held, test_accuracy=held)
        for one, held in zip(arm.candidates, (80.0, 85.0), strict=True)
        for seed in (0, 1)
    )
    keys = [[with_overrides(task.settings, one, seed).id for seed in range(3)] for one in arm.candidates]

    def found(**changes):
        return replace(Findings(SMOKE, range(3), (task,), dict(known), range(2)), **changes)

    def words(findings):
        cell, said = row_of(findings, task, arm, "honest")
        judged_by = findings.best(task, arm, "validation_accuracy")  # a row with all its seeds; tables show others too
        assert judged_by == (None if said else cell)
        return said if cell is None else f"{cell.mean('test_accuracy'):g}, {cell.settings}{said}"

    assert words(found()) == "85, rho 0.1 (2 of 3 seeds)"  # of what was chosen
    assert words(found(seeds=range(2))) == "85, rho 0.1"
    assert words(found(seeds=range(2), searching=None)) == "85, rho 0.1"
    lacking = {key: one for key, one in known.items() if key != keys[0][1]}
    assert words(found(seeds=range(2), known=lacking)) == "search not finished"  # nothing is chosen before
    assert words(found(known={})) == "not run"
    assert words(found(seeds=range(2, 3))) == "not run"  # of what was chosen
    diverged(known, keys[0][0])
    assert words(found()) == "85, rho 0.1 (2 of 3 seeds)"
    assert words(found(seeds=range(2))) == "85, rho 0.1"
    diverged(known, keys[1][1])
    assert words(found()) == words(found(seeds=range(2, 3))) == "N/A: a seed diverged"
    # a row without a choice
    arm = Arm("SGD", ("sgd",))
    assert words(found()) == "not run"
    known |= [outcome(task, "sgd", 0)]
    diverged(known, with_overrides(task.settings, "sgd", 0).id)
    assert words(found(seeds=range(1))) == "N/A: a seed diverged"


# --- what a gain costs


def test_what_nothing_cheaper_is_above():
    points = {"a": (1, 5.0), "worse": (2, 4.0), "b": (2, 6.0), "same": (3, 6.0), "c": (4, 7.0), "none": (9, None)}
    assert non_dominated(points) == ["a", "b", "c"]
    assert non_dominated({}) == []


def test_the_rows_of_the_frontier_cost_what_they_say():
    """In gradients of plain SGD on the same task: k + 1 = 6 for all of Lookbehind, 2 for what competes with it."""
    task = LAPTOP.task("c10-rn34")
    arms = {arm.name: arm for arm in experiment("frontier").arms(task, LAPTOP)}
    one = with_overrides(task.settings, "sgd", 0).cost
    costs = {
        name: {with_overrides(task.settings, c, 0).cost / one for c in arm.candidates} for name, arm in arms.items()
    }
    assert {name: round(min(found), 2) for name, found in costs.items() if len(found) == 1} == {
        "SGD": 1.0,
        "SAM": 2.0,
        "SAM, matched step": 2.0,
        "SAM, gradient repeated": 2.0,
        "Lookbehind-SAM": 6.0,
        "ASAM": 2.0,
        "ASAM, gradient repeated": 2.0,
        "Lookbehind-ASAM": 6.0,
        "Lookbehind, adaptive": 6.0,
        "SAM, as many gradients": 6.0,
        "Lookbehind, last quarter": 3.07,
        "Lookbehind, last half": 4.0,
        "Repeated, last quarter": 2.0,
        "Repeated, last half": 2.0,
        "SAM wider, last half": 2.0,
        "Repeated wider, last half": 2.0,
        "Matched step, last half": 2.0,
        "Repeated wider, last quarter": 2.0,
        "Lookbehind, first quarter": 3.07,
        "Lookbehind, first half": 4.0,
        "Lookbehind, every 2nd": 3.5,
        "Lookbehind, part climbs": 5.25,
        "SGD, averaged": 1.0,
        "SAM, averaged": 2.0,
        "Lookbehind, averaged": 6.0,
    }
    longer = experiment("frontier").arms(PAPER.task("c10-rn34"), PAPER)
    assert next(arm for arm in longer if arm.name == "SAM, as many gradients").candidates[0] == (
        "sam:rho=0.1,epochs=600,milestones=150/300/450"
    )
    assert [one.partition(",")[0] for one in arms["SAM"].candidates] == [
        f"sam:rho={rho}" for rho in (0.05, 0.1, 0.2, 0.3)
    ]
    rhos = [arms[name].candidates for name in ("Lookbehind-SAM", "SAM, matched step")]
    assert [[one.partition(",")[0].partition("=")[2] for one in row] for row in rhos] == [["0.05", "0.1", "0.2"]] * 2
    assert arms["SAM, gradient repeated"].candidates[1] == "repeat-sam:rho=0.15,k=5,alpha=0.5"
    assert arms["Lookbehind, last half"].candidates[0] == "sam+lookbehind-sam@15:rho=0.1,k=5,alpha=0.5"
    assert arms["Repeated, last half"].candidates == tuple(
        f"sam+repeat-sam@15:rho={rho},k=5,alpha=0.5" for rho in (0.1, 0.2, 0.3)
    )
    assert arms["Repeated wider, last half"].candidates == tuple(
        f"sam+repeat-sam@15:rho={rho},widen={factor},k=5,alpha=0.5" for rho in (0.1, 0.2) for factor in ("1.5", "3")
    )


def test_the_frontier_shows_what_its_runs_found():
    """By held-out images, where the test images choose otherwise; accuracy, noise and cost of fresh seeds."""
    task = SMOKE.task("c10-rn34")
    rows = experiment("frontier").arms(task, SMOKE)
    sam = next(arm for arm in rows if arm.name == "SAM").candidates
    values = {"sgd": (70.0, 60.0, 100), sam[0]: (75.0, 69.0, 200)} | dict.fromkeys(sam[1:], (80.0, 65.0, 200))
    held = {sam[0]: 90.0}
    known = {}
    for seed in range(3):
        for one, (right, noisy, cost) in values.items():
            key, found = outcome(task, one, seed, validation_accuracy=held.get(one, 50.0), test_accuracy=right + seed,
                                 best_test_accuracy=right + seed, recalibrated_test_accuracy=right, train_loss=0.5,
                                 gradient_evaluations=cost)  # fmt: skip
            known[key] = replace(found, measures={"noise": {"sigmas": [0, 0.3], "values": [[99.0], [noisy + seed]]}})
    output = experiment("frontier").show(Findings(SMOKE, range(1, 3), (task,), known, range(1)))
    by_held_out, by_test = output.tables
    assert by_held_out.title.endswith("settings chosen on held-out images")
    assert by_test.title.endswith("settings chosen on test images")
    rho = sam[1].partition("rho=")[2]
    assert [line for line in by_test.lines if line[0] == "SAM"] == [
        ["SAM", "81.50 ± 0.71", "80.00 ± 0.00", "66.50 ± 0.71", "0.5", f"rho {rho}", "200", "yes"]
    ]
    shown = {line[0]: line[1:] for line in by_held_out.lines}
    assert shown["SGD"] == ["71.50 ± 0.71", "70.00 ± 0.00", "61.50 ± 0.71", "0.5", "", "100", "yes"]
    assert shown["SAM"] == ["76.50 ± 0.71", "75.00 ± 0.00", "70.50 ± 0.71", "0.5", "rho 0.05", "200", "yes"]
    assert shown["Lookbehind-SAM"][0] == "not run"
    assert {found.verdict for _, found in output.verdicts} == {"not run"}  # each needs a row that is not finished
    assert [one.name for one in output.pictures] == [f"frontier-{task.key}-{name}" for name in ("accuracy", "noise")]


def test_the_verdicts_of_the_frontier():
    """By accuracy as one reads it off these numbers; with noise, where they are turned over, the other way round."""
    task = SMOKE.task("c10-rn34")
    rights = {
        "SGD": 70, "SAM": 75, "SAM, gradient repeated": 82, "Lookbehind-SAM": 80, "SAM, as many gradients": 79,
        "ASAM": 75, "ASAM, gradient repeated": 78, "Lookbehind-ASAM": 81, "SAM, matched step": 72,
        "Lookbehind, first half": 76, "Lookbehind, last half": 77, "Lookbehind, last quarter": 74,
        "Lookbehind, first quarter": 73, "Lookbehind, every 2nd": 73, "Lookbehind, part climbs": 73,
        "Lookbehind, adaptive": 73, "SGD, averaged": 71, "SAM, averaged": 74, "Lookbehind, averaged": 83,
        "Repeated, last quarter": 78, "Repeated, last half": 70, "Matched step, last half": 73,
        "SAM wider, last half": 71, "Repeated wider, last half": 72, "Repeated wider, last quarter": 79,
    }  # fmt: skip
    known = {}
    for arm in experiment("frontier").arms(task, SMOKE):
        for one in arm.candidates:
            for seed in range(3):
                right = float(rights[arm.name] + seed)
                key, found = outcome(task, one, seed, validation_accuracy=50.0, test_accuracy=right,
                                     best_test_accuracy=right, recalibrated_test_accuracy=right, train_loss=0.5,
                                     gradient_evaluations=100)  # fmt: skip
                known[key] = replace(found, measures={"noise": {"sigmas": [0, 0.3], "values": [[99.0], [100 - right]]}})
    output = experiment("frontier").show(Findings(SMOKE, range(1, 3), (task,), known, range(1)))
    contradicted = {
        "Lookbehind-SAM is above one gradient of a larger rho, repeated: 2 evaluations in place of k + 1",
        "the gain comes early: Lookbehind in the first half is above Lookbehind in the last",
        "Lookbehind at the end of SAM, for a quarter, is above SAM alone at its best rho",
        "Lookbehind at the end of SAM, for a quarter, is above one gradient repeated there",
        "Lookbehind at the end of SAM, for a quarter, is above one gradient that climbs farther, repeated there",
        "averaged, SAM's weights are above the last ones",
    }
    claims = {found.claim.text.removeprefix("not in the paper: ") for _, found in output.verdicts}
    assert contradicted < claims
    assert len(claims) == 17
    for where, found in output.verdicts:
        wrong = found.claim.text.removeprefix("not in the paper: ") in contradicted
        assert found.verdict == ("contradicted" if wrong == where.endswith("test accuracy %") else "holds"), found


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
