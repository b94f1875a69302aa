"""The files of an experiment: a page, its tables as Markdown and LaTeX, the results as JSON, figures as SVG and PDF."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lookbehind.experiments.claims import NOT_RUN, Comparison, Verdict
from lookbehind.experiments.markdown import escaped, table_lines
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.output import figure_files, write_files
from lookbehind.experiments.page import page
from lookbehind.experiments.report import About
from lookbehind.experiments.shown import Heading, Output
from lookbehind.experiments.table import setting, signed


def write_pages(out: Path, heading: Heading, output: Output, about: About) -> None:
    """Write all files; each is whole or not there."""
    verdicts = [line for where, verdict in output.verdicts for line in verdict_lines(where, verdict)]
    files: dict[str, str | bytes] = {
        "results.json": json.dumps(_results(heading, output, about), indent=2, allow_nan=False),
        "results.md": _markdown(heading, output, about, verdicts),
        "results.tex": "\n\n".join(map(latex, output.tables)),
        "report.html": page(
            "paper.html.jinja",
            heading=heading,
            tables=output.tables,
            verdicts=verdicts,
            pictures=output.pictures,
            about=about,
        ),
    }
    write_files(out, files | figure_files(output.pictures))


def verdict_lines(where: str, verdict: Verdict) -> list[dict[str, str]]:
    """A line for the claim with the least of its differences, and one for each comparison where there are several."""
    comparisons = verdict.comparisons
    known = [one for one in comparisons if one.difference is not None]
    least = interval(min(known, key=lambda one: one.difference or 0.0)) if known else ""
    least += f" (least of {len(known)})" if len(known) > 1 else ""
    lines = [{"claim": verdict.claim.text, "where": where, "difference": least, "verdict": verdict.words}]
    if len(comparisons) > 1 and verdict.verdict != NOT_RUN:
        lines += [
            {
                "claim": "",
                "where": f"{one.row} against {one.other}",
                "difference": interval(one),
                "verdict": one.verdict,
            }
            for one in comparisons
        ]
    return lines


def interval(one: Comparison) -> str:
    """A difference with its margin; two digits of the margin are shown, and two decimals at least."""
    small = one.margin or abs(one.difference or 0)  # a rise of the loss may be far below a hundredth
    decimals = max(2, 1 - math.floor(math.log10(small))) if small else 2
    return signed(one.difference, decimals) + ("" if one.margin is None else f" ± {one.margin:.{decimals}f}")


def _markdown(heading: Heading, output: Output, about: About, verdicts: Sequence[dict[str, str]]) -> str:
    lines = [f"# {heading.title}", "", *([heading.said, ""] if heading.claim else [])]
    if verdicts:
        heads = ["claim", "where", "difference, 95 %", "verdict"]
        lines += [*table_lines(heads, [list(line.values()) for line in verdicts]), ""]
    for grid in output.tables:
        lines += [f"## {escaped(grid.title)}", "", grid.note, "", *table_lines(grid.heads, grid.lines), ""]
    lines += [f"![{one.caption}](figures/{one.name}.svg)\n\n{one.title}. {one.caption}\n" for one in output.pictures]
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    settings = ", ".join(f"{name} {setting(value)}" for name, value in about.settings.items())
    made = f"Versions: {versions}. Machine: {about.machine}. Written {about.started}. Settings: {settings}."
    lines += ["", f"    {about.command}", "", made]
    lines += [line for notice in about.notices for line in ("", f"> {escaped(notice)}")]
    return "\n".join(lines) + "\n"


def latex(grid: Grid) -> str:
    """A table for a paper; needs the package booktabs."""
    body = " \\\\\n".join(" & ".join(map(_tex, line)) for line in grid.lines)
    heads = " & ".join(map(_tex, grid.heads))
    columns = "l" + "r" * (len(grid.heads) - 1)
    return (
        f"% {grid.title}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{heads} \\\\\n\\midrule\n{body} \\\\\n"
        "\\bottomrule\n\\end{tabular}"
    )


def _tex(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text.replace("±", "$\\pm$").replace("\N{EN DASH}", "--").replace("\N{MINUS SIGN}", "$-$")


def _results(heading: Heading, output: Output, about: About) -> dict[str, Any]:
    return {
        "experiment": heading.id,
        "title": heading.title,
        "claim": heading.claim,
        "verdicts": [
            {
                "claim": verdict.claim.text,
                "where": where,
                "verdict": verdict.verdict,
                "comparisons": [{**asdict(one), "verdict": one.verdict} for one in verdict.comparisons],
            }
            for where, verdict in output.verdicts
        ],
        "tables": [{"title": t.title, "note": t.note, "heads": t.heads, "lines": t.lines} for t in output.tables],
        "figures": [{"name": d.name, "title": d.title, "caption": d.caption} for d in output.pictures],
        "about": about.__dict__,
    }
