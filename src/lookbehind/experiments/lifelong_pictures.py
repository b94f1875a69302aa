"""The figures of lifelong learning: accuracy over the tasks, what was forgotten, and the matrices themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from lookbehind.experiments.differences import Line
from lookbehind.experiments.drawing import drawn, looks, paneled
from lookbehind.experiments.figures import bands_in_words, curves_figure
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.table import joined
from lookbehind.lifelong.metrics import Matrix, averages_so_far, forgetting_per_task

Matrices = Mapping[str, Sequence[Matrix]]
"""Of every method one per seed."""


def lifelong_pictures(matrices: Matrices, name: str = "lifelong") -> Iterator[Picture]:
    """All figures that there is something to draw for."""
    known = {method: found for method, found in matrices.items() if found}
    if not known:
        return
    seen = looks(list(known))
    lines = [_line(method, [averages_so_far(m) for m in found]) for method, found in known.items()]
    ends = joined([f"{line.method} {line.mean[-1]:.1f}" for line in lines], most=8)
    caption = f"Mean accuracy over the tasks learned so far; {_seeds(known)}. In the end, in %: {ends}."
    figure = curves_figure(lines, seen, "tasks learned", "accuracy %")
    yield Picture(f"{name}-average", "Average accuracy", caption, figure)
    lost = {method: [forgetting_per_task(m) for m in found] for method, found in known.items()}
    if all(found[0] for found in lost.values()):
        lines = [_line(method, found) for method, found in lost.items()]
        caption = (
            f"Points lost since the best time, for every task but the last, in the order of learning; {_seeds(known)}."
        )
        figure = curves_figure(lines, seen, "task", "forgetting, points")
        yield Picture(f"{name}-forgetting", "Forgetting per task", caption, figure)
    caption = (
        "A row per task that was just learned, a column per task that is measured; mean over the seeds. Below the "
        "diagonal is what was learned before, above it (where measured) what is still to come."
    )
    yield Picture(f"{name}-matrix", "Accuracy on every task after every task", caption, matrices_figure(known))


def _line(method: str, curves: Sequence[Sequence[float]]) -> Line:
    at = list(zip(*curves, strict=True))
    return Line(method, [float(i + 1) for i in range(len(at))], [*map(fmean, at)], [*map(min, at)], [*map(max, at)])


def _seeds(known: Matrices) -> str:
    if all(len(found) == 1 for found in known.values()):
        return "one seed"
    return f"mean over seeds{bands_in_words(len(known))}"


@drawn
def matrices_figure(matrices: Matrices) -> Figure:
    """A heatmap per method, with the same colours for all."""
    figure, panels, bar = paneled(list(matrices))
    means = [_mean(found) for found in matrices.values()]
    low = min(float(np.nanmin(values)) for values in means)
    for axes, values in zip(panels, means, strict=True):
        mesh = axes.pcolormesh(values, cmap="YlGnBu", vmin=low, vmax=100)
        axes.invert_yaxis()
        ends = sorted({0, len(values) // 2, len(values) - 1})
        axes.set_xticks([at + 0.5 for at in ends], [str(at + 1) for at in ends])
        axes.set_yticks([at + 0.5 for at in ends], [str(at + 1) for at in ends])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    figure.colorbar(mesh, cax=bar, orientation="horizontal", label="accuracy %")
    return figure


def _mean(found: Sequence[Matrix]) -> np.ndarray:
    """Over the seeds; a task that was not measured is left white."""
    size = len(found[0])
    values = np.full((len(found), size, size), np.nan)
    for matrix, target in zip(found, values, strict=True):
        for t, row in enumerate(matrix):
            target[t, : len(row)] = row[:size]
    mean: np.ndarray = values.mean(0)
    return mean
