"""Figure 8: switching between SAM and Lookbehind during training."""

from __future__ import annotations

from lookbehind.experiments.paper.experiment import Experiment, Output
from lookbehind.experiments.paper.findings import PROTOCOLS, REPORTED, Cell, Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, default, written
from lookbehind.experiments.paper.scales import Scale, Task
from lookbehind.experiments.paper.tables import draw_curves


def _epochs(task: Task, scale: Scale) -> list[int]:
    whole = task.settings.epochs or 1
    return [max(1, round(part * whole)) for part in scale.switches]


def _switching(family: str, k: int, epoch: int, scale: Scale, *, lookbehind_first: bool) -> Arm:
    first, second = (f"lookbehind-{family}", family) if lookbehind_first else (family, f"lookbehind-{family}")
    method = f"{first}+{second}@{epoch}"
    return Arm(method, tuple(written(method, k=k, alpha=alpha) for alpha in scale.alphas))


def _always(family: str, k: int, scale: Scale) -> Arm:
    return Arm("", tuple(written(f"lookbehind-{family}", k=k, alpha=alpha) for alpha in scale.alphas))


def arms(task: Task, scale: Scale) -> list[Arm]:
    """Both orders at every epoch of the figure, and its two ends."""
    found = [default(family, task) for family in FAMILIES]
    for family in FAMILIES:
        for k in scale.values_of_k(task):
            found.append(_always(family, k, scale))
            for epoch in _epochs(task, scale):
                found += [_switching(family, k, epoch, scale, lookbehind_first=first) for first in (True, False)]
    return found


def show(findings: Findings) -> Output:
    """Accuracy over the epoch of the switch; the best alpha at each."""
    output, protocol = Output(), findings.protocols[0]
    key, by = REPORTED[protocol], PROTOCOLS[protocol]
    for task in findings.tasks:
        whole = float(task.settings.epochs or 1)
        for family in FAMILIES:
            upper, curves = family.upper(), dict[str, dict[float, Cell | None]]()
            plain = findings.best(task, default(family, task), by)
            for k in findings.scale.values_of_k(task):
                always = findings.best(task, _always(family, k, findings.scale), by)
                for first in (True, False):
                    name = f"Lookbehind, then {upper}, k {k}" if first else f"{upper}, then Lookbehind, k {k}"
                    points: dict[float, Cell | None] = {0.0: plain if first else always}
                    for epoch in _epochs(task, findings.scale):
                        arm = _switching(family, k, epoch, findings.scale, lookbehind_first=first)
                        points[float(epoch)] = findings.best(task, arm, by)
                    curves[name] = {**points, whole: always if first else plain}
            draw_curves(
                output,
                curves,
                key,
                name=f"figure8-{task.key}-{family}",
                title=f"Switching between {upper} and Lookbehind",
                caption=f"{task.title}; default rho, the best alpha for each point. Mean over seeds.",
                xlabel="epoch of the switch",
            )
    return output


EXPERIMENT = Experiment(
    id="figure8",
    title="Figure 8: switching the method",
    claim="Most of Lookbehind's gain comes from using it early in the training.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
)
