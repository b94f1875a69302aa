"""The figures of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from lookbehind.experiments.differences import Line
from lookbehind.experiments.drawing import (
    FOLD,
    GRADIENTS,
    INK,
    LINE,
    RULE,
    WIDTH,
    Looks,
    blank,
    canvas,
    drawn,
    label,
    log_scale,
    name_axes,
    paneled,
    write,
)
from lookbehind.experiments.results import Row, Spread
from lookbehind.experiments.table import finite, folded

BANDS = 8
"""With more methods than this, bands and lines between seeds would hide what they belong to."""
PANELS = 8
"""So many planes are drawn."""
ON_PLANES = "#222222"
"""Marks on a coloured plane, which is as bright on a dark page."""


def bands_in_words(curves: int) -> str:
    """What a caption says of the bands around so many curves."""
    return "; bands are left out, there would be too many" if curves > BANDS else ", band from least to greatest"


def finite_mean(row: Row) -> list[float]:
    """The mean accuracy, or nothing where every run diverged."""
    return finite([row["accuracy"]["mean"]])


@drawn
def curves_figure(lines: Sequence[Line], seen: Looks, xlabel: str, ylabel: str, log: bool = False) -> Figure:
    """Curves with a band from the least to the greatest seed, labelled at their ends."""
    figure, axes = canvas([line.method for line in lines])
    for i, line in enumerate(lines):
        look = seen[line.method]
        every = max(1, len(line.x) // 6)
        # where markers stand depends on the method, so that they do not cover each other
        marks: dict[str, Any] = {"marker": look.marker, "markersize": 3.6, "markevery": (i % every, every)}
        axes.plot(line.x, line.mean, color=look.color, linestyle=look.dash, linewidth=1.4, **marks)
        if len(lines) <= BANDS:
            axes.fill_between(line.x, line.low, line.high, color=look.color, alpha=0.14, linewidth=0)
    if log:
        log_scale(axes)
    elif ylabel == "test accuracy %":
        # the first half climbs from chance level and would flatten the rest
        axes.set_ylim(*_window([v for line in lines for part in (line.low, line.high) for v in part[len(part) // 2 :]]))
    elif ylabel == "alpha":
        axes.set_ylim(0, 1.03)
    if lines[0].x[0] > lines[0].x[-1]:  # from the many bits to the few
        axes.invert_xaxis()
    name_axes(axes, xlabel, ylabel)
    label(axes, {line.method: (line.x[-1], line.mean[-1]) for line in lines}, seen)
    return figure


@drawn
def cost_figure(rows: Sequence[Row], seen: Looks) -> Figure:
    """Accuracy against gradient evaluations: mean with its deviation, and a faint point per seed."""
    means = {row["method"]: (row["gradient_evaluations"], mean) for row in rows for mean in finite_mean(row)}
    figure, axes = canvas(list(means))
    low, high = _window([v for row in rows for v in finite(row["accuracy"]["values"])])
    costs = sorted({cost for cost, _ in means.values()})
    if costs[0] > 0 and costs[-1] > 3 * costs[0]:
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            costs if len(costs) <= 4 else [costs[0] * 2**i for i in range(int(math.log2(costs[-1] / costs[0])) + 1)]
        )
        axes.xaxis.set_minor_locator(NullLocator())
    beside = _beside(means)
    for row in rows:
        look, values = seen[row["method"]], finite(row["accuracy"]["values"])
        for mean in finite_mean(row):
            x = beside[row["method"]][0]
            ink: dict[str, Any] = {"color": look.color, "marker": look.marker, "clip_on": False}
            axes.plot([x] * len(values), [max(v, low) for v in values], alpha=0.3, markersize=3, linestyle="", **ink)
            axes.errorbar(x, max(mean, low), row["accuracy"]["std"], markersize=5.5, linewidth=1.1, capsize=2, **ink)
    axes.margins(x=0.08)
    axes.set_ylim(low, high)
    name_axes(axes, GRADIENTS, "test accuracy %")
    if _close(costs):
        axes.set_xticks(costs[:1])
    label(axes, beside, seen)
    return figure


@drawn
def seeds_figure(rows: Sequence[Row], seen: Looks) -> Figure:
    """A line of dots per method, one per seed, with the mean; seeds are joined where they are few."""
    baseline = finite_mean(rows[0])
    rows = [row for row in rows if finite_mean(row)]
    names = [folded(row["method"], FOLD) for row in rows]
    tall = [max(2.2, len(lines) + 0.8) * LINE for lines in names]
    centres = [-(sum(tall[:i]) + tall[i] / 2) for i in range(len(rows))]
    figure, axes = canvas([row["method"] for row in rows], height=sum(tall) + 44, labels_left=True)
    low, high = _window([v for row in rows for v in finite(row["accuracy"]["values"])])
    if len(rows) <= 6:
        for seed in sorted({seed for row in rows for seed in row["seeds"]})[:6]:
            path = [dict(zip(row["seeds"], row["accuracy"]["values"], strict=True)).get(seed) for row in rows]
            axes.plot([float("nan") if v is None else v for v in path], centres, color=RULE, linewidth=0.8, zorder=1)
    for mean in baseline:  # one, or none if all its runs diverged
        axes.axvline(mean, color=INK, linewidth=0.6, alpha=0.5, zorder=1)
    for row, y, lines in zip(rows, centres, names, strict=True):
        look, values = seen[row["method"]], [max(v, low) for v in finite(row["accuracy"]["values"])]
        ink: dict[str, Any] = {"color": look.color, "clip_on": False}
        axes.plot(values, [y] * len(values), look.marker, alpha=0.55, markersize=4, **ink)
        axes.plot([max(v, low) for v in finite_mean(row) * 2], [y - 6, y + 6], linewidth=2, **ink)
        write(axes, lines, (0, (y + sum(tall)) / sum(tall)), -6, "right")
        for mean in finite_mean(row):
            if mean < low:
                axes.annotate(
                    f"\N{LEFTWARDS ARROW} {mean:.1f}", (low, y), (8, 0), textcoords="offset points", va="center"
                )
    axes.set_xlim(low, high)
    axes.set_ylim(-sum(tall), 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("test accuracy %, last epoch")
    return figure


def trade_off_figure(rows: Sequence[Row], seen: Looks, xlabel: str) -> Figure:
    """Training loss against sharpness at the first radius: mean with deviations both ways."""
    points: dict[str, tuple[Spread, Spread]] = {}
    for row in rows:
        sharpness: Spread = {"mean": row["sharpness"]["mean"][0], "std": row["sharpness"]["std"][0], "values": []}
        points[row["method"]] = (sharpness, row["train_loss"])
    return scatter_figure(points, seen, xlabel, "training loss")


@drawn
def scatter_figure(points: Mapping[str, tuple[Spread, Spread]], seen: Looks, xlabel: str, ylabel: str) -> Figure:
    """A point per method, with its deviations in both directions."""
    means = {name: (x["mean"] or 0.0, y["mean"] or 0.0) for name, (x, y) in points.items()}
    figure, axes = canvas(list(points))
    for name, (across, up) in points.items():
        look, (x, y) = seen[name], means[name]
        ink: dict[str, Any] = {"color": look.color, "marker": look.marker, "clip_on": False}
        axes.errorbar(x, y, up["std"], across["std"], markersize=5.5, linewidth=1.1, capsize=2, **ink)
    axes.margins(0.08)
    if min(y for _, y in means.values()) > 0 and _ratio([y for _, y in means.values()]) > 10:
        log_scale(axes)
    name_axes(axes, xlabel, ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    label(axes, means, seen)
    return figure


def non_dominated(points: Mapping[str, tuple[float, float | None]]) -> list[str]:
    """Of points of a cost and a value those that nothing as cheap is above, the cheapest first."""
    known = {name: (cost, value) for name, (cost, value) in points.items() if value is not None}
    found: list[str] = []
    for name in sorted(known, key=lambda one: (known[one][0], -known[one][1])):
        if not found or known[name][1] > known[found[-1]][1]:
            found.append(name)
    return found


@drawn
def frontier_figure(points: Mapping[str, tuple[int, Spread]], seen: Looks, ylabel: str) -> Figure:
    """A value against gradient evaluations, with a line through what nothing as cheap is above."""
    known = {name: (cost, value) for name, (cost, value) in points.items() if value["mean"] is not None}
    means = {name: (float(cost), value["mean"] or 0.0) for name, (cost, value) in known.items()}
    figure, axes = canvas(list(known))
    axes.set_xscale("log", base=2)
    beside = _beside(means)
    best = [beside[name] for name in non_dominated(means)]
    axes.plot([x for x, _ in best], [y for _, y in best], color=INK, linewidth=0.8, alpha=0.5, zorder=1)
    for name, (x, y) in beside.items():
        ink: dict[str, Any] = {"color": seen[name].color, "marker": seen[name].marker}
        axes.errorbar(x, y, known[name][1]["std"], markersize=5, linewidth=0.9, capsize=1.5, **ink)
    least = min(cost for cost, _ in means.values())
    most = max(cost for cost, _ in means.values())
    axes.set_xticks([least * 2**i for i in range(int(math.log2(most / least)) + 1)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.08)
    ends = [y + side * (known[name][1]["std"] or 0.0) for name, (_, y) in means.items() for side in (-1, 1)]
    axes.set_ylim(*_window(ends))
    name_axes(axes, GRADIENTS, ylabel)
    label(axes, beside, seen)
    return figure


@drawn
def heatmap_figure(
    values: Sequence[Sequence[float | None]], columns: Sequence[str], rows: Sequence[str], what: str
) -> Figure:
    """Differences to a baseline in colours, blue above and red below, each with its number; N/A where there is none."""
    side = min(70.0, (WIDTH - 90) / len(columns))
    height = 40.0 * len(rows) + 72
    figure = blank(height)
    box = (64 / WIDTH, 46 / height, side * len(columns) / WIDTH, 40.0 * len(rows) / height)
    axes = figure.add_axes(box, facecolor="none")
    known = [abs(v) for row in values for v in row if v is not None]
    limit = max([*known, 0.1])
    numbers = np.array([[np.nan if v is None else v for v in row] for row in values])
    axes.pcolormesh(numbers, cmap="RdBu", vmin=-limit, vmax=limit, edgecolors="white", linewidth=1)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            strong = value is not None and abs(value) > 0.6 * limit
            color = INK if value is None else "#ffffff" if strong else ON_PLANES
            words = "N/A" if value is None else f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
            axes.text(j + 0.5, i + 0.5, words, ha="center", va="center", color=color)
    axes.set_xticks([j + 0.5 for j in range(len(columns))], columns)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows)
    axes.grid(visible=False)
    axes.set_xlabel(what)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    return figure


@drawn
def planes_figure(planes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The loss in a plane around each network, as contours, with the same colours for all."""
    figure, panels, bar = paneled(list(planes))
    values = [v for plane in planes.values() for row in plane["plane"] for v in row if v is not None and v > 0]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    # what is a thousand times the least loss is all the same hill
    levels = np.geomspace(low, min(max(high, 1.1 * low), 1000 * low), 13)
    for axes, plane in zip(panels, planes.values(), strict=True):
        losses = np.array([[np.nan if v is None else v for v in row] for row in plane["plane"]]).T
        clipped = np.clip(np.nan_to_num(losses, nan=levels[-1]), levels[0], levels[-1])
        drawn_planes = axes.contourf(
            plane["places"], plane["places"], clipped, levels=levels, norm=LogNorm(levels[0], levels[-1]), cmap="YlGnBu"
        )
        axes.contour(
            plane["places"], plane["places"], clipped, levels=levels[1:-1:2], colors=ON_PLANES, linewidths=0.35
        )
        axes.plot([0], [0], "+", color=ON_PLANES, markersize=8)
        ends = [plane["places"][0], 0, plane["places"][-1]]
        axes.set_xticks(ends, [f"{place:g}" for place in ends])
        axes.set_yticks(ends, [f"{place:g}" for place in ends])
    ticks = [levels[j] for j in (0, 3, 6, 9, 12)]
    figure.colorbar(
        drawn_planes, cax=bar, orientation="horizontal", ticks=ticks, label="training loss", format="{x:.2g}"
    )
    bar.xaxis.set_minor_locator(NullLocator())
    return figure


def _ratio(values: Sequence[float]) -> float:
    return max(values) / min(values)


def _window(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis of accuracies. What fell far below the others (chance level) must not flatten them."""
    ordered = sorted(values)
    top, quarter = ordered[-1], ordered[len(ordered) // 4]
    floor = quarter - 3 * max(top - quarter, 0.5)
    bottom = min(v for v in ordered if v >= floor)
    # less than a point is not drawn as if it were much
    margin = max(0.06 * (top - bottom), (1 - (top - bottom)) / 2)
    return bottom - margin, top + margin


def _beside(points: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Points of about the same x a little apart, so that their bars do not hide each other."""
    xs = [x for x, _ in points.values()]
    span = math.log(max(xs) / min(xs)) if min(xs) > 0 and not _close(xs) else 1.0
    groups: list[list[str]] = []
    for method in sorted(points, key=lambda method: points[method][0]):
        if groups and _close([points[groups[-1][0]][0], points[method][0]]):
            groups[-1].append(method)
        else:
            groups.append([method])
    return {
        method: (points[method][0] * math.exp(0.028 * span * (i - (len(group) - 1) / 2)), points[method][1])
        for group in groups
        for i, method in enumerate(group)
    }


def _close(xs: Sequence[float]) -> bool:
    """Whether costs are the same but for the rounding of a budget to whole steps."""
    return max(xs) <= 1.05 * min(xs)
