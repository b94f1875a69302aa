"""Figures 7, 13 and 14: accuracy over alpha and k, against SAM and ASAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.figures import heatmap_figure
from lookbehind.experiments.paper.findings import Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, default, over_k_and_alpha, written
from lookbehind.experiments.paper.scales import Scale, Task
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output


def arms_of(method: str) -> Callable[[Task, Scale], list[Arm]]:
    """All values of k and alpha, and the baselines at their default rho."""

    def arms(task: Task, scale: Scale) -> list[Arm]:
        return [
            arm
            for family in FAMILIES
            for arm in (default(family, task), over_k_and_alpha(method, f"{method.lower()}-{family}", task, scale))
        ]

    return arms


def heatmaps(findings: Findings, figure: str, method: str) -> Output:
    """A panel per family and task: the difference to the baseline; N/A where a seed diverged."""
    output, key = Output(), findings.reported
    for task in findings.tasks:
        ks, alphas = findings.scale.values_of_k(task), sorted(findings.scale.alphas)
        for family in FAMILIES:
            base = findings.best(task, default(family, task), findings.chosen_by)
            if base is None or (level := base.mean(key)) is None:
                continue
            cells = [
                [findings.cell(task, written(f"{method.lower()}-{family}", k=k, alpha=a)) for k in ks] for a in alphas
            ]
            values = [[_difference(cell.mean(key) if cell.complete else None, level) for cell in row] for row in cells]
            upper = family.upper()
            drawn = heatmap_figure(
                values, _words("k", ks), _words("alpha", alphas), f"points above {upper} at default rho"
            )
            caption = f"{task.title}; {upper} has {level:.2f} %. N/A: a seed diverged, or is not finished."
            name = f"{figure}-{task.key}-{family}"
            output.pictures.append(Picture(name, f"{method}-{upper} over alpha and k", caption, drawn))
            table = {upper: base.values(key)}
            table |= {cell.candidate: cell.values(key) for row in cells for cell in row if cell.complete}
            claim = Claim(
                f"{method}-{upper} is above {upper} everywhere", tuple(n for n in table if n != upper), (upper,)
            )
            output.verdicts.append((task.title, judged(claim, table)))
    return output


def _difference(value: float | None, level: float) -> float | None:
    return None if value is None else value - level


def _words(name: str, values: Sequence[float]) -> list[str]:
    return [f"{name} {value:g}" for value in values]
