"""The paper's experiments at the smallest scale: every page, what it says and what it lacks, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from outcomes import outcome

from lookbehind import cli
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.pages import latex
from lookbehind.experiments.paper.catalogue import IDS, experiment
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import Arm, in_words, table_1
from lookbehind.experiments.paper.plan import Reproduction, runs_of, unfinished
from lookbehind.experiments.paper.reproduce import _with_data, reproduce
from lookbehind.experiments.paper.scales import LAPTOP, PAPER, SMOKE
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
    assert len(trained) == len(set(trained)) == len(runs_of(wanted))
    assert unfinished(wanted) == []
    others = {"table2", "table4-translation", "table4-vit", "frontier"}  # of other data, networks and methods
    paper = tuple(name for name in IDS if name not in others)
    alone = sum(len(runs_of(Reproduction(experiments=(name,), scale="smoke"))) for name in paper)
    assert len(runs_of(Reproduction(experiments=paper, scale="smoke"))) < 0.4 * alone


def test_what_is_not_the_papers_says_so_first(smoke):
    _, pages, _ = smoke
    found = [
        one["claim"] for page in pages.values() for one in json.loads((page / "results.json").read_text())["verdicts"]
    ]
    ours = [claim for claim in found if "not in the paper" in claim]
    assert len(ours) > 10
    assert all(claim.startswith("not in the paper: ") for claim in ours)


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
