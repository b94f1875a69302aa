"""Draw docs/idea.svg: one step of Multistep-SAM and one of Lookbehind, as the library takes them, on a 2-D loss.

python docs/idea.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor
from torch.nn.functional import softplus
from torch.optim import SGD, Optimizer

from lookbehind import LookbehindSAM, MultistepSAM, SharpnessAware

RHO, K, ALPHA, LR = 0.5, 3, 0.5, 0.54
WIDTH, HEIGHT = 900, 400  # pixels
# of Okabe and Ito's palette, which colour-blind people can tell apart: one colour per point of the climb
COLOURS = ("#0072B2", "#009E73", "#D55E00")
INK, GREY, LINES = "#1f2328", "#626b75", "#d3dae2"
LAND = LinearSegmentedColormap.from_list("land", ["#fbfcfd", "#f0f3f6", "#e1e7ee"])

Point = tuple[float, float]
START: Point = (0.0, 0.0)


def loss_at(x: Tensor, y: Tensor) -> Tensor:
    """An asymmetric valley: a steep wall above, a gentle slope to the left."""
    wall = 1.33 * softplus(y - 0.27 * x**2 - 0.27, beta=5.5)
    return wall + 0.145 * (x + 2.35) ** 2 + 0.06 * (y + 0.6) ** 2


@dataclass(frozen=True)
class Step:
    """What one step did: the points of its climb, the weights after each base step, and where it ended."""

    points: list[Point]
    fast: list[Point]
    end: Point


def record(method: Callable[[Optimizer], SharpnessAware]) -> Step:
    weights = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    base = SGD([weights], lr=LR)
    optimizer = method(base)
    points: list[Point] = []
    fast: list[Point] = []

    def here() -> Point:
        x, y = weights.tolist()
        return x, y

    def closure() -> Tensor:
        if optimizer.climbing:
            points.append(here())
        optimizer.zero_grad()
        loss = loss_at(*weights)
        loss.backward()
        return loss

    base.register_step_post_hook(lambda *_: fast.append(here()))
    optimizer.step(closure)
    return Step(points, fast, here())


def landscape(axes: Axes, title: str, subtitle: str) -> None:
    axes.set(xlim=(-2.1, 2.1), ylim=(-1.8, 1.26), aspect="equal")
    axes.axis("off")
    x, y = torch.meshgrid(torch.linspace(-2.2, 2.2, 64), torch.linspace(-1.9, 1.4, 48), indexing="xy")
    bands = axes.contourf(x, y, loss_at(x, y), levels=14, cmap=LAND)
    bands.set(edgecolor=LINES, linewidth=0.6)
    bands.set_clip_path(FancyBboxPatch((0, 0), 1, 1, "round,pad=0,rounding_size=0.025", transform=axes.transAxes))
    axes.text(0, 1.115, title, transform=axes.transAxes, fontsize=13, fontweight="bold", color=INK)
    axes.text(0, 1.04, subtitle, transform=axes.transAxes, fontsize=9.5, color=GREY)
    axes.text(0.025, 0.035, "low loss", transform=axes.transAxes, fontsize=8, color=GREY)
    axes.text(0.975, 0.94, "high loss", transform=axes.transAxes, fontsize=8, color=GREY, ha="right")


def arrow(axes: Axes, start: Point, end: Point, colour: str, width: float) -> None:
    shape = {"arrowstyle": "-|>,head_width=0.22,head_length=0.42", "mutation_scale": 10 + 2 * width}
    line = {"color": colour, "linewidth": width, "shrinkA": 7, "shrinkB": 7, "joinstyle": "miter"}
    axes.annotate("", end, start, arrowprops={**shape, **line}, zorder=4)


def badge(axes: Axes, at: Point, number: int, *, ink: str, face: str, edge: str) -> None:
    axes.plot(*at, "o", color=face, markersize=12.5, markeredgecolor=edge, markeredgewidth=1.5, zorder=6)
    axes.text(*at, str(number), color=ink, size=8, weight="bold", ha="center", va="center_baseline", zorder=7)


def label(axes: Axes, at: Point, text: str, colour: str, align: str = "left") -> None:
    axes.text(*at, text, color=colour, fontsize=9.5, linespacing=1.3, ha=align, va="center")


def dot(axes: Axes, at: Point, text: str) -> None:
    axes.plot(*at, "o", color=INK, markersize=9, markeredgecolor="white", markeredgewidth=1.2, zorder=6)
    label(axes, (at[0] + 0.16, at[1] - 0.1), text, INK)


def climb(axes: Axes, step: Step, colours: Sequence[str]) -> None:
    for number, (start, point) in enumerate(pairwise([START, *step.points])):
        arrow(axes, start, point, GREY, 1.4)
        badge(axes, point, number + 1, ink="white", face=colours[number], edge="white")
    label(axes, (0.55, 0.68), f"climb: {K} ascent steps", GREY, align="right")


def draw_multistep(axes: Axes, step: Step) -> None:
    landscape(axes, "Multistep-SAM", "Climb, then take one descent step with the last gradient.")
    climb(axes, step, (GREY, GREY, COLOURS[2]))
    arrow(axes, START, step.end, COLOURS[2], 2.4)
    label(axes, (-0.3, -0.36), "one step with\nthe gradient at 3", COLOURS[2], align="right")
    dot(axes, START, "weights")
    dot(axes, step.end, "new weights")


def draw_lookbehind(axes: Axes, step: Step) -> None:
    landscape(axes, "Lookbehind", "Fast weights descend with every gradient; slow weights follow.")
    climb(axes, step, COLOURS)
    for number, (start, fast) in enumerate(pairwise([START, *step.fast])):
        arrow(axes, start, fast, COLOURS[number], 2.4)
        badge(axes, fast, number + 1, ink=COLOURS[number], face="white", edge=COLOURS[number])
    label(axes, (-0.9, -0.55), "fast weights:\none step with\neach gradient", GREY, align="right")
    axes.plot([START[0], step.fast[-1][0]], [START[1], step.fast[-1][1]], ":", color=INK, linewidth=1.3, zorder=3)
    arrow(axes, START, step.end, INK, 1.8)
    dot(axes, START, "slow weights")
    dot(axes, step.end, "new slow weights:\na fraction \N{GREEK SMALL LETTER ALPHA} of the way")


def main() -> None:
    mpl.rcParams.update({"font.family": "DejaVu Sans", "svg.fonttype": "path", "svg.hashsalt": "lookbehind"})
    figure = Figure(figsize=(WIDTH / 96, HEIGHT / 96), facecolor="none")
    # a white card, because GitHub shows the picture on black as well
    card = FancyBboxPatch((0, 0), 1, 1, "round,pad=0,rounding_size=0.02", mutation_aspect=WIDTH / HEIGHT)
    card.set(transform=figure.transFigure, facecolor="white", edgecolor="none", zorder=-1)
    figure.add_artist(card)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.03, right=0.97, bottom=0.06, top=0.81, wspace=0.07)
    draw_multistep(left, record(lambda base: MultistepSAM(base, rho=RHO, k=K)))
    draw_lookbehind(right, record(lambda base: LookbehindSAM(base, rho=RHO, k=K, alpha=ALPHA)))
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
