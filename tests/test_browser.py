"""The report in a real browser: whole by itself, sortable, readable on a telephone, and nothing in it runs by surprise.

Needs Chromium, from the system's packages; skipped with its reason where there is none.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
from pages import ABOUT, HOSTILE, MANY, TYPICAL, measured_page

from lookbehind.experiments.claims import judged
from lookbehind.experiments.figures import heatmap_figure
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.pages import write_pages
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.table1 import CLAIMS
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install your system's chromium package")
PAGES = {"typical": TYPICAL, "many": MANY}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root has no sandbox; the pages are our own
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, methods in PAGES.items():
        (folder / f"{name}.html").write_text(measured_page(*methods), encoding="utf-8")
    return {name: f"file://{folder}/{name}.html" for name in PAGES}


def opened(browser, url, width=1200, **more):
    """A page that has loaded, and all that it asked for or complained of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **more)
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(url, wait_until="load")
    return page, asked, said


@pytest.mark.parametrize("name", PAGES)
def test_it_loads_nothing_else_and_complains_of_nothing(browser, files, name):
    page, asked, said = opened(browser, files[name])
    assert asked == [files[name]]
    assert said == []
    assert page.locator("figure svg").count() >= 10
    assert page.locator("figure svg:visible").count() == page.locator("figure svg").count()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 768, 1200])
def test_nothing_overflows(browser, files, name, width):
    page, _, _ = opened(browser, files[name], width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # what is wider than the page must scroll inside a box of its own
    wide = page.evaluate(
        """width => [...document.querySelectorAll("body *")]
        .filter(e => !e.closest(".box, svg") && e.getBoundingClientRect().right > width + 0.5).map(e => e.outerHTML)""",
        width,
    )
    assert wide == []
    boxes = page.evaluate("[...document.querySelectorAll('.box')].map(b => b.getBoundingClientRect().right)")
    assert max(boxes) <= width


@pytest.mark.parametrize("width", [390, 1200])
def test_labels_of_figures_stay_in_view(browser, files, width):
    page, _, _ = opened(browser, files["typical"], width)
    outside = page.evaluate(
        """width => [...document.querySelectorAll("svg text")].filter(t => {
             const box = t.getBoundingClientRect(); return box.right > width || box.left < 0;
           }).map(t => t.textContent)""",
        width,
    )
    assert outside == []


def test_a_page_of_the_paper_fits_a_telephone_and_sorts(browser, tmp_path):
    found = {
        "Lookbehind-SAM": [5.0, 6.1, 7.0],
        "SAM": [1.0, 2.0, 3.1],
        "Multistep-SAM": [1.1, 2.0, 3.0],
        "SGD": [0.1, 0.2, 0.4],
    }
    lines = [[name, f"{values[0]:.2f} ± 0.10", "", "96.27 ± 0.07", HOSTILE, "1,234"] for name, values in found.items()]
    heads = ["method", "accuracy %", "BatchNorm re-estimated %", "paper, C10 RN-34", "settings", "gradients"]
    output = Output(
        tables=[Grid("a task with a long title, and its protocol", "A note.", heads, lines)],
        pictures=[
            Picture("heat", "Heat", "A caption.", heatmap_figure([[1.0, None]], ["k 2", "k 5"], ["alpha 0.5"], "x"))
        ],
        verdicts=[("somewhere", judged(claim, found)) for claim in CLAIMS],
    )
    about = replace(ABOUT, settings={"scale": "laptop", "runs": "3 of 4 runs finished"})
    write_pages(tmp_path, experiment("table1"), output, about)
    for width in (390, 1200):
        page, asked, said = opened(browser, f"file://{tmp_path}/report.html", width)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (len(asked), said) == (1, [])
    table = page.locator("table:not(.plain)").first
    table.locator("thead button").nth(1).click()
    assert table.locator("tbody th").all_inner_texts()[:2] == ["Lookbehind-SAM", "Multistep-SAM"]
    assert page.locator("text=holds").count() >= 1


def column(page, table, number):
    return [
        cell.split("\n")[0].strip()
        for cell in page.locator("table").nth(table).locator(f"tbody tr > :nth-child({number})").all_inner_texts()
    ]


def test_tables_sort_by_the_column_that_is_clicked(browser, files):
    page, _, _ = opened(browser, files["typical"])
    head = page.locator("table").first.locator("thead th")
    before = column(page, 0, 2)
    assert before == ["91.00 ± 1.00", "91.60 ± 1.21", "92.00 ± 0.95", "92.00 ± 1.41", "91.97 ± 0.97", "83.00 ± 2.65"]
    head.nth(1).locator("button").click()
    assert head.nth(1).get_attribute("aria-sort") == "descending"
    assert column(page, 0, 2) == [before[i] for i in (2, 3, 4, 1, 0, 5)]
    head.nth(1).locator("button").click()
    assert head.nth(1).get_attribute("aria-sort") == "ascending"
    assert column(page, 0, 2) == [before[i] for i in (5, 0, 1, 4, 2, 3)]
    head.nth(1).locator("button").click()
    assert head.nth(1).get_attribute("aria-sort") is None
    assert column(page, 0, 2) == before
    # differences have a true minus sign and the baseline has none: it goes last
    head.nth(2).locator("button").click()
    assert column(page, 0, 3)[-2:] == ["\N{MINUS SIGN}8.00", "baseline"]
    # gradients have commas
    head.nth(6).locator("button").click()
    assert column(page, 0, 7) == ["13,200", "7,200", "3,600", "2,400", "2,400", "1,200"]
    head.nth(0).locator("button").press("Enter")
    names = column(page, 0, 1)
    assert names.index("lookbehind-sam") < names.index("sam") < names.index("sam-matched") < names.index("sgd")


def test_every_table_of_more_than_one_row_sorts(browser, files):
    page, _, _ = opened(browser, files["typical"])
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tables = page.locator("table")
    assert tables.count() >= 10
    for i in range(tables.count()):
        if len(column(page, i, 1)) > 1:
            tables.nth(i).locator("thead th").last.locator("button").click()
            assert tables.nth(i).locator("th[aria-sort]").count() == 1


def test_a_method_name_with_html_in_it_is_shown_as_text(browser, files):
    page, asked, said = opened(browser, files["typical"])
    assert said == []  # no alert
    assert len(asked) == 1
    shown = page.locator("tbody th").filter(has_text="<script>").first
    assert HOSTILE in shown.inner_text()
    assert page.locator("script").count() == 1
    assert page.locator("tbody th script").count() == 0


def test_without_scripts_it_is_a_plain_page(browser, files):
    page, _, said = opened(browser, files["typical"], java_script_enabled=False)
    assert said == []
    assert page.locator("thead button").count() == 0
    assert page.locator("table").first.locator("tbody tr").count() == len(TYPICAL)


def test_dark_pages_are_dark(browser, files):
    page, _, _ = opened(browser, files["typical"], color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"
    if os.environ.get("SCREENSHOTS"):  # to look at
        page.screenshot(path=os.path.join(os.environ["SCREENSHOTS"], "dark.png"), full_page=True)
