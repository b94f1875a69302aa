"""Which figures a report has, what they are called and what their captions say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure

from lookbehind.experiments import figures
from lookbehind.experiments.differences import best_of, level_lines, lines_of
from lookbehind.experiments.drawing import GRADIENTS, VARIABLES, Looks, file_of, looks
from lookbehind.experiments.measure_tables import LEVELLED, digits
from lookbehind.experiments.results import Curve, Row
from lookbehind.experiments.table import accuracy, count, finite, joined, loss, with_std

NAMES = {
    *("accuracy-epochs", "accuracy-gradients", "cost", "seeds", "loss", "alpha", "loss-sharpness", "planes"),
    *(spec.key.replace("_", "-") for spec in LEVELLED),
}
"""Of all figures that there are."""


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    name: str
    """Of its files."""
    title: str
    caption: str
    figure: Figure

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Its files by their kind."""
        return {kind: file_of(self.figure, kind) for kind in ("svg", "pdf")}

    @property
    def svg(self) -> Markup:
        """As a part of the page."""
        return inlined(self.files["svg"].decode(), self.name.replace(".", "-"))  # in a selector a dot begins a class


def pictures(rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]]) -> list[Picture]:
    """Every figure that has something to show."""
    seen = looks([row["method"] for row in rows])
    runs = {method: curves[method] for method in seen if curves.get(method)}
    return [
        *_learning(runs, seen),
        *_accuracies(rows, seen),
        *_loss(runs, seen),
        *_alpha(runs, seen),
        *_measures(rows, seen),
        *_trade_off(rows, seen),
        *_planes(rows),
    ]


def _learning(runs: Mapping[str, Sequence[Curve]], seen: Looks) -> Iterator[Picture]:
    lines = lines_of(runs, lambda curve: curve.test_accuracy)
    if not lines:
        return
    several = f"Mean over seeds{figures.bands_in_words(len(lines))}"
    what = several if any(line.low != line.high for line in lines) else "One seed"
    ends = joined([f"{line.method} {accuracy(line.mean[-1])}" for line in lines], most=8)
    early = any(min(line.mean) < min(line.low[len(line.low) // 2 :]) for line in lines)
    below = " The axis leaves out the low values of the first epochs." if early else ""
    caption = f"{what}. At the end, in %: {ends}.{below}"
    figure = figures.curves_figure(lines, seen, "epochs", "test accuracy %")
    yield Picture("accuracy-epochs", "Test accuracy against epochs", caption, figure)
    lines = lines_of(runs, lambda curve: curve.test_accuracy, by_gradients=True)
    ordered = sorted(lines, key=lambda line: line.x[-1])
    costs = joined([f"{line.method} {count(round(line.x[-1]))}" for line in ordered], most=8)
    caption = f"The same curves by their cost. Gradient evaluations at the end: {costs}."
    figure = figures.curves_figure(lines, seen, GRADIENTS, "test accuracy %")
    yield Picture("accuracy-gradients", "Test accuracy against gradient evaluations", caption, figure)


def _accuracies(rows: Sequence[Row], seen: Looks) -> Iterator[Picture]:
    best = best_of(rows)
    if best is None:
        return
    named = [rows[0]] if best is rows[0] else [rows[0], best]
    values = [f"{row['method']} {with_std(row['accuracy'], accuracy)} % for {count(row['gradient_evaluations'])}"
              for row in named]  # fmt: skip
    gone = [row["method"] for row in rows if row["accuracy"]["mean"] is None]
    lost = f" Not shown, for every run diverged: {joined(gone)}." if gone else ""
    bars = " Bars: standard deviation; faint points: seeds." if any(row["accuracy"]["std"] for row in rows) else ""
    caption = f"{', '.join(values)} gradients.{bars} Methods of equal cost stand side by side.{lost}"
    yield Picture("cost", "Cost against accuracy", caption, figures.cost_figure(rows, seen))
    numbers = [value for row in rows for value in finite(row["accuracy"]["values"])]
    line = ", a grey line at the mean of the baseline" if rows[0]["accuracy"]["mean"] is not None else ""
    caption = (
        f"A point per seed, a bar at the mean{line}. All runs lie from "
        f"{accuracy(min(numbers))} to {accuracy(max(numbers))} %.{lost}"
    )
    yield Picture("seeds", "Accuracy of every seed", caption, figures.seeds_figure(rows, seen))


def _loss(runs: Mapping[str, Sequence[Curve]], seen: Looks) -> Iterator[Picture]:
    lines = lines_of(runs, lambda curve: curve.loss)
    if lines:
        values = [value for line in lines for value in line.low]
        log = min(values) > 0 and max(values) > 10 * min(values)
        ends = joined([f"{line.method} {loss(line.mean[-1])}" for line in lines], most=8)
        caption = f"During the epoch, at the unperturbed weights; mean over seeds. At the end: {ends}."
        figure = figures.curves_figure(lines, seen, "epochs", "training loss", log=log)
        yield Picture("loss", "Training loss", caption, figure)


def _alpha(runs: Mapping[str, Sequence[Curve]], seen: Looks) -> Iterator[Picture]:
    lines = [line for line in lines_of(runs, lambda curve: curve.alpha) if max(line.high) - min(line.low) > 1e-6]
    if lines:
        ends = joined([f"{line.method} {line.mean[-1]:.2f}" for line in lines], most=8)
        caption = f"How far the slow weights follow the fast ones; mean over seeds. At the end: {ends}."
        yield Picture("alpha", "Alpha", caption, figures.curves_figure(lines, seen, "epochs", "alpha"))


def _measures(rows: Sequence[Row], seen: Looks) -> Iterator[Picture]:
    for spec in LEVELLED:
        lines = level_lines(rows, spec.key, spec.levels)
        if lines:
            values = [value for line in lines for value in finite(line.low)]
            log = spec.log and min(values) > 0 and max(values) > 10 * min(values)
            end = next(row[spec.key][spec.levels][-1] for row in rows if spec.key in row)  # type: ignore[literal-required]
            values_there = [(line.method, line.mean[-1] if line.x[-1] == end else None) for line in lines]
            ends = joined([f"{method} {digits(value)}" for method, value in values_there], most=8)
            last = f"{end:g} bits" if spec.level == "bits" else f"{spec.level} {end:g}"
            caption = f"{spec.what}Mean over seeds, band from least to greatest. At {last}: {ends}."
            figure = figures.curves_figure(lines, seen, spec.xlabel, spec.ylabel, log=log)
            yield Picture(spec.key.replace("_", "-"), spec.title, caption, figure)


def _trade_off(rows: Sequence[Row], seen: Looks) -> Iterator[Picture]:
    """Loss against sharpness at the smallest radius, as in figure 1 of the paper."""
    known = [row for row in rows if "sharpness" in row and row["train_loss"]["mean"] is not None]
    rows = [row for row in known if row["sharpness"]["mean"][0] is not None]
    if rows:
        radius = rows[0]["sharpness"]["radii"][0]
        caption = (
            f"Sharpness at radius {radius:g} and loss on the training images, at the final weights; bars: standard "
            "deviation over seeds. Low and to the left is flat and well fitted."
        )
        figure = figures.trade_off_figure(rows, seen, f"rise of the loss at radius {radius:g}")
        yield Picture("loss-sharpness", "Training loss against sharpness", caption, figure)


def _planes(rows: Sequence[Row]) -> Iterator[Picture]:
    planes = {row["method"]: row["landscape"] for row in rows if "landscape" in row}
    if planes:
        shown = dict(list(planes.items())[: figures.PANELS])
        rest = f" The first {len(shown)} of {len(planes)} methods." if len(shown) < len(planes) else ""
        caption = (
            "Training loss around the final weights (+) in the plane of two random directions, each filter as long as "
            f"the network's own; first seed; the same colours for all.{rest}"
        )
        yield Picture("planes", "Landscape", caption, figures.planes_figure(shown))


def inlined(text: str, name: str) -> Markup:
    """Take an SVG file into a page: ids that no other figure has, the page's colours and font, nothing idle."""
    root = ElementTree.fromstring(text)
    used = set(re.findall(r"(?:url\(|href=\")#(\w+)", text))
    for element in root.iter():
        element.tag = element.tag.split("}")[1]
        for child in list(element):
            if child.tag.split("}")[1] in ("metadata", "style"):
                element.remove(child)
        if element.tag != "text":
            element.text = None
        element.tail = None
        attributes = {key.split("}")[-1]: value for key, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        element.attrib = {key: _inlined(key, value, name) for key, value in attributes.items()}
    root.attrib = {"viewBox": root.attrib["viewBox"]}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _inlined(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        value = re.sub(r"font-family:[^;]*;? ?", "", value)
        return re.sub(r"#[0-9a-f]{6}", lambda found: VARIABLES.get(found[0], found[0]), value)
    return re.sub(r"^(url\()?#", lambda found: f"{found[0]}{name}-", value)
