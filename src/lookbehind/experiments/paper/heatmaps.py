"""Figures 7, 13 and 14: accuracy over alpha and k, against SAM and ASAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lookbehind.experiments.claims import Claim, Verdict, judged
from lookbehind.experiments.figures import heatmap_figure
from lookbehind.experiments.paper.findings import Cell, Findings
from lookbehind.experiments.paper.grid import FAMILIES, Arm, default, over_k_and_alpha, written
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output

Claimed = Callable[[str, int], bool]


def arms_of(method: str) -> Callable[[Task, Scale], list[Arm]]:
    """All values of k and alpha, and the baselines at their default rho."""

    def arms(task: Task, scale: Scale) -> list[Arm]:
        return [
            arm
            for family in FAMILIES
            for arm in (default(family, task), over_k_and_alpha(method, f"{method.lower()}-{family}", task, scale))
        ]

    return arms


def heatmaps(findings: Findings, figure: str, method: str, claimed: Claimed | None = None) -> Output:
    """A panel per family and task: the difference to the baseline; N/A where a seed diverged.

    ``claimed`` says for which family and k the paper claims that all alphas are above the baseline.
    """
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
            if claimed is not None:
                output.verdicts.append((task.title, _verdict(findings, f"{method}-{upper}", base, cells, ks, claimed)))
    return output


def _verdict(
    findings: Findings, name: str, base: Cell, cells: list[list[Cell]], ks: Sequence[int], claimed: Claimed
) -> Verdict:
    """On the claim that a method is above its baseline; what diverged or is not finished leaves it open."""
    key, family = findings.reported, name.partition("-")[2]
    judging = [k for k in ks if claimed(family.lower(), k)]
    some = [cell for row in cells for k, cell in zip(ks, row, strict=True) if k in judging]
    lacking: list[float | None] = [None] * len(findings.seeds)
    table = {family: base.values(key)} | {c.candidate: c.values(key) if c.complete else lacking for c in some}
    where = "at all alpha and k" if judging == list(ks) else f"at all alpha with k {', '.join(map(str, judging))}"
    claim = Claim(f"{name} is above {family} {where}", tuple(cell.candidate for cell in some), (family,))
    return judged(claim, table)


def _difference(value: float | None, level: float) -> float | None:
    return None if value is None else value - level


def _words(name: str, values: Sequence[float]) -> list[str]:
    return [f"{name} {value:g}" for value in values]
