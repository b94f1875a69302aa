"""Not in the paper: what of Lookbehind's gain is left at a fraction of its gradients, and what else costs as much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.drawing import looks
from lookbehind.experiments.figures import frontier_figure, non_dominated
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.figure4 import robustness
from lookbehind.experiments.paper.findings import Cell, Findings, Outcome, chosen
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, budget_k, radius, stretched, written
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import row_of
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import accuracy, count, joined, with_std

ALPHA, DECAY, PART = 0.5, 0.99, 0.25
RADII = {
    "sam": (1.0, 2.0, 4.0, 6.0),
    "repeat-sam": (2.0, 3.0, 6.0, 12.0),
    "lookbehind-sam": (1.0, 2.0, 4.0),
    "asam": (1.0, 2.0, 4.0, 8.0),
    "repeat-asam": (2.0, 3.0, 6.0, 12.0),
    "lookbehind-asam": (0.5, 1.0, 2.0),
    "sam+repeat-sam": (2.0, 4.0, 6.0),
}
"""In units of the default one, so that the best lies between two others: the repeated gradient climbs once, where
Lookbehind climbs k times; Lookbehind-ASAM breaks at 4. After SAM, which has the same radius, that of either."""
CHOSEN = {"honest": "settings chosen on held-out images", "paper": "settings chosen on test images"}
"""By the protocol. A few hundred held-out images may miss the best radius, which then counts against a row."""
HALVES = ("Lookbehind, first half", "Lookbehind, last half")
WIDER = (1.5, 3.0)
"""How much wider one gradient climbs at the end of a training than SAM before: with k = 5 the mean reach of
Lookbehind's points is three times its rho."""
Value = str | Callable[[Outcome], float | None]
REPORTED = "test_accuracy"  # after the last epoch, by both protocols


def _radii(method: str, task: Task, scale: Scale) -> list[float]:
    """Those that a method is searched over; as many as the scale has for figures, or one more."""
    family = "asam" if method.endswith("asam") else "sam"
    return [radius(task, family, factor) for factor in RADII[method][: len(scale.few_rhos) + 1]]


def _family(family: str, task: Task, scale: Scale) -> list[Arm]:
    """The radius tuned, the control at the same cost, and Lookbehind itself."""
    upper, k = family.upper(), budget_k(task, scale)

    def row(name: str, method: str, **settings: float | str) -> Arm:
        return Arm(name, tuple(written(method, rho=rho, **settings) for rho in _radii(method, task, scale)))

    return [
        row(upper, family),
        row(f"{upper}, gradient repeated", f"repeat-{family}", k=k, alpha=ALPHA),
        row(f"Lookbehind-{upper}", f"lookbehind-{family}", k=k, alpha=ALPHA),
    ]


def arms(task: Task, scale: Scale) -> list[Arm]:
    """SGD, both families, and what spares Lookbehind-SAM a part of its gradients."""
    k, epochs = budget_k(task, scale), task.images.epochs or 1
    first, *larger = [radius(task, "sam", factor) for factor in scale.few_rhos[:3]]

    def sparing(name: str, **options: float | str) -> Arm:
        return Arm(name, tuple(written("lookbehind-sam", rho=rho, k=k, alpha=ALPHA, **options) for rho in larger))

    def switching(name: str, part: float, begin: str, end: str, rhos: Sequence[float] = larger) -> Arm:
        method = f"{begin}+{end}@{max(1, round(part * epochs))}"
        return Arm(name, tuple(written(method, rho=rho, k=k, alpha=ALPHA) for rho in rhos))

    def wider(name: str, end: str, **settings: float | str) -> Arm:
        method = f"sam+{end}@{max(1, round(epochs / 2))}"
        pairs = [(rho, factor) for rho in larger for factor in WIDER]
        return Arm(name, tuple(written(method, rho=rho, widen=factor, **settings) for rho, factor in pairs))

    repeated = [radius(task, "sam", factor) for factor in RADII["sam+repeat-sam"][: len(scale.few_rhos)]]

    return [
        Arm("SGD", ("sgd",)),
        *(arm for family in FAMILIES for arm in _family(family, task, scale)),
        Arm("Lookbehind, adaptive", (written("lookbehind-sam", rho=first, k=k, alpha=ADAPTIVE),)),
        Arm(
            "SAM, matched step",
            tuple(written("sam-matched", rho=rho, k=k, alpha=ALPHA) for rho in (first, *larger)),
        ),
        Arm("SAM, as many gradients", tuple(written("sam", rho=rho, **stretched(task, (k + 1) / 2)) for rho in larger)),
        switching("Lookbehind, last quarter", 0.75, "sam", "lookbehind-sam"),
        switching("Lookbehind, last half", 0.5, "sam", "lookbehind-sam"),
        switching("Repeated, last quarter", 0.75, "sam", "repeat-sam", repeated),
        switching("Repeated, last half", 0.5, "sam", "repeat-sam", repeated),
        wider("SAM wider, last half", "sam"),
        wider("Repeated wider, last half", "repeat-sam", k=k, alpha=ALPHA),
        switching("Matched step, last half", 0.5, "sam", "sam-matched"),
        switching("Lookbehind, first quarter", 0.25, "lookbehind-sam", "sam"),
        switching("Lookbehind, first half", 0.5, "lookbehind-sam", "sam"),
        sparing("Lookbehind, every 2nd", every=2),
        sparing("Lookbehind, part climbs", ascent_part=PART),
        Arm("SGD, averaged", (written("sgd", average=DECAY),)),
        Arm("SAM, averaged", tuple(written("sam", rho=rho, average=DECAY) for rho in (first, *larger))),
        sparing("Lookbehind, averaged", average=DECAY),
    ]


def _claim(text: str, row: str, *than: str) -> Claim:
    return Claim(f"not in the paper: {text}", (row,), than)


CLAIMS = (
    _claim("Lookbehind-SAM is above SGD and SAM at its best rho", "Lookbehind-SAM", "SGD", "SAM"),
    _claim("Lookbehind-SAM is above SAM trained for as many gradients", "Lookbehind-SAM", "SAM, as many gradients"),
    *(
        _claim(
            f"Lookbehind-{upper} is above one gradient of a larger rho, repeated: 2 evaluations in place of k + 1",
            f"Lookbehind-{upper}",
            f"{upper}, gradient repeated",
        )
        for upper in map(str.upper, FAMILIES)
    ),
    *(
        _claim(f"{upper} with its gradient repeated is above plain {upper}", f"{upper}, gradient repeated", upper)
        for upper in map(str.upper, FAMILIES)
    ),
    _claim(
        "the gain comes early: Lookbehind in the first half is above Lookbehind in the last",
        "Lookbehind, first half",
        "Lookbehind, last half",
    ),
    _claim("all of Lookbehind-SAM is above a half of it", "Lookbehind-SAM", *HALVES),
    _claim(
        "Lookbehind at the end of SAM, for a quarter, is above SAM alone at its best rho",
        "Lookbehind, last quarter",
        "SAM",
    ),
    _claim(
        "Lookbehind at the end of SAM, for a half, is above SAM alone at its best rho", "Lookbehind, last half", "SAM"
    ),
    *(
        _claim(
            f"Lookbehind at the end of SAM, for a {part}, is above one gradient repeated there",
            f"Lookbehind, last {part}",
            f"Repeated, last {part}",
        )
        for part in ("quarter", "half")
    ),
    _claim(
        "Lookbehind at the end of SAM, for a half, is above one gradient of a wider climb there",
        "Lookbehind, last half",
        "SAM wider, last half",
        "Repeated wider, last half",
        "Matched step, last half",
    ),
    _claim("averaged, SGD's weights are above the last ones", "SGD, averaged", "SGD"),
    _claim("averaged, SAM's weights are above the last ones", "SAM, averaged", "SAM"),
    _claim("averaged, Lookbehind's weights are above the last ones", "Lookbehind, averaged", "Lookbehind-SAM"),
)


def show(findings: Findings) -> Output:
    """Every row at its best: accuracy and robustness to noise over the gradients that they cost.

    By both protocols in numbers; the figures and the verdicts are by the first.
    """
    output = Output()
    keys: dict[str, Value] = {"test accuracy %": REPORTED, "accuracy % with noise": robustness}
    first = findings.protocols[0]
    for task in findings.tasks:
        rows = arms(task, findings.scale)
        cells = {protocol: chosen(findings, task, rows, protocol) for protocol in findings.protocols}
        output.tables += [_table(task, rows, cells[protocol], findings, protocol) for protocol in cells]
        for what, key in keys.items():
            if len(cells[first]) > 1:
                output.pictures.append(_picture(task, cells[first], what, key, first))
            values = {name: cell.values(key) for name, cell in cells[first].items()}
            where = f"{task.title}; {what}"
            output.verdicts += [(where, judged(claim, values, [arm.name for arm in rows])) for claim in CLAIMS]
    return output


def _picture(task: Task, cells: Mapping[str, Cell], what: str, key: Value, protocol: str) -> Picture:
    points = {name: (cell.gradients, cell.spread(key)) for name, cell in cells.items()}
    name = "accuracy" if key != robustness else "noise"
    caption = (
        f"{task.title}; {CHOSEN[protocol]}. Mean and deviation over the seeds. The line joins what nothing as cheap is "
        "above; points of the same cost stand a little apart."
    )
    figure = frontier_figure(points, looks(list(points)), what)
    return Picture(f"frontier-{task.key}-{name}", f"{what.capitalize()} over its cost", caption, figure)


def _table(task: Task, rows: Sequence[Arm], cells: Mapping[str, Cell], findings: Findings, protocol: str) -> Grid:
    heads = ["method", "accuracy %", "BatchNorm re-estimated %", "with noise %", "training loss", "settings",
             "gradients", "no higher mean as cheap"]  # fmt: skip
    best = non_dominated({name: (cell.gradients, cell.mean(REPORTED)) for name, cell in cells.items()})
    only = [arm.name for arm in rows if len(arm.candidates) == 1 and arm.name in cells]
    lines = []
    for arm in rows:
        cell, words = row_of(findings, task, arm, protocol)
        if cell is None:
            lines.append([arm.name, words, *[""] * 6])
            continue
        keys: tuple[Value, ...] = (REPORTED, "recalibrated_test_accuracy", robustness)
        numbers = [with_std(cell.spread(key), accuracy) for key in keys]
        numbers[0] += words
        loss = cell.mean("train_loss")
        settings = findings.settings_of(task, cell, arm, protocol)
        numbers += ["" if loss is None else f"{loss:.3g}", settings, count(cell.gradients)]
        lines.append([arm.name, *numbers, "yes" if arm.name in best else ""])
    given = f" No settings to choose from: {joined(only)}." if only else ""
    note = (
        f"Test accuracy after the last epoch.{given} Rows compare at the settings that were chosen, which may differ. "
        "With noise: mean accuracy with every weight times N(1, sigma²), BatchNorm re-estimated, over sigma above 0."
    )
    return Grid(f"{task.title}, {CHOSEN[protocol]}", note, heads, lines)


EXPERIMENT = Experiment(
    id="frontier",
    title="What Lookbehind's gain costs",
    claim="Not in the paper: which of Lookbehind's gradients are worth their cost, and what else is to be had for it.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
    measures=("noise",),
    best_of_rows=True,
)
