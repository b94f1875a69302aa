"""The report of a comparison: statistics by hand, the answer that they allow, a page that is whole by itself."""

from __future__ import annotations

import io
import json
import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from pages import ABOUT, CASES, DEAD, HOSTILE, LONG, MANY, TYPICAL, compared, curve, page, row, with_measures
from rich.console import Console
from scipy import stats

from lookbehind.experiments import drawing
from lookbehind.experiments.differences import absent_controls, control_pairs, cost_ratio, difference, lines_of
from lookbehind.experiments.markdown import markdown
from lookbehind.experiments.measure_tables import grids, terminal_grids
from lookbehind.experiments.output import write_results
from lookbehind.experiments.pictures import pictures
from lookbehind.experiments.report import render
from lookbehind.experiments.table import (
    answer,
    count,
    duration,
    folded,
    joined,
    loss,
    ratio,
    setting,
    short_count,
    signed,
    terminal_table,
)

VOID = {"meta", "br", "wbr", "hr", "img", "link", "input"}


class Tree(HTMLParser):
    """Tags must balance; collects attributes, ids, and the text of each cell of a table."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.rows, self.labels = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.note(tag, attrs)

    def note(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for key, value in attrs if key == "id"]
        self.links += [value for key, value in attrs if key in ("src", "href", "srcset", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "text" in self.open:
            self.labels.append(data)
        if self.open and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += (" " if self.open[-1] == "small" else "") + data


def test_the_difference_is_paired_by_seed_and_its_interval_is_students():
    found = difference(row("b", [91.0, 93.0, 95.0], seeds=[2, 0, 1]), row("a", [92.0, 93.0, 90.0], seeds=[0, 1, 2]))
    # by seed: 0 -> 93 - 92, 1 -> 95 - 93, 2 -> 91 - 90; mean 4/3, deviation sqrt(1/3), t(0.975, 2) = 4.302653
    assert found.seeds == 3
    assert found.mean == pytest.approx(4 / 3)
    assert found.margin == pytest.approx(4.302653 * math.sqrt(1 / 3) / math.sqrt(3), rel=1e-6)
    assert found.shown is False
    expected = stats.ttest_rel([93.0, 95.0, 91.0], [92.0, 93.0, 90.0]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_what_the_seeds_cannot_show_has_no_interval():
    a = row("a", [90.0, None, 92.0])
    assert difference(row("b", [None, 91.0, None]), a) is None
    one = difference(row("b", [91.0, 91.0, None]), a)
    assert (one.mean, one.seeds, one.margin, one.low, one.shown) == (1.0, 1, None, None, False)
    equal = difference(row("b", [90.3, 91.0, 92.3]), a)  # steps of a small test set, not certainty
    assert (equal.seeds, equal.margin, equal.shown) == (2, None, False)


def test_the_cost_is_a_ratio_of_gradients():
    assert cost_ratio(row("b", [1.0], 6), row("a", [1.0], 1)) == 6
    assert cost_ratio(row("b", [1.0], 6), row("a", [1.0], 0)) is None


def test_numbers_as_people_read_them():
    assert [signed(v) for v in (0.349, -0.12, -0.001, None)] == ["+0.35", "\N{MINUS SIGN}0.12", "0.00", "\N{EN DASH}"]
    assert [loss(v) for v in (1.23456, 0.0304, 0.0000123, 0.0)] == ["1.235", "0.0304", "1.2e-05", "0.000"]
    assert loss(0.0001, like=0.05) == "0.0001"
    assert [short_count(v) for v in (0, 999, 1000, 1234, 99949, 120000, 999950, 1.5e6)] == [
        "0", "999", "1k", "1.2k", "99.9k", "120k", "1M", "1.5M",
    ]  # fmt: skip
    assert [count(1234567), duration(9.96), duration(1234.4)] == ["1,234,567", "10.0", "1,234"]
    assert [ratio(6), ratio(0.25)] == ["6.0\N{MULTIPLICATION SIGN}", "0.25\N{MULTIPLICATION SIGN}"]
    assert [setting(v) for v in (0.07500000000000001, (0.1, 5), None, True)] == ["0.075", "0.1 5", "not set", "True"]
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert joined(list("abcdef"), most=3) == "a, b and 4 more"
    assert folded(LONG, 20) == ["lookbehind-asam:", "k=10,alpha=adaptive"]
    assert folded("Lookahead-C-MAML (1 of 3 seeds)", 26) == ["Lookahead-C-MAML (1 of 3 ", "seeds)"]
    assert folded("12345 78", 7) == ["12345 ", "78"]
    assert "".join(folded(HOSTILE * 3, 7)) == HOSTILE * 3
    assert max(map(len, folded(HOSTILE * 3, 7))) == 7


def test_the_answer_says_what_exceeds_the_seeds_and_no_more():
    base = ("sgd", [90.0, 91.0, 92.0], 1)
    better, same = ("sam", [91.0, 92.1, 92.9], 2), ("asam", [90.9, 90.2, 92.9], 2)
    best, against = answer(compared(base, better, same)[0])
    assert "sam: 92.00 ± 0.95 % (3 seeds), but these seeds cannot tell it from asam." in best
    assert "sam +1.00 points (+0.75 to +1.25) at 2.0\N{MULTIPLICATION SIGN} the gradients" in against
    assert "asam +" not in against
    assert against.endswith("For the other method: no difference that these seeds can show.")
    _, nothing = answer(compared(base, same)[0])
    assert nothing == (
        "Against sgd: no difference that these seeds can show. It costs 2.0\N{MULTIPLICATION SIGN} the gradients."
    )


def test_one_seed_shows_nothing_however_large_the_difference():
    best, against = answer(compared(("sgd", [10.0], 1), ("sam", [99.0], 2))[0])
    assert "99.00 % (1 seed), but one seed cannot tell it from any other method" in best
    assert "no difference that these seeds can show, for one seed cannot show any" in against


def test_the_answer_without_an_answer():
    assert answer(compared(*DEAD)[0]) == ["No run ended with a finite loss: there is nothing to compare."]
    assert "no other method" in answer(compared(("sam", [90.0, 91.0], 2))[0])[0]
    _, against, diverged = answer(compared(*CASES["dead baseline"])[0])
    assert "sgd diverged in every run" in against
    assert diverged == "Runs that diverged are left out of the means: sgd (2 of 2)."


def test_a_gain_of_lookbehind_is_held_against_its_controls():
    gain, base = ("lookbehind-sam:k=5", [91.0, 92.1, 92.9], 6), ("sgd", [90.0, 91.0, 92.0], 1)
    rows, _ = compared(base, gain, ("sam-matched", [90.9, 92.2, 92.8], 2), ("repeat-asam", [90.0, 91.0, 92.0], 2))
    assert [(a["method"], b["method"]) for a, b in control_pairs(rows)] == [("lookbehind-sam:k=5", "sam-matched")]
    assert absent_controls(rows) == ["sam-long-step", "repeat-sam"]
    assert "In the 1 pair of Lookbehind and a control" in answer(rows)[2]
    assert "No control that moves as far" in answer(compared(base, gain)[0])[2]
    weak = ("sam-matched", [90.0, 91.1, 92.0], 2)
    assert "1 shows a gain: lookbehind-sam:k=5 over sam-matched" in answer(compared(base, gain, weak)[0])[2]


def test_many_intervals_come_with_a_warning():
    rows, _ = compared(("sgd", [90.0, 91.0], 1), *((f"sam:rho={i}", [91.0 + i, 92.01 + i], 2) for i in range(10)))
    assert "Of 10 such intervals, 0.5 would not contain zero by chance" in answer(rows)[1]


@pytest.mark.parametrize("case", CASES)
def test_every_page_is_whole_by_itself(case):
    text = page(*CASES[case])
    tree = Tree(text)
    assert len(tree.ids) == len(set(tree.ids))
    assert all(link.startswith(("#", "data:")) for link in tree.links)
    assert {link[1:] for link in tree.links} | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(tree.ids)
    assert not re.search(r"@import|url\([^#)]|\bnan\b|\bNone\b|Undefined", text)
    assert ("html", {"lang": "en"}) in tree.tags
    assert any(attributes.get("name") == "viewport" for tag, attributes in tree.tags)
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in tree.tags if tag == "th")
    drawings = [attributes for tag, attributes in tree.tags if attributes.get("role") == "img"]
    assert len(drawings) == sum(tag == "svg" for tag, _ in tree.tags)
    assert all(a["aria-label"] and a["aria-describedby"] in tree.ids for a in drawings)


def test_figures_are_there_when_they_have_something_to_show():
    def titles(case):
        return re.findall(r"<h3>(.*?)</h3>", page(*case))

    both = ["Test accuracy against epochs", "Test accuracy against gradient evaluations"]
    assert titles(TYPICAL) == [*both, "Cost against accuracy", "Accuracy of every seed", "Training loss", "Alpha"]
    assert titles(TYPICAL[:2]) == [*both, "Cost against accuracy", "Accuracy of every seed", "Training loss"]
    assert titles(DEAD) == [*both, "Training loss"]
    assert "<svg" not in render(ABOUT, compared(*DEAD)[0], pictures(compared(*DEAD)[0], {}))
    rows, _ = compared(*TYPICAL[:2])
    drawn = pictures(with_measures(rows), {})
    assert [one.title for one in drawn] == [
        "Cost against accuracy", "Accuracy of every seed", "Noise in the weights", "Additive noise in the weights",
        "Coarse weights", "Sharpness", "Sharpness, adaptive", "Loss along a random direction",
        "Loss on the way to another solution", "Training loss against sharpness", "Landscape",
    ]  # fmt: skip
    captions = {one.name: one.caption for one in drawn}
    assert captions["noise"].endswith("At sigma 0.5: sgd 72.5 and sam 71.4.")
    assert captions["quantisation"].endswith("At 2 bits: sgd 85 and sam 84.")
    assert captions["sharpness"].endswith("At radius 5: sgd 5.25 and sam 10.5.")


def test_the_table_has_the_numbers_of_the_rows():
    rows = Tree(page(*TYPICAL)).rows
    assert rows[1][:2] == ["sgd lr 0.1, rho 0.05", "91.00 ± 1.00"]
    assert rows[2] == ["sam lr 0.1, rho 0.05", "91.60 ± 1.21", "+0.60 \N{MINUS SIGN}0.06 to +1.26", "92.10 ± 1.21",
                       "91.70 ± 1.21", "0.0420 ± 0.0061", "2,400 2.0\N{MULTIPLICATION SIGN}", "20.1"]  # fmt: skip
    assert "1 of 3 runs diverged" in rows[4][0]
    assert rows[4][1] == "92.00 ± 1.41"
    start = next(i for i, cells in enumerate(rows) if cells[:2] == ["method", "seed"])
    every = rows[start + 1 : start + 1 + 18]
    assert [cells[:3] for cells in every[9:12]] == [
        [LONG, "0", "91.00"], [LONG, "1", "\N{EN DASH}"], [LONG, "2", "93.00"],
    ]  # fmt: skip
    control = next(cells for cells in rows if cells[:2] == ["lookbehind-sam", "sam-matched"])
    assert control[2:] == ["+0.03", "\N{MINUS SIGN}0.25 to +0.32", "3.0\N{MULTIPLICATION SIGN}"]


def test_a_hostile_label_is_text_in_table_and_figures():
    text = page(*TYPICAL)
    assert text.count("<script") == 1  # our own
    tree = Tree(text)
    assert any(cells and cells[0].startswith(HOSTILE) for cells in tree.rows)
    # in the figures it is folded; nothing of it is taken for a formula
    assert "".join(folded(HOSTILE, 20)[:2]) in "".join(tree.labels)
    assert "digits, &lt;convnet&gt;" in text
    assert "a &amp; b" in text


def test_the_same_input_gives_the_same_bytes_and_all_of_them(tmp_path):
    rows, curves = compared(*TYPICAL)
    for name in ("a", "b"):
        write_results(tmp_path / name, ABOUT, with_measures(rows), curves)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".html", ".json", ".md", ".svg", ".pdf"}
    for path in files:
        content = (tmp_path / "a" / path).read_bytes()
        assert content == (tmp_path / "b" / path).read_bytes(), path
        if path.suffix == ".pdf":
            assert content.startswith(b"%PDF")
            assert content.rstrip().endswith(b"%%EOF")
        if path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
    names = {path.stem for path in files if path.suffix == ".svg"}
    assert names == {path.stem for path in files if path.suffix == ".pdf"}
    assert names >= {"noise", "sharpness", "loss-sharpness", "planes", "landscape", "accuracy-epochs", "alpha"}
    assert (tmp_path / "a" / "report.html").read_text().rstrip().endswith("</html>")
    assert json.loads((tmp_path / "a" / "results.json").read_text()) == with_measures(rows)
    write_results(tmp_path / "none", ABOUT, [], {})
    assert not (tmp_path / "none" / "report.html").exists()


def test_measures_in_numbers_are_those_of_the_rows():
    rows = with_measures(compared(*TYPICAL[:2])[0])
    found = {grid.title: grid for grid in grids(rows)}
    noise = found["Noise in the weights"]
    assert noise.heads == ["method", "sigma 0", "sigma 0.25", "sigma 0.5"]
    # of 69, 69 * 1.05 and 69 * 1.1
    assert noise.lines[0][0] == "sgd"
    assert noise.lines[0][3] == "72.45 ± 3.45"
    assert found["Curvature"].lines[1] == ["sam", "12 ± 2", "809 ± 1,331"]
    assert found["Coarse weights"].heads[-1] == "bits 2"
    assert [len(grid.heads) for grid in grids(rows, most=2)][:1] == [3]
    assert grids(rows, most=1)[0].heads == ["method", "sigma 0.5"]
    assert grids(compared(*TYPICAL)[0]) == []
    lines = Tree(render(ABOUT, rows, [])).rows
    assert ["sgd", *noise.lines[0][1:]] in lines
    assert "| `sgd` | " + " | ".join(noise.lines[0][1:]) + " |" in markdown(ABOUT, rows)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_measures_fit_the_terminal(width):
    file = io.StringIO()
    for table in terminal_grids(with_measures(compared(*TYPICAL)[0]), width):
        Console(file=file, width=width).print(table)
    lines = file.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in file.getvalue()
    assert sum("Noise in the weights" in line for line in lines) == 1


def test_every_colour_of_the_figures_is_a_variable_of_the_page_in_light_and_dark():
    css = (resources.files("lookbehind.experiments") / "templates" / "report.css").read_text()
    light, dark = css.split("prefers-color-scheme: dark")
    for value in drawing.VARIABLES.values():
        for name in re.findall(r"--[\w-]+", value):
            assert f"{name}:" in light, name
            assert f"{name}:" in dark, name
    assert not set(re.findall(r"(?:fill|stroke): (#\w+)", page(*TYPICAL)))


def test_methods_look_different_in_grey_too():
    seen = drawing.looks([method for method, _, _ in MANY])
    assert len({(look.marker, look.dash) for look in seen.values()}) == 25
    seen = drawing.looks(["sgd", "sam", "lookbehind-asam:k=5", "lookahead"])
    assert [look.color in drawing.SHADES[kin] for look, kin in zip(seen.values(), drawing.SHADES, strict=True)] == [
        True
    ] * 4


def test_labels_stand_apart_and_near_their_points():
    assert drawing._apart([0.2, 0.8], [0.1, 0.1]) == pytest.approx([0.2, 0.8])
    assert drawing._apart([0.5, 0.5, 0.5], [0.1, 0.2, 0.1]) == pytest.approx([0.35, 0.5, 0.65])
    assert drawing._apart([0.0, 0.0], [0.1, 0.1]) == pytest.approx([0.05, 0.15])
    wanted = sorted(random.Random(0).random() ** 3 for _ in range(20))
    found = drawing._apart(wanted, [0.045] * 20)
    assert all(b - a >= 0.045 - 1e-9 for a, b in pairwise(found))
    assert -0.03 < found[0] < found[-1] < 1.03


def test_curves_are_means_and_ranges_of_the_seeds_that_are_there():
    one, two = curve(90.0, 0, epochs=4), curve(None, 1, epochs=4)
    (line,) = lines_of({"sgd": [one, two], "sam": []}, lambda c: c.test_accuracy, by_gradients=True)
    assert line.x == [100, 200, 300, 400]
    first = [one.test_accuracy[0], two.test_accuracy[0]]
    assert (line.mean[0], line.low[0], line.high[0]) == pytest.approx((sum(first) / 2, min(first), max(first)))
    assert (line.mean[3], line.low[3], line.high[3]) == pytest.approx((one.test_accuracy[3],) * 3)


@pytest.mark.parametrize("case", CASES)
def test_the_terminal_table_fits_80_columns_and_keeps_its_numbers(case):
    rows, _ = compared(*CASES[case])
    file = io.StringIO()
    Console(file=file, width=80).print(terminal_table(rows))
    text = file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    if case == "typical":
        assert re.search(r"sam +91\.60 ± 1\.21 +\+0\.60 ± 0\.66 +2\.4k +2\.0. +0\.0420 +20\.1", text)
        assert "1 of 3 runs" in text
        assert all(part in text for part in folded(HOSTILE, 19))
    if case == "dead":
        assert text.count("all runs diverged") == 2


def test_importing_the_library_does_not_import_what_draws():
    code = (
        "import sys, lookbehind; assert not {'matplotlib', 'jinja2', 'scipy'} & set(sys.modules);"
        "import lookbehind.experiments.report; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
