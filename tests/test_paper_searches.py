"""Rows of a table and the search of their settings: with few seeds, on few tasks, or made before."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lookbehind import cli
from lookbehind.experiments.paper.choices import read_choices
from lookbehind.experiments.paper.grid import table_1
from lookbehind.experiments.paper.plan import Reproduction, runs_of, unfinished
from lookbehind.experiments.paper.reproduce import reproduce
from lookbehind.experiments.paper.scales import SMOKE
from lookbehind.experiments.pool import Coming
from lookbehind.training.run import with_overrides
from lookbehind.training.train import Storage


def test_a_search_with_few_seeds_leaves_the_best_settings_to_the_others(tmp_path):
    """Chosen by the first seed's validation (and test) accuracy alone, whatever the second seed would say."""
    wanted = Reproduction(
        experiments=("table1",),
        scale="smoke",
        rows=("SGD", "Lookbehind-SAM"),
        search_seeds=1,
        jobs=1,
        storage=Storage(out=tmp_path),
    )
    settings = SMOKE.tasks[0].settings
    candidates = next(arm for arm in table_1(SMOKE.tasks[0], SMOKE) if arm.name == "Lookbehind-SAM").candidates
    # nothing is known yet but that there is one SGD
    assert [(run.method, run.seed) for run, _ in runs_of(wanted)] == [
        ("lookbehind-sam", 0),
        ("lookbehind-sam", 0),
        ("sgd", 0),
        ("sgd", 1),
    ]
    told = []
    page = reproduce(wanted, told.append)["table1"]
    coming = [one.runs for one in told if isinstance(one, Coming)]
    assert unfinished(wanted) == []

    def end(candidate, seed):
        directory = wanted.storage.directory(with_overrides(settings, candidate, seed))
        return json.loads((directory / "records.jsonl").read_text().splitlines()[-1])

    chosen = {
        protocol: max(candidates, key=lambda one: end(one, 0)[by])
        for protocol, by in (("honest", "validation_accuracy"), ("paper", "best_test_accuracy"))
    }
    second = {run.id for run, _ in runs_of(wanted) if run.seed == 1}
    assert second == {with_overrides(settings, one, 1).id for one in {"sgd", *chosen.values()}}
    assert [len(runs) for runs in coming] == [4, len(second) - 1]
    # another call for one row keeps the others on the page
    page = reproduce(replace(wanted, rows=("SGD",)))["table1"]
    results = json.loads((page / "results.json").read_text())
    for table in results["tables"]:
        protocol = "honest" if "honest" in table["title"] else "paper"
        key = "test_accuracy" if protocol == "honest" else "best_test_accuracy"
        line = next(line for line in table["lines"] if line[0] == "Lookbehind-SAM")
        values = [end(chosen[protocol], seed)[key] for seed in range(2)]
        assert line[1].startswith(f"{np.mean(values):.2f}")
        assert line[4] == chosen[protocol].partition(":")[2].replace(",", ", ").replace("=", " ")
        assert [line[0] for line in table["lines"]] == ["SGD", "Lookbehind-SAM"]  # and nothing else is "not run"
    whole = json.loads((reproduce(replace(wanted, rows=(), train=False))["table1"] / "results.json").read_text())
    assert ["SAM", "not run"] in [line[:2] for line in whole["tables"][0]["lines"]]
    assert [one for one in whole["verdicts"] if one["verdict"] != "not run"] == results["verdicts"] != whole["verdicts"]
    assert "searched with the first 1" in (page / "report.html").read_text()
    # and only those seeds that chose nothing
    page = reproduce(replace(wanted, fresh=True, train=False))["table1"]
    table = json.loads((page / "results.json").read_text())["tables"][0]
    line = next(line for line in table["lines"] if line[0] == "Lookbehind-SAM")
    assert line[1].startswith(f"{end(chosen['honest'], 1)['test_accuracy']:.2f}")
    assert "the first 1, which are not shown" in (page / "report.html").read_text()


def test_lifelong_settings_can_be_searched_on_the_first_tasks(tmp_path):
    """Chosen by the first two tasks alone, trained on all three; a row without a choice is not searched."""
    wanted = Reproduction(
        experiments=("table2",),
        scale="smoke",
        rows=("SGD", "ER + SGD, 1 replayed image"),
        seeds=2,
        search_seeds=1,
        search_tasks=2,
        jobs=1,
        storage=Storage(out=tmp_path),
    )
    settings = SMOKE.lifelong.tasks[0].settings
    candidates = [f"sgd:lr={lr:g}" for lr in SMOKE.lifelong.lrs]
    only = "er+sgd:lr=0.03,replay=1"
    shorter = [replace(settings, tasks=2).run(one, 0) for one in candidates]
    whole = [settings.run(only, seed) for seed in range(2)]
    assert {run.id for run, _ in runs_of(wanted)} == {run.id for run in shorter + whole}
    fresh = {run.id for run, _ in runs_of(replace(wanted, fresh=True))}
    assert fresh == {run.id for run in shorter + whole[1:]}  # nothing is trained that neither chooses nor is shown
    page = reproduce(wanted)["table2"]
    assert unfinished(wanted) == []

    def end(run):
        return json.loads((wanted.storage.directory(run) / "records.jsonl").read_text().splitlines()[-1])

    results = json.loads((page / "results.json").read_text())
    for table in results["tables"]:
        key = "validation_accuracy" if "honest" in table["title"] else "best_test_accuracy"
        best = candidates[max(range(2), key=lambda i: end(shorter[i])[key])]
        line = next(line for line in table["lines"] if line[0] == "SGD")
        assert line[7] == best.partition(":")[2].replace("=", " ")
        values = [end(settings.run(best, seed))["test_accuracy"] for seed in range(2)]
        assert line[1].startswith(f"{np.mean(values):.2f}")
        assert "of the first 2 tasks" in table["note"]
        line = next(line for line in table["lines"] if line[0] == "ER + SGD, 1 replayed image")
        assert line[1].startswith(f"{np.mean([end(run)['test_accuracy'] for run in whole]):.2f}")
    assert "searched on the first 2 tasks" in (page / "report.html").read_text()


def test_what_only_searches_is_not_measured(tmp_path):
    """Noise in the weights takes as long as a training: it is measured where it is shown, and nowhere else."""
    wanted = Reproduction(
        experiments=("frontier",),
        scale="smoke",
        rows=("SGD", "SAM"),
        seeds=2,
        search_seeds=1,
        fresh=True,
        jobs=1,
        storage=Storage(out=tmp_path),
    )
    page = reproduce(wanted)["frontier"]
    assert unfinished(wanted) == []
    assert {(run.seed, measures.measures) for run, measures in runs_of(wanted)} == {(0, ()), (1, ("noise",))}
    for run, _ in runs_of(wanted):
        assert (wanted.storage.directory(run) / "measures.json").exists() == (run.seed == 1)
    (table, _) = json.loads((page / "results.json").read_text())["tables"]
    assert [bool(line[table["heads"].index("with noise %")]) for line in table["lines"]] == [True, True]
    # where all seeds are shown, those that searched are still to be measured
    everything = replace(wanted, fresh=False)
    left = unfinished(everything)
    assert left
    assert {(run.seed, measures.measures) for run, measures in left} == {(0, ("noise",))}


# --- choices made before

STREAM = SMOKE.lifelong.tasks[0]
GIVEN = {STREAM.key: {"honest": {"SGD": "sgd:lr=0.1"}, "paper": {"SGD": "sgd:lr=0.03"}}}


def choices_in(directory, chosen=GIVEN, name="table2", **more):
    path = directory / "given.json"
    path.write_text(json.dumps({"experiment": name, "chosen": chosen, **more}))
    return path


def test_a_search_that_was_made_elsewhere_is_not_made_again(tmp_path):
    """Each protocol trains what the file says on all tasks and seeds; a row that it lacks is searched."""
    wanted = Reproduction(
        experiments=("table2",),
        scale="smoke",
        rows=("SGD",),
        seeds=2,
        search_seeds=1,
        search_tasks=2,
        choices=choices_in(tmp_path),
        jobs=1,
        storage=Storage(out=tmp_path / "out"),
    )
    settings = STREAM.settings
    chosen = {settings.run(one, seed).id for one in ("sgd:lr=0.1", "sgd:lr=0.03") for seed in range(2)}
    assert {run.id for run, _ in runs_of(wanted)} == chosen
    page = reproduce(wanted)["table2"]
    results = json.loads((page / "results.json").read_text())
    shown = {table["title"].split(", ")[-1]: table["lines"][0][7] for table in results["tables"]}
    assert shown == {"honest protocol": "lr 0.1", "paper protocol": "lr 0.03"}
    assert "given.json has were searched before" in (page / "report.html").read_text()
    assert read_choices(page / "choices.json").chosen == GIVEN
    # half of a choice: the other protocol is searched
    half = replace(wanted, choices=choices_in(tmp_path, {STREAM.key: {"honest": {"SGD": "sgd:lr=0.1"}}}))
    searched = [replace(settings, tasks=2).run(one, 0).id for one in ("sgd:lr=0.1", "sgd:lr=0.03")]
    known = {settings.run("sgd:lr=0.1", seed).id for seed in range(2)}
    assert {run.id for run, _ in runs_of(half)} == {*searched, *known}


def test_a_search_writes_what_it_chose_and_another_machine_goes_on(tmp_path):
    first = Reproduction(
        experiments=("table2",), scale="smoke", rows=("SGD",), seeds=1, search_tasks=2, jobs=1,
        storage=Storage(out=tmp_path / "first"),
    )  # fmt: skip
    page = reproduce(first)["table2"]
    file = page / "choices.json"
    second = replace(first, choices=file, storage=Storage(out=tmp_path / "second"))
    again = reproduce(second)["table2"]
    assert len(list((tmp_path / "first/runs").iterdir())) > len(list((tmp_path / "second/runs").iterdir()))
    lines = [json.loads((one / "results.json").read_text())["tables"][0]["lines"][0] for one in (page, again)]
    assert lines[0] == lines[1]
    assert read_choices(again / "choices.json") == read_choices(file)
    # what stands there stays where nothing is known of the search
    reproduce(replace(second, choices=None, train=False))
    assert read_choices(again / "choices.json") == read_choices(file)
    assert read_choices(file).of(STREAM.key, "honest", "SGD") is not None


@pytest.mark.parametrize(
    ("chosen", "name", "message"),
    [
        (GIVEN, "table1", "is of 'table1', which is not asked for"),
        (
            {STREAM.key: {"honest": {"SGD": "sgd:lr=7"}}},
            "table2",
            "'sgd:lr=7' is none of the settings of 'SGD': sgd:lr",
        ),
        ({STREAM.key: {"honest": {"SDG": "sgd:lr=0.1"}}}, "table2", "table2 has no row 'SDG' on 'split-digits'"),
        ({"elsewhere": {"honest": {"SGD": "sgd:lr=0.1"}}}, "table2", "no row 'SGD' on 'elsewhere'"),
        ({STREAM.key: {"honset": {"SGD": "sgd:lr=0.1"}}}, "table2", "'honset' is no protocol; there are paper, honest"),
        ({STREAM.key: {"honest": {"SGD": 0.1}}}, "table2", "give a choices.json that"),
        ([], "table2", "give a choices.json that"),
    ],
)
def test_choices_that_do_not_fit_are_refused_before_the_first_run(chosen, name, message, tmp_path, capsys):
    path = choices_in(tmp_path, chosen, name)
    words = ["reproduce", "table2", "--scale", "smoke", "--out", str(tmp_path / "out"), "--choices", str(path)]
    assert cli.main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_settings_that_were_taken_from_another_row_stay_marked(tmp_path):
    """In the file that the page writes too, also where nothing is known of it any more."""
    like = {STREAM.key: {"SGD": "ER + SGD"}}
    wanted = Reproduction(
        experiments=("table2",), scale="smoke", rows=("SGD",), seeds=1, jobs=1, train=False,
        choices=choices_in(tmp_path, like=like), storage=Storage(out=tmp_path / "out"),
    )  # fmt: skip
    written = reproduce(wanted)["table2"] / "choices.json"
    assert read_choices(written).like == like
    reproduce(replace(wanted, choices=None))
    assert read_choices(written).like == like
    # until the row is searched
    reproduce(replace(wanted, choices=None, train=True))
    assert read_choices(written).like == {}
    assert read_choices(written).of(STREAM.key, "honest", "SGD") is not None


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({STREAM.key: {"SGD": "SDG"}}, "table2 has no row 'SDG' on 'split-digits'"),
        ({"elsewhere": {"SGD": "SAM"}}, "table2 has no row 'SGD' on 'elsewhere'"),
        ({STREAM.key: {"SGD": 1}}, "give a choices.json that"),
        ({STREAM.key: {"SGD": "SGD"}}, "'SGD' is like itself; name the row that its settings are of"),
        ([], "give a choices.json that"),
    ],
)
def test_rows_that_settings_are_taken_from_are_checked(like, message, tmp_path, capsys):
    path = choices_in(tmp_path, like=like)
    words = ["reproduce", "table2", "--scale", "smoke", "--out", str(tmp_path / "out"), "--choices", str(path)]
    assert cli.main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_settings_that_are_said_to_be_another_rows_are(tmp_path, capsys):
    chosen = {STREAM.key: {"honest": {"SGD": "sgd:lr=0.1", "ER + SGD": "er+sgd:lr=0.03"}}}
    path = choices_in(tmp_path, chosen, like={STREAM.key: {"SGD": "ER + SGD"}})
    assert cli.main(["reproduce", "table2", "--scale", "smoke", "--choices", str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'SGD' is said to have the settings of 'ER + SGD', but it has 'sgd:lr=0.1' where that has" in said


def test_a_file_of_choices_that_is_not_there_or_of_a_figure(tmp_path, capsys):
    assert cli.main(["reproduce", "table2", "--scale", "smoke", "--choices", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read (FileNotFoundError" in capsys.readouterr().err
    words = ["reproduce", "figure5", "--scale", "smoke", "--choices", str(choices_in(tmp_path, name="figure5"))]
    assert cli.main(words) == 2
    assert "figure5 shows more than every row at its best" in capsys.readouterr().err
