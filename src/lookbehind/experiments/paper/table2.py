"""Table 2: lifelong learning."""

from __future__ import annotations

from collections.abc import Sequence

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.lifelong_pictures import lifelong_pictures
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Findings, chosen
from lookbehind.experiments.paper.grid import Arm, written
from lookbehind.experiments.paper.numbers import TABLE_2, TABLE_7
from lookbehind.experiments.paper.scale import LifelongGrid, Scale, Task
from lookbehind.experiments.paper.tables import JUDGED, row_of
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import accuracy, count, with_std
from lookbehind.lifelong.metrics import Matrix

AVERAGE = "Multistep-SAM, average"
META = ("Lookahead-C-MAML", "Lookbehind-C-MAML")
RESTARTED = "Lookbehind-C-MAML, restarted at the climbed point"
AS_IN_THEIR_CODE = "Lookahead-C-MAML, 5 inner steps, mean loss"
THEIR_SETTINGS = ", settings of the paper"


def _family(grid: LifelongGrid, replay: bool) -> list[Arm]:
    """SGD, SAM, Multistep (last gradient, and their mean) and Lookbehind, with or without a memory."""
    before, prefix = ("ER + ", "er+") if replay else ("", "")
    plain = [{"lr": lr} for lr in grid.lrs]
    climbing = [{**one, "rho": rho} for one in plain for rho in grid.rhos]
    several: list[dict[str, float]] = [{**one, "k": k} for one in climbing for k in grid.ks]
    following = [{**one, "alpha": alpha} for one in several for alpha in grid.alphas]
    rows = (
        ("SGD", "sgd", plain),
        ("SAM", "sam", climbing),
        ("Multistep-SAM", "multistep-sam", several),
        (AVERAGE, "multistep-sam-mean", several),
        ("Lookbehind-SAM", "lookbehind-sam", following),
    )
    return [
        Arm(f"{before}{name}", tuple(written(f"{prefix}{method}", **one) for one in settings))
        for name, method, settings in rows
    ]


def _meta(grid: LifelongGrid) -> list[Arm]:
    ahead = tuple(written("lookahead-c-maml", lr=lr, k=k) for lr in grid.lrs for k in grid.meta_ks)
    # the paper's alphas, of which 1 was the best by its own search
    settings = [
        {"lr": lr, "rho": rho, "k": k, "alpha": alpha}
        for lr in grid.lrs
        for rho in grid.meta_rhos
        for k in grid.meta_ks
        for alpha in sorted({1.0, *(grid.alphas if len(grid.alphas) > 1 else ())})
    ]
    return [
        Arm(META[0], ahead),
        Arm(META[1], tuple(written("lookbehind-c-maml", **one) for one in settings)),
        Arm(RESTARTED, tuple(written("lookbehind-c-maml", **one, outer="meta") for one in settings)),
    ]


def _controls(task: Task) -> list[Arm]:
    """As the paper and La-MAML's code have it, with their settings; what the two C-MAMLs are to be compared with."""
    theirs = TABLE_7[task.stands_for]
    tiny = task.key == "split-tiny-imagenet"
    return [
        *(
            Arm(name + THEIR_SETTINGS, (written(name.lower().replace(" ", ""), **settings),))
            for name, settings in theirs.items()
        ),
        Arm("ER + SGD, 1 replayed image", (written("er+sgd", lr=0.01 if tiny else 0.03, replay=1),)),
        Arm("ER + SGD, lr 0.03", (written("er+sgd", lr=0.03),)),
        Arm(
            AS_IN_THEIR_CODE,
            (written("lookahead-c-maml", lr=0.03 if tiny else 0.075, k=5, meta_loss="mean"),),
        ),
        Arm("Lookahead-C-MAML, 2 inner steps, lr 0.03", (written("lookahead-c-maml", lr=0.03, k=2),)),
    ]


def arms(task: Task, scale: Scale) -> list[Arm]:
    """The rows of the paper, with the baselines that it leaves out."""
    grid = scale.lifelong
    return [*_family(grid, False), *_family(grid, True), *_meta(grid), *_controls(task)]


def _claims() -> list[Claim]:
    found = []
    for less, what in ((False, "a higher average accuracy"), (True, "less forgetting")):
        for before in ("", "ER + "):
            row = f"{before}Lookbehind-SAM"
            others = tuple(f"{before}{name}" for name in ("SGD", "SAM", "Multistep-SAM"))
            found.append(Claim(f"{row} has {what} than SGD, SAM and Multistep-SAM", (row,), others, less))
            control = (f"{before}{AVERAGE}",)
            found.append(Claim(f"not in the paper: {row} has {what} than the mean gradient", (row,), control, less))
        sam, multistep, lookbehind = (f"{name}{THEIR_SETTINGS}" for name in TABLE_7["Split-CIFAR100"])
        text = f"at the paper's own settings, ER + Lookbehind-SAM has {what} than SAM and Multistep-SAM"
        found.append(Claim(text, (lookbehind,), (sam, multistep), less))
        found.append(Claim(f"Lookbehind-C-MAML has {what} than Lookahead-C-MAML", (META[1],), (META[0],), less))
        text = f"not in the paper: with the inner loop restarted, Lookbehind-C-MAML has {what} than Lookahead-C-MAML"
        found.append(Claim(text, (RESTARTED,), (META[0],), less))
        text = f"not in the paper: Lookbehind-C-MAML has {what} than C-MAML as the code of Gupta et al. has it"
        found.append(Claim(text, (META[1],), (AS_IN_THEIR_CODE,), less))
    return found


def show(findings: Findings) -> Output:
    """Accuracy and forgetting beside the paper's, the verdicts, and the course of the chosen rows."""
    output = Output()
    for task in findings.tasks:
        rows = arms(task, findings.scale)
        for protocol in findings.protocols:
            cells = chosen(findings, task, rows, protocol)
            output.tables.append(_table(task, protocol, rows, findings))
            where = f"{task.title}; {JUDGED[protocol]}"
            for claim in _claims():
                key = "forgetting" if claim.less else "test_accuracy"
                values = {name: cell.values(key) for name, cell in cells.items()}
                output.verdicts.append((where, judged(claim, values, [arm.name for arm in rows])))
        for name, some in _families(rows).items():
            output.pictures += lifelong_pictures(_matrices(findings, task, some), f"table2-{task.key}-{name}")
    return output


def _families(rows: Sequence[Arm]) -> dict[str, list[Arm]]:
    """The paper's rows without a memory and with one, a figure each: all of them in one would be crowded."""
    known = [arm for arm in rows if arm.name in TABLE_2]
    with_memory = [arm for arm in known if arm.name.startswith("ER + ") or arm.name in META]
    return {"alone": [arm for arm in known if arm not in with_memory], "memory": with_memory}


def _matrices(findings: Findings, task: Task, rows: Sequence[Arm]) -> dict[str, list[Matrix]]:
    """Of every row that has been trained, one per seed; a row that lacks seeds says how many it has."""
    shown = [(arm.name, *row_of(findings, task, arm, "honest")) for arm in rows]
    return {f"{name}{words}": [one.end["matrix"] for one in cell.outcomes] for name, cell, words in shown if cell}


def _said(task: Task, protocol: str, before: bool) -> str:
    """How the settings of the rows were chosen, here or in a search before."""
    which = "all tasks" if task.search is None else f"the first {task.search.tasks} tasks"
    earlier = " in an earlier search (`--choices`)" if before else ""
    if protocol == "paper":
        return f"Protocol of the paper: settings chosen{earlier} by the test images of {which}, so too good."
    held_out = f"the average accuracy on held-out images of {which}"
    return f"Settings chosen{earlier} by {held_out}; test images of all in the end."


def _table(task: Task, protocol: str, rows: Sequence[Arm], findings: Findings) -> Grid:
    heads = ["method", "accuracy %", "forgetting", "less than at first", "when learned %", "paper, accuracy",
             "paper, forgetting", "settings", "gradients"]  # fmt: skip
    lines, images = [], set()
    for arm in rows:
        said = TABLE_2.get(arm.name.removesuffix(THEIR_SETTINGS), {})
        theirs = [said.get(task.stands_for, ""), said.get(f"forgetting, {task.stands_for}", "")]
        cell, words = row_of(findings, task, arm, protocol)
        if cell is None:
            lines.append([arm.name, words, "", "", "", *theirs, "", ""])
            continue
        keys = ("test_accuracy", "forgetting", lambda one: -one.end["backward_transfer"], "learning_accuracy")
        ours = [with_std(cell.spread(key), accuracy) for key in keys]
        ours[0] += words
        settings = findings.settings_of(task, cell, arm, protocol)
        lines.append([arm.name, *ours, *theirs, settings, count(cell.gradients)])
        images |= {outcome.end["images_per_task"] for outcome in cell.outcomes}
    learned = (
        f" {' or '.join(map(count, sorted(images)))} training images per task (the paper: 2,250)." if images else ""
    )
    how = _said(task, protocol, bool(findings.before.chosen.get(task.key)))
    note = (
        f"{how}{learned} Forgetting is from the best time on, without the last task (the paper's); "
        "'less than at first' is from when a task had just been learned, over all tasks (La-MAML's, which the paper "
        "copies in its row of Lookahead-C-MAML). ± is the deviation over the seeds, of n - 1; the paper's seems to be "
        "of n. Gradients are counted without the products with Hessians, of which the C-MAMLs take one per inner "
        "gradient."
    )
    return Grid(f"{task.title}, {protocol} protocol", note, heads, lines)


EXPERIMENT = Experiment(
    id="table2",
    title="Table 2: lifelong learning",
    claim="Lookbehind reaches the highest accuracy and forgets least: without a memory, with replay, and in C-MAML.",
    tasks=("split-cifar100", "split-tiny-imagenet"),
    arms=arms,
    show=show,
    best_of_rows=True,
)
