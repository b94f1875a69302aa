"""The files of an experiment: a page, its tables as Markdown and LaTeX, the results as JSON, figures as SVG and PDF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lookbehind.data.files import written_whole
from lookbehind.experiments.drawing import file_of
from lookbehind.experiments.markdown import escaped, table_lines
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.claims import Verdict
from lookbehind.experiments.paper.experiment import Experiment, Output
from lookbehind.experiments.pictures import inlined
from lookbehind.experiments.report import About, breakable
from lookbehind.experiments.table import clock, setting, signed


def write_pages(out: Path, experiment: Experiment, output: Output, about: About) -> None:
    """Write all files; each is whole or not there."""
    files: dict[str, bytes] = {
        "results.json": json.dumps(_results(experiment, output, about), indent=2, allow_nan=False).encode(),
        "results.md": _markdown(experiment, output, about).encode(),
        "results.tex": "\n\n".join(map(latex, output.tables)).encode(),
    }
    drawn = {(one.name, kind): file_of(one.figure, kind) for one in output.drawings for kind in ("svg", "pdf")}
    files |= {f"figures/{name}.{kind}": content for (name, kind), content in drawn.items()}
    pictures = [
        {
            "title": d.title,
            "caption": d.caption,
            "svg": inlined(drawn[d.name, "svg"].decode(), d.name.replace(".", "-")),
        }
        for d in output.drawings
    ]
    files["report.html"] = _page(experiment, output, about, pictures).encode(errors="backslashreplace")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with written_whole(out / name) as file:
            file.write(content)


def _page(experiment: Experiment, output: Output, about: About, pictures: Sequence[dict[str, Any]]) -> str:
    folder = resources.files("lookbehind.experiments") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"breakable": breakable, "setting": setting}
    template = environment.from_string((folder / "paper.html.jinja").read_text("utf-8"))
    return template.render(
        experiment=experiment,
        tables=output.tables,
        verdicts=[line for where, verdict in output.verdicts for line in _lines(where, verdict)],
        pictures=pictures,
        about=about,
        css=Markup((folder / "report.css").read_text("utf-8")),
        script=Markup((folder / "report.js").read_text("utf-8")),
        took=clock(about.seconds),
    )


def _lines(where: str, verdict: Verdict) -> list[dict[str, str]]:
    """A line for the claim, and one for each of its comparisons."""
    whole = {"claim": verdict.claim.text, "where": where, "difference": "", "verdict": verdict.words}
    return [whole] + [
        {
            "claim": "",
            "where": f"{one.row} \N{MINUS SIGN} {one.other}",
            "difference": _interval(one),
            "verdict": one.verdict,
        }
        for one in verdict.comparisons
        if len(verdict.comparisons) > 1
    ]


def _interval(one: Any) -> str:
    if one.difference is None:
        return "\N{EN DASH}"
    return signed(one.difference) + ("" if one.margin is None else f" ± {one.margin:.2f}")


def _markdown(experiment: Experiment, output: Output, about: About) -> str:
    lines = [f"# {experiment.title}", "", f"The paper: {experiment.claim}", ""]
    if output.verdicts:
        cells = [line for where, verdict in output.verdicts for line in _lines(where, verdict)]
        heads = ["claim", "where", "difference, 95 %", "verdict"]
        lines += [*table_lines(heads, [list(cell.values()) for cell in cells]), ""]
    for grid in output.tables:
        lines += [f"## {escaped(grid.title)}", "", grid.note, "", *table_lines(grid.heads, grid.lines), ""]
    lines += [f"![{one.caption}](figures/{one.name}.svg)\n\n{one.title}. {one.caption}\n" for one in output.drawings]
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    made = f"Versions: {versions}. Machine: {about.machine}. {about.settings['scale']}: {about.settings['runs']}."
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


def _results(experiment: Experiment, output: Output, about: About) -> dict[str, Any]:
    return {
        "experiment": experiment.id,
        "title": experiment.title,
        "claim": experiment.claim,
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
        "figures": [{"name": d.name, "title": d.title, "caption": d.caption} for d in output.drawings],
        "about": about.__dict__,
    }
