"""Figure 9: a total reach of rho against rho times k."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, radius, written
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import draw_curves
from lookbehind.experiments.shown import Output

KINDS = ("reach rho, no interpolation", "reach k rho", "reach k rho, adaptive alpha")


def _arm(kind: str, family: str, k: int, task: Task, scale: Scale) -> Arm:
    method = f"lookbehind-{family}"
    if kind == KINDS[0]:
        return Arm(kind, (written(method, rho=float(f"{radius(task, family) / k:.6g}"), k=k, alpha=1.0),))
    if kind == KINDS[1]:
        return Arm(kind, tuple(written(method, k=k, alpha=alpha) for alpha in scale.alphas))
    return Arm(kind, (written(method, k=k, alpha=ADAPTIVE),))


def arms(task: Task, scale: Scale) -> list[Arm]:
    """The three kinds at every k."""
    return [_arm(kind, f, k, task, scale) for f in FAMILIES for kind in KINDS for k in scale.values_of_k(task)]


def show(findings: Findings) -> Output:
    """A curve over k for each kind."""
    output, key, by = Output(), findings.reported, findings.chosen_by
    for task in findings.tasks:
        ks = findings.scale.values_of_k(task)
        for family in FAMILIES:
            curves: dict[str, dict[float, Cell | None]] = {
                kind: {float(k): findings.best(task, _arm(kind, family, k, task, findings.scale), by) for k in ks}
                for kind in KINDS
            }
            draw_curves(
                output,
                curves,
                key,
                name=f"figure9-{task.key}-{family}",
                title=f"Reach of the climb, Lookbehind-{family.upper()}",
                caption=f"{task.title}; default rho. Mean over seeds, and their range.",
                xlabel="k",
            )
            for k in ks:
                there = {kind: cell for kind, points in curves.items() if (cell := points[float(k)]) is not None}
                claim = Claim(
                    f"{family.upper()}, k {k}: a reach of k rho is better than one of rho", KINDS[1:], KINDS[:1]
                )
                values = {kind: cell.values(key) for kind, cell in there.items()}
                if len(values) == len(KINDS):
                    output.verdicts.append((task.title, judged(claim, values)))
    return output


EXPERIMENT = Experiment(
    id="figure9",
    title="Figure 9: how far to climb",
    claim="Climbing k steps of rho is better than k steps of rho / k, with a static or an adaptive alpha.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
)
