"""Figure 5: accuracy over k."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, default, in_words, written
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import draw_curves
from lookbehind.experiments.shown import Output

METHODS = {"Multistep": False, "Lookahead": True, "Lookbehind": True}
"""Whether they have an alpha."""


def _at(method: str, family: str, k: int, scale: Scale) -> Arm:
    name = f"{method.lower()}-{family}"
    if not METHODS[method]:
        return Arm(f"{method}-{family.upper()}, k {k}", (written(name, k=k),))
    return Arm(f"{method}-{family.upper()}, k {k}", tuple(written(name, k=k, alpha=a) for a in scale.alphas))


def arms(task: Task, scale: Scale) -> list[Arm]:
    """The three methods at every k, and SAM and ASAM at their default rho."""
    return [
        arm
        for family in FAMILIES
        for arm in (
            default(family, task),
            *(_at(method, family, k, scale) for method in METHODS for k in scale.values_of_k(task)),
        )
    ]


def show(findings: Findings) -> Output:
    """A curve per method, with the best of the alphas at each k; the baseline is a level line."""
    output, key, by = Output(), findings.reported, findings.chosen_by
    for task in findings.tasks:
        ks = findings.scale.values_of_k(task)
        for family in FAMILIES:
            base = findings.best(task, default(family, task), by)
            curves: dict[str, dict[float, Cell | None]] = {family.upper(): dict.fromkeys(map(float, ks), base)}
            for method in METHODS:
                found = {float(k): findings.best(task, _at(method, family, k, findings.scale), by) for k in ks}
                curves[f"{method}-{family.upper()}"] = found
            drawn = draw_curves(
                output,
                curves,
                key,
                name=f"figure5-{task.key}-{family}",
                title=f"Accuracy over k, {family.upper()} methods",
                caption=f"{task.title}; default rho, {in_words(alpha=findings.scale.alphas)} at every k. Mean over "
                "seeds, and their range.",
                xlabel="k",
            )
            if not drawn or base is None:
                continue
            values = {family.upper(): base.values(key)}
            row = f"Lookbehind-{family.upper()}"
            lacking: list[float | None] = [None] * len(findings.seeds)  # a k that diverged leaves the claim open
            ours = {f"{row}, k {k:g}": cell.values(key) if cell else lacking for k, cell in curves[row].items()}
            values |= ours
            claim = Claim(f"{row} is above {family.upper()} at every k", tuple(ours), (family.upper(),))
            output.verdicts.append((task.title, judged(claim, values)))
    return output


EXPERIMENT = Experiment(
    id="figure5",
    title="Figure 5: accuracy over k",
    claim="Lookbehind is the only one above SAM and ASAM at every k.",
    tasks=("c10-rn34", "c100-rn50"),
    arms=arms,
    show=show,
)
