"""The figures of a report, as SVG with colours that stand for variables of the page.

Every method is labelled where it is drawn, in a column of labels that never overlap. Figures are narrow, so that a
phone shows them at a size that can be read, and a desktop shows two side by side.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from lookbehind.experiments.differences import Line, ascent
from lookbehind.experiments.results import Row
from lookbehind.experiments.table import finite, folded, short_count

P = ParamSpec("P")
GRADIENTS = "gradient evaluations"
BANDS = 8
"""With more methods than this, bands and lines between seeds would hide what they belong to."""

# Colours that stand for a variable of the page, so that light, dark and print each have their own.
INK, RULE = "#000001", "#000002"
SHADES = {
    "baseline": ("#6b6b6b",),
    "sam": ("#0b5fa5", "#3b8ede", "#0a3d6b"),
    "asam": ("#c24e00", "#e08a00", "#8a3400"),
    "other": ("#007a59", "#7a4fa3", "#2aa57f"),
}
VARIABLES = {
    INK: "currentColor",
    RULE: "var(--rule, #dddddd)",
    **{shade: f"var(--{name}-{i}, {shade})" for name, all_ in SHADES.items() for i, shade in enumerate(all_)},
}
MARKERS = "os^Dv*PX"
DASHES: list[Any] = ["-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5))]
RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lookbehind",
    "font.size": 9.0,
    **dict.fromkeys(["axes.spines.top", "axes.spines.right"], False),
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.8,
    **{"xtick.major.size": 3, "ytick.major.size": 0},
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"], INK),
}
WIDTH, LINE, GAP, LETTER = 345.0, 10.5, 3.0, 5.3  # points: figure, line of text, between labels, a letter
FOLD = 20


@dataclass(frozen=True)
class Look:
    """Colour by family, and a marker and dash of its own, so that it can be told in grey too."""

    color: str
    marker: str
    dash: Any


Looks = Mapping[str, Look]


def looks(methods: Sequence[str]) -> Looks:
    """A look for each method; the first is the baseline."""
    taken, found = dict.fromkeys(SHADES, 0), {}
    for i, method in enumerate(methods):
        kin = ascent(method) if i else "baseline"
        color = SHADES[kin][taken[kin] % len(SHADES[kin])]
        # the dash shifts with every round of markers: 32 pairs before one comes again
        found[method] = Look(color, MARKERS[i % 8], DASHES[(i + i // 8) % 4])
        taken[kin] += 1
    return found


def finite_mean(row: Row) -> list[float]:
    """The mean accuracy, or nothing where every run diverged."""
    return finite([row["accuracy"]["mean"]])


def _drawn(draw: Callable[P, Figure]) -> Callable[P, str]:
    """Let a function that draws a figure return it as the text of an SVG file, the same bytes every time."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        file = io.StringIO()
        with mpl_style.context(["default", RC]), warnings.catch_warnings():
            # the browser has the glyphs that matplotlib's own font lacks
            warnings.filterwarnings("ignore", message="Glyph")
            draw(*args, **kwargs).savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return file.getvalue()

    return drawn


@_drawn
def curves_figure(lines: Sequence[Line], seen: Looks, xlabel: str, ylabel: str, log: bool = False) -> Figure:
    """Curves with a band from the least to the greatest seed, labelled at their ends."""
    figure, axes = _canvas([line.method for line in lines])
    for i, line in enumerate(lines):
        look = seen[line.method]
        every = max(1, len(line.x) // 6)
        # where markers stand depends on the method, so that they do not cover each other
        marks: dict[str, Any] = {"marker": look.marker, "markersize": 3.6, "markevery": (i % every, every)}
        axes.plot(line.x, line.mean, color=look.color, linestyle=look.dash, linewidth=1.4, **marks)
        if len(lines) <= BANDS:
            axes.fill_between(line.x, line.low, line.high, color=look.color, alpha=0.14, linewidth=0)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif ylabel == "test accuracy %":
        # the first half climbs from chance level and would flatten the rest
        axes.set_ylim(*_window([v for line in lines for part in (line.low, line.high) for v in part[len(part) // 2 :]]))
    elif ylabel == "alpha":
        axes.set_ylim(0, 1.03)
    _name_axes(axes, xlabel, ylabel)
    _label(axes, {line.method: (line.x[-1], line.mean[-1]) for line in lines}, seen)
    return figure


@_drawn
def cost_figure(rows: Sequence[Row], seen: Looks) -> Figure:
    """Accuracy against gradient evaluations: mean with its deviation, and a faint point per seed."""
    means = {row["method"]: (row["gradient_evaluations"], mean) for row in rows for mean in finite_mean(row)}
    figure, axes = _canvas(list(means))
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
    _name_axes(axes, GRADIENTS, "test accuracy %")
    if _close(costs):
        axes.set_xticks(costs[:1])
    _label(axes, beside, seen)
    return figure


@_drawn
def seeds_figure(rows: Sequence[Row], seen: Looks) -> Figure:
    """A line of dots per method, one per seed, with the mean; seeds are joined where they are few."""
    baseline = finite_mean(rows[0])
    rows = [row for row in rows if finite_mean(row)]
    names = [folded(row["method"], FOLD) for row in rows]
    tall = [max(2.2, len(lines) + 0.8) * LINE for lines in names]
    centres = [-(sum(tall[:i]) + tall[i] / 2) for i in range(len(rows))]
    figure, axes = _canvas([row["method"] for row in rows], height=sum(tall) + 44, labels_left=True)
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
        _write(axes, lines, (0, (y + sum(tall)) / sum(tall)), -6, "right")
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


def _canvas(methods: Sequence[str], height: float = 0.0, labels_left: bool = False) -> tuple[Figure, Axes]:
    """A figure with room for the labels at one side."""
    names = [folded(method, FOLD) for method in methods]
    height = height or max(225.0, sum(len(lines) * LINE + GAP for lines in names) + 45)
    labels = max(len(line) for lines in names for line in lines) * LETTER + 19
    left, right = (labels - 8, 10.0) if labels_left else (43.0, labels)
    figure = Figure(figsize=(WIDTH / 72, height / 72), facecolor="none", dpi=72)
    FigureCanvasSVG(figure)
    box = (left / WIDTH, 34 / height, (WIDTH - left - right) / WIDTH, (height - 42) / height)
    return figure, figure.add_axes(box, facecolor="none")


def _name_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if xlabel == GRADIENTS:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_count(round(x))))


def _label(axes: Axes, ends: Mapping[str, tuple[float, float]], seen: Looks) -> None:
    """Names in a column at the right, each as near to the height of its point as the others let it."""
    low, high = axes.get_ylim()
    transform = axes.transData + axes.transAxes.inverted()
    spots = {method: transform.transform((x, min(max(y, low), high))) for method, (x, y) in ends.items()}
    order = sorted(spots, key=lambda method: float(spots[method][1]))
    # what lies below the axis says how far
    below = {method: f" \N{DOWNWARDS ARROW}{y:.1f}" if y < low else "" for method, (_, y) in ends.items()}
    names = {method: folded(method + below[method], FOLD) for method in order}
    extent = axes.get_window_extent()  # in points, for the figure has 72 dots per inch
    point = 1 / extent.width
    heights = [(len(names[method]) * LINE + GAP) / extent.height for method in order]
    for method, y in zip(order, _apart([spots[method][1] for method in order], heights), strict=True):
        look, (x0, y0) = seen[method], spots[method]
        ink: dict[str, Any] = {"color": look.color, "clip_on": False, "transform": axes.transAxes}
        axes.plot([x0, 1 + 3 * point, 1 + 8 * point], [y0, y, y], linewidth=0.5, alpha=0.7, zorder=1, **ink)
        axes.plot([1 + 11 * point], [y], look.marker, markersize=4, **ink)
        _write(axes, names[method], (1, y), 17, "left")


def _write(axes: Axes, lines: Sequence[str], at: tuple[float, float], aside: float, side: str) -> None:
    """Each line a text of its own: the page's font is not the one that matplotlib would align them by."""
    for i, line in enumerate(lines):
        above = ((len(lines) - 1) / 2 - i) * LINE
        axes.annotate(line, at, (aside, above), xycoords="axes fraction", textcoords="offset points", ha=side,
                      va="center_baseline", annotation_clip=False, parse_math=False)  # fmt: skip


def _apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Centres nearest to the wanted ones (ascending) at which labels of these heights do not overlap.

    Touching labels are pooled into a block that stands at the mean of what they want; the whole stays around [0, 1].
    """
    blocks: list[tuple[float, float, int]] = []  # centre, height, how many
    for centre, height in zip(wanted, heights, strict=True):
        block = (centre, height, 1)
        while blocks and blocks[-1][0] + blocks[-1][1] / 2 > block[0] - block[1] / 2:
            below = blocks.pop()
            number = below[2] + block[2]
            block = ((below[0] * below[2] + block[0] * block[2]) / number, below[1] + block[1], number)
            block = (min(max(block[0], block[1] / 2), max(1 - block[1] / 2, block[1] / 2)), *block[1:])
        blocks.append(block)
    centres: list[float] = []
    for centre, height, number in blocks:
        edge = centre - height / 2
        for own in heights[len(centres) : len(centres) + number]:
            centres.append(edge + own / 2)
            edge += own
    return centres
