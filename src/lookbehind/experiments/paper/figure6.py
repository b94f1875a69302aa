"""Figure 6: accuracy over rho."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, in_words, radius, rows_at_radii, rows_at_radius
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import draw_curves
from lookbehind.experiments.shown import Output


def arms(task: Task, scale: Scale) -> list[Arm]:
    """The methods of either family at every radius of the figure."""
    return rows_at_radii(task, scale, scale.few_rhos)


def show(findings: Findings) -> Output:
    """A curve per method, with the best of the settings at each rho."""
    output, key, by = Output(), findings.reported, findings.chosen_by
    for task in findings.tasks:
        for family in FAMILIES:
            upper = family.upper()
            words = in_words(k=findings.scale.values_of_k(task), alpha=findings.scale.few_alphas)
            curves: dict[str, dict[float, Cell | None]] = {}
            for factor in findings.scale.few_rhos:
                rho = radius(task, family, factor)
                for arm in rows_at_radius(family, task, findings.scale, rho):
                    curves.setdefault(arm.name, {})[rho] = findings.best(task, arm, by)
            draw_curves(
                output,
                curves,
                key,
                name=f"figure6-{task.key}-{family}",
                title=f"Accuracy over rho, {upper} methods",
                caption=f"{task.title}; {words} at every rho. Mean over seeds, and their range.",
                xlabel="rho",
            )
            for rho in next(iter(curves.values())):
                there = {name: cell for name, points in curves.items() if (cell := points[rho]) is not None}
                values = {name: cell.values(key) for name, cell in there.items()}
                claim = Claim(f"at rho {rho:g} Lookbehind-{upper} is above {upper}", (f"Lookbehind-{upper}",), (upper,))
                if len({f"Lookbehind-{upper}", upper} & set(values)) == 2:
                    output.verdicts.append((task.title, judged(claim, values)))
    return output


EXPERIMENT = Experiment(
    id="figure6",
    title="Figure 6: accuracy over rho",
    claim="Lookbehind is the only one above SAM and ASAM at every rho.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
)
