"""The report of a comparison: one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lookbehind.data.files import written_whole
from lookbehind.experiments import figures
from lookbehind.experiments.differences import (
    absent_controls,
    best_of,
    control_pairs,
    cost_ratio,
    difference,
    level_lines,
    lines_of,
)
from lookbehind.experiments.results import Curve, Row, Spread
from lookbehind.experiments.table import (
    accuracy,
    answer,
    clock,
    count,
    diverged,
    duration,
    finite,
    interval,
    joined,
    loss,
    loss_with_std,
    ratio,
    setting,
    signed,
    with_std,
)

NOISE = "Every weight is multiplied by N(1, sigma^2), then BatchNorm statistics are estimated again. "
SHARPNESS = "By how much the training loss rises at the worst point that one step of this length finds; it follows the "
SHARPNESS += "loss and the size of the weights, so it is not generalization. "
Named = tuple[str, str, str]
"""A figure with its title and caption."""


@dataclass(frozen=True)
class About:
    """What was compared, how, and on what machine."""

    title: str
    command: str
    """The command line that made it."""
    settings: dict[str, Any]
    """Common to all methods: data, model, epochs, batch size, learning rate, ..."""
    versions: dict[str, str]
    machine: str
    started: str
    """ISO time."""
    seconds: float
    """Wall time of the whole comparison."""
    notices: list[str]
    """Warnings that the reader must see."""


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    title: str
    caption: str
    svg: Markup


def write_report(path: Path, about: About, rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]]) -> None:
    """Write the report; ``rows[0]`` is the baseline, ``curves`` has the runs by method. All of it or nothing."""
    if not rows:
        raise ValueError("rows is empty: a report needs at least one method")
    text = render(about, rows, curves)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # a path may not be Unicode


def render(about: About, rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]]) -> str:
    """The page as text."""
    folder = resources.files("lookbehind.experiments") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"breakable": breakable, "setting": setting}
    template = environment.from_string((folder / "report.html.jinja").read_text("utf-8"))
    return template.render(
        about=about,
        css=Markup((folder / "report.css").read_text("utf-8")),
        answer=answer(rows),
        lines=[_cells(row, rows) for row in rows],
        seeds=[line for row in rows for line in _seed_cells(row)],
        baseline=rows[0]["method"],
        columns=_columns(rows),
        pictures=pictures(rows, curves),
        controls=[_control_cells(*pair) for pair in control_pairs(rows)],
        absent=absent_controls(rows),
        took=clock(about.seconds),
    )


def _columns(rows: Sequence[Row]) -> dict[str, bool]:
    """Which of the optional columns have something to show."""
    keys = ("best_accuracy", "recalibrated_accuracy", "validation_accuracy")
    found = {key: any(row[key]["mean"] is not None for row in rows) for key in keys}  # type: ignore[literal-required]
    return {**found, "difference": len(rows) > 1}


def _cells(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """A row of the table, in words."""
    baseline = row is rows[0]
    found = None if baseline else difference(row, rows[0])
    return {
        "method": row["method"],
        "settings": ", ".join(f"{key} {setting(value)}" for key, value in row["settings"].items()),
        "baseline": baseline,
        "diverged": diverged(row),
        "accuracy": with_std(row["accuracy"], accuracy),
        "best_accuracy": with_std(row["best_accuracy"], accuracy),
        "recalibrated_accuracy": with_std(row["recalibrated_accuracy"], accuracy),
        "train_loss": loss_with_std(row["train_loss"]),
        "difference": signed(found.mean if found else None),
        "interval": "" if found is None else interval(found),
        "shown": found is not None and found.shown,
        "gradients": count(row["gradient_evaluations"]),
        "ratio": ratio(cost_ratio(row, rows[0])),
        "seconds": duration(row["seconds"]["mean"]),
    }


def _seed_cells(row: Row) -> list[dict[str, Any]]:
    def at(values: Spread, i: int) -> float | None:
        return values["values"][i] if i < len(values["values"]) else None

    return [
        {
            "method": row["method"],
            "seed": seed,
            "accuracy": accuracy(at(row["accuracy"], i)),
            "best_accuracy": accuracy(at(row["best_accuracy"], i)),
            "recalibrated_accuracy": accuracy(at(row["recalibrated_accuracy"], i)),
            "validation_accuracy": accuracy(at(row["validation_accuracy"], i)),
            "train_accuracy": accuracy(at(row["train_accuracy"], i)),
            "train_loss": loss(at(row["train_loss"], i)),
            "test_loss": loss(at(row["test_loss"], i)),
            "seconds": duration(at(row["seconds"], i)),
        }
        for i, seed in enumerate(row["seeds"])
    ]


def _control_cells(row: Row, control: Row) -> dict[str, Any]:
    found = difference(row, control)
    return {
        "method": row["method"],
        "control": control["method"],
        "difference": signed(found.mean if found else None),
        "interval": interval(found),
        "shown": found is not None and found.shown,
        "ratio": ratio(cost_ratio(row, control)),
    }


def breakable(label: str) -> Markup:
    """A label that may be broken after a colon or comma."""
    return Markup("<wbr>").join(re.findall(r"[^:,]+[:,]*|[:,]+", label))


def pictures(rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]]) -> list[Picture]:
    """Every figure that has something to show."""
    seen = figures.looks([row["method"] for row in rows])
    runs = {method: curves[method] for method in seen if curves.get(method)}
    drawn = [*_learning(runs, seen), *_accuracies(rows, seen), *_loss(runs, seen), *_alpha(runs, seen)]
    drawn += _measures(rows, seen)
    return [Picture(title, caption, inlined(svg, f"f{i}")) for i, (title, caption, svg) in enumerate(drawn)]


def _learning(runs: Mapping[str, Sequence[Curve]], seen: figures.Looks) -> Iterator[Named]:
    lines = lines_of(runs, lambda curve: curve.test_accuracy)
    if not lines:
        return
    crowded = len(lines) > figures.BANDS
    bands = "; bands are left out, there would be too many" if crowded else ", band from least to greatest"
    what = f"Mean over seeds{bands}" if any(line.low != line.high for line in lines) else "One seed"
    ends = joined([f"{line.method} {accuracy(line.mean[-1])}" for line in lines], most=8)
    early = any(min(line.mean) < min(line.low[len(line.low) // 2 :]) for line in lines)
    below = " The axis leaves out the low values of the first epochs." if early else ""
    caption = f"{what}. At the end, in %: {ends}.{below}"
    svg = figures.curves_figure(lines, seen, "epochs", "test accuracy %")
    yield "Test accuracy against epochs", caption, svg
    lines = lines_of(runs, lambda curve: curve.test_accuracy, by_gradients=True)
    ordered = sorted(lines, key=lambda line: line.x[-1])
    costs = joined([f"{line.method} {count(round(line.x[-1]))}" for line in ordered], most=8)
    caption = f"The same curves by their cost. Gradient evaluations at the end: {costs}."
    svg = figures.curves_figure(lines, seen, figures.GRADIENTS, "test accuracy %")
    yield "Test accuracy against gradient evaluations", caption, svg


def _accuracies(rows: Sequence[Row], seen: figures.Looks) -> Iterator[Named]:
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
    yield "Cost against accuracy", caption, figures.cost_figure(rows, seen)
    numbers = [value for row in rows for value in finite(row["accuracy"]["values"])]
    line = ", a grey line at the mean of the baseline" if rows[0]["accuracy"]["mean"] is not None else ""
    caption = (
        f"A point per seed, a bar at the mean{line}. All runs lie from "
        f"{accuracy(min(numbers))} to {accuracy(max(numbers))} %.{lost}"
    )
    yield "Accuracy of every seed", caption, figures.seeds_figure(rows, seen)


def _loss(runs: Mapping[str, Sequence[Curve]], seen: figures.Looks) -> Iterator[Named]:
    lines = lines_of(runs, lambda curve: curve.loss)
    if lines:
        values = [value for line in lines for value in line.low]
        log = min(values) > 0 and max(values) > 10 * min(values)
        ends = joined([f"{line.method} {loss(line.mean[-1])}" for line in lines], most=8)
        caption = f"During the epoch, at the unperturbed weights; mean over seeds. At the end: {ends}."
        yield "Training loss", caption, figures.curves_figure(lines, seen, "epochs", "training loss", log=log)


def _alpha(runs: Mapping[str, Sequence[Curve]], seen: figures.Looks) -> Iterator[Named]:
    lines = [line for line in lines_of(runs, lambda curve: curve.alpha) if max(line.high) - min(line.low) > 1e-6]
    if lines:
        ends = joined([f"{line.method} {line.mean[-1]:.2f}" for line in lines], most=8)
        caption = f"How far the slow weights follow the fast ones; mean over seeds. At the end: {ends}."
        yield "Alpha", caption, figures.curves_figure(lines, seen, "epochs", "alpha")


def _measures(rows: Sequence[Row], seen: figures.Looks) -> Iterator[Named]:
    for key, levels, title, xlabel, ylabel, what in (
        ("noise", "sigmas", "Noise in the weights", "sigma of the noise", "accuracy % with noise", NOISE),
        ("sharpness", "radii", "Sharpness", "radius", "rise of the loss", SHARPNESS),
        ("asam_sharpness", "radii", "Sharpness, adaptive", "radius, relative to each weight", "rise of the loss", ""),
    ):
        lines = level_lines(rows, key, levels)
        if lines:
            values = [value for line in lines for value in line.low]
            log = key != "noise" and min(values) > 0 and max(values) > 10 * min(values)
            ends = joined([f"{line.method} {line.mean[-1]:.3g}" for line in lines], most=8)
            level = {"sigmas": "sigma", "radii": "radius"}[levels]
            caption = f"{what}Mean over seeds. At {level} {lines[0].x[-1]:g}: {ends}."
            yield title, caption, figures.curves_figure(lines, seen, xlabel, ylabel, log=log)


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
        return re.sub(r"#[0-9a-f]{6}", lambda found: figures.VARIABLES.get(found[0], found[0]), value)
    return re.sub(r"^(url\()?#", lambda found: f"{found[0]}{name}-", value)
