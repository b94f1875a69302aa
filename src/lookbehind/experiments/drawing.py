"""How figures are drawn: sizes, colours that stand for variables of the page, labels that never overlap, files.

Every method is labelled where it is drawn, in a column of labels. Figures are narrow, so that a phone shows them at a
size that can be read, and a desktop shows two side by side.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lookbehind.experiments.differences import ascent
from lookbehind.experiments.table import folded, short_count

P = ParamSpec("P")
GRADIENTS = "gradient evaluations"

# Colours that stand for a variable of the page, so that light, dark and print each have their own.
INK, RULE = "#000001", "#dddddd"
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


def drawn(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw its figure in the style of the reports."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl_style.context(["default", RC]):
            return draw(*args, **kwargs)

    return styled


def file_of(figure: Figure, kind: str) -> bytes:
    """The figure as the content of an SVG or PDF file, the same bytes every time."""
    file = io.BytesIO()
    dates = {"svg": "Date", "pdf": "CreationDate"}
    with mpl_style.context(["default", RC]), warnings.catch_warnings():
        # the browser has the glyphs that matplotlib's own font lacks
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format=kind, transparent=True, metadata={dates[kind]: None})
    return file.getvalue()


def blank(height: float) -> Figure:
    """A figure of the usual width and this height, in points."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), facecolor="none", dpi=72)
    FigureCanvasSVG(figure)
    return figure


def canvas(methods: Sequence[str], height: float = 0.0, labels_left: bool = False) -> tuple[Figure, Axes]:
    """A figure with room for the labels at one side."""
    names = [folded(method, FOLD) for method in methods]
    height = height or max(225.0, sum(len(lines) * LINE + GAP for lines in names) + 45)
    labels = max(len(line) for lines in names for line in lines) * LETTER + 19
    left, right = (labels - 8, 10.0) if labels_left else (43.0, labels)
    figure = blank(height)
    box = (left / WIDTH, 34 / height, (WIDTH - left - right) / WIDTH, (height - 42) / height)
    return figure, figure.add_axes(box, facecolor="none")


def name_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Say what the axes are, with few ticks on the one below."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if xlabel == GRADIENTS:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_count(round(x))))


def log_scale(axes: Axes) -> None:
    """A logarithmic y axis with numbers that people read: 0.1, 0.2, 0.5, 1."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def label(axes: Axes, ends: Mapping[str, tuple[float, float]], seen: Looks) -> None:
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
        write(axes, names[method], (1, y), 17, "left")


def paneled(names: Sequence[str]) -> tuple[Figure, list[Axes], Axes]:
    """Square panels with a name above each, two in a line; and below them the place for a bar of colours."""
    columns = min(2, len(names))
    lines = -(-len(names) // columns)
    titles = [folded(name, 26) for name in names]
    title = max(map(len, titles)) * LINE + 6
    side = (WIDTH - 20) / 2 - 20
    height = lines * (side + title + 18) + 50
    figure, found = blank(height), []
    for i, words in enumerate(titles):
        left = 24 + (i % columns) * (side + 18)
        bottom = height - (i // columns + 1) * (side + title + 18) + 14
        axes = figure.add_axes((left / WIDTH, bottom / height, side / WIDTH, side / height), facecolor="none")
        axes.grid(visible=False)
        axes.tick_params(labelleft=i % columns == 0)
        write(axes, words, (0.5, 1 + (title / 2 - 2) / side), 0, "center")
        found.append(axes)
    wide = columns * side + (columns - 1) * 18
    return figure, found, figure.add_axes((24 / WIDTH, 34 / height, wide / WIDTH, 8 / height))


def write(axes: Axes, lines: Sequence[str], at: tuple[float, float], aside: float, side: str) -> None:
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
