"""Put the pages of `lookbehind reproduce` into the documentation: python docs/collect.py out/paper/laptop laptop

Tables and figures go to docs/results/laptop/, a page for each; what is written by hand beside them stays as it is.
"""

import shutil
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def collect(source: Path, name: str) -> list[Path]:
    """Copy ``source/ID/results.md`` and its figures; gives the pages."""
    out = RESULTS / name
    (out / "figures").mkdir(parents=True, exist_ok=True)
    pages = []
    for page in sorted(source.glob("*/results.md")):
        for figure in page.parent.glob("figures/*.svg"):
            shutil.copyfile(figure, out / "figures" / figure.name)
        pages.append(out / f"{page.parent.name}.md")
        shutil.copyfile(page, pages[-1])
    claims = (source / "index.md").read_text()
    pages.append(out / "claims.md")
    pages[-1].write_text(claims.replace("/results.md)", ".md)").replace("/report.html)", ".md)"))
    return pages


if __name__ == "__main__":
    for written in collect(Path(sys.argv[1]), sys.argv[2]):
        print(written)
