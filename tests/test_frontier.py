"""The frontier: what nothing cheaper is above, what its rows cost, what its runs found, and its verdicts."""

from __future__ import annotations

from dataclasses import replace

from outcomes import outcome

from lookbehind.experiments.figures import non_dominated
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.scales import LAPTOP, PAPER, SMOKE
from lookbehind.training.run import with_overrides


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
        "SAM wider, last half": 71, "Repeated wider, last half": 72,
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
        "averaged, SAM's weights are above the last ones",
    }
    claims = {found.claim.text.removeprefix("not in the paper: ") for _, found in output.verdicts}
    assert contradicted < claims
    assert len(claims) == 16
    for where, found in output.verdicts:
        wrong = found.claim.text.removeprefix("not in the paper: ") in contradicted
        assert found.verdict == ("contradicted" if wrong == where.endswith("test accuracy %") else "holds"), found
