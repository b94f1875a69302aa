"""Figure 8: switching between SAM and Lookbehind during training."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, default, in_words, written
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import draw_curves
from lookbehind.experiments.shown import Output


def _epochs(task: Task, scale: Scale) -> list[int]:
    whole = task.images.epochs or 1
    return [max(1, round(part * whole)) for part in scale.switches]


def _switching(family: str, k: int, epoch: int, scale: Scale, *, lookbehind_first: bool) -> Arm:
    first, second = (f"lookbehind-{family}", family) if lookbehind_first else (family, f"lookbehind-{family}")
    method = f"{first}+{second}@{epoch}"
    return Arm(method, tuple(written(method, k=k, alpha=alpha) for alpha in scale.few_alphas))


def _always(family: str, k: int, scale: Scale) -> Arm:
    return Arm("", tuple(written(f"lookbehind-{family}", k=k, alpha=alpha) for alpha in scale.few_alphas))


def arms(task: Task, scale: Scale) -> list[Arm]:
    """Both orders at every epoch of the figure, and its two ends."""
    found = [default(family, task) for family in FAMILIES]
    for family in FAMILIES:
        for k in scale.values_of_k(task):
            found.append(_always(family, k, scale))
            for epoch in _epochs(task, scale):
                found += [_switching(family, k, epoch, scale, lookbehind_first=first) for first in (True, False)]
    return found


def _curve_name(family: str, k: int, *, lookbehind_first: bool) -> str:
    upper = family.upper()
    return f"Lookbehind, then {upper}, k {k}" if lookbehind_first else f"{upper}, then Lookbehind, k {k}"


def _curves(findings: Findings, task: Task, family: str, by: str) -> dict[str, dict[float, Cell | None]]:
    """Both orders for every k, over the epoch of the switch; at the ends there is none."""
    scale, whole = findings.scale, float(task.images.epochs or 1)
    curves: dict[str, dict[float, Cell | None]] = {}
    plain = findings.best(task, default(family, task), by)
    for k in scale.values_of_k(task):
        always = findings.best(task, _always(family, k, scale), by)
        for first in (True, False):
            points: dict[float, Cell | None] = {0.0: plain if first else always}
            for epoch in _epochs(task, scale):
                arm = _switching(family, k, epoch, scale, lookbehind_first=first)
                points[float(epoch)] = findings.best(task, arm, by)
            curves[_curve_name(family, k, lookbehind_first=first)] = {**points, whole: always if first else plain}
    return curves


def show(findings: Findings) -> Output:
    """Accuracy over the epoch of the switch, and in which half of the training Lookbehind gains more."""
    output, key, by = Output(), findings.reported, findings.chosen_by
    for task in findings.tasks:
        for family in FAMILIES:
            curves = _curves(findings, task, family, by)
            draw_curves(
                output,
                curves,
                key,
                name=f"figure8-{task.key}-{family}",
                title=f"Switching between {family.upper()} and Lookbehind",
                caption=f"{task.title}; default rho, {in_words(alpha=findings.scale.few_alphas)} at every point. Mean "
                "over seeds, and their range.",
                xlabel="epoch of the switch",
            )
            for k in findings.scale.values_of_k(task):
                _judge_the_order(output, findings, task, family, k, curves, key)
    return output


def _judge_the_order(
    output: Output,
    findings: Findings,
    task: Task,
    family: str,
    k: int,
    curves: dict[str, dict[float, Cell | None]],
    key: str,
) -> None:
    half = (task.images.epochs or 1) / 2
    epoch = min(_epochs(task, findings.scale), key=lambda one: abs(one - half))
    early, late = (curves[_curve_name(family, k, lookbehind_first=first)][float(epoch)] for first in (True, False))
    if early is None or late is None:
        return
    upper = family.upper()
    claim = Claim(
        f"k {k}: Lookbehind for the first half, then {upper}, is above {upper} for the first half, then Lookbehind",
        (early.candidate,),
        (late.candidate,),
    )
    # by candidate, as the curves share their ends
    cells = {cell.candidate: cell for points in curves.values() for cell in points.values() if cell is not None}
    values = {name: cell.values(key) for name, cell in cells.items()}
    output.verdicts.append((f"{task.title}; switch after epoch {epoch}", judged(claim, values)))


EXPERIMENT = Experiment(
    id="figure8",
    title="Figure 8: switching the method",
    claim="Most of Lookbehind's gain comes from using it early in the training.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
)
