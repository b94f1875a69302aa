"""Put the pages of `lookbehind reproduce` into the documentation: python docs/collect.py out/paper/laptop laptop

Tables and figures go to docs/results/laptop/, a page for each; what is written by hand beside them stays as it is, and
so do claims of experiments that are not among them.
"""

import argparse
import re
import shutil
from pathlib import Path

from lookbehind.experiments.paper.catalogue import IDS
from lookbehind.experiments.paper.index import page_of

RESULTS = Path(__file__).parent / "results"


def collect(source: Path, name: str) -> list[Path]:
    """Copy ``source/ID/results.md`` and its figures; gives the pages."""
    index = source / "index.md"
    if not index.is_file():
        raise SystemExit(
            f"{source}: no index.md in it; give OUT/SCALE of `lookbehind reproduce`, such as out/paper/laptop"
        )
    out = RESULTS / name
    (out / "figures").mkdir(parents=True, exist_ok=True)
    pages = []
    for page in sorted(source.glob("*/results.md")):
        for figure in page.parent.glob("figures/*.svg"):
            shutil.copyfile(figure, out / "figures" / figure.name)
        pages.append(out / f"{page.parent.name}.md")
        shutil.copyfile(page, pages[-1])
    pages.append(out / "claims.md")
    new = index.read_text().replace("/results.md)", ".md)").replace("/report.html)", ".md)")
    old = pages[-1].read_text() if pages[-1].exists() else ""
    pages[-1].write_text(page_of(_merged(_lines(old), _lines(new))))
    return pages


def _lines(page: str) -> list[list[str]]:
    """The lines of its table, cell by cell."""
    cells = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in page.splitlines() if line.startswith("| [")]
    return [[cell.replace("\\|", "|") for cell in line] for line in cells]


def _merged(old: list[list[str]], new: list[list[str]]) -> list[list[str]]:
    """The new lines in place of those of the same experiments, and the others that were there; in the usual order."""
    replaced = {line[0] for line in new}
    every = [line for line in old if line[0] not in replaced] + new
    order = [f"[{name}]({name}.md)" for name in IDS]
    return sorted(every, key=lambda line: order.index(line[0]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="OUT/SCALE of `lookbehind reproduce`")
    parser.add_argument("name", help="of the directory in docs/results")
    given = parser.parse_args()
    for written in collect(given.source, given.name):
        print(written)
