"""All claims of all experiments of a scale on one page, with what our runs say of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lookbehind.experiments.markdown import escaped, table_lines
from lookbehind.experiments.output import write_files
from lookbehind.experiments.paper.catalogue import IDS

NOT_THEIRS, NOT_JUDGED = "not in the paper", "shown, not judged"


def write_index(directory: Path) -> Path:
    """Write ``index.md`` from the results of every experiment below a directory."""
    lines = []
    for name in IDS:
        path = directory / name / "results.json"
        if path.exists():
            found = json.loads(path.read_text())
            lines += [_line(name, one) for one in found["verdicts"]] or [_without_verdict(name, found)]
    write_files(directory, {"index.md": page_of(lines)}, figures=False)
    return directory / "index.md"


def page_of(lines: Sequence[Sequence[str]]) -> str:
    """The page with these lines of its table: link, claim, where, difference, verdict."""
    theirs, ours = Counter[str](), Counter[str]()
    for _, claim, _, _, verdict in lines:
        if verdict != NOT_JUDGED:
            (ours if claim.startswith(NOT_THEIRS) else theirs).update([verdict])
    text = [
        "# What our runs say of the paper's claims",
        "",
        f"{_counted('claims of the paper', theirs)}{_counted('of our own, beside them', ours)}"
        "A claim holds if the 95 % intervals of all its comparisons lie above zero (together, after Dunnett), "
        "is contradicted if one lies below, and is not resolved otherwise; it was not run if rows of it were not "
        "trained. Rows that vary far more over the seeds than others are judged by their own error.",
        "",
        *table_lines(["experiment", "claim", "where", "difference, 95 %", "verdict"], lines),
        "",
    ]
    return "\n".join(text)


def _counted(what: str, counts: Counter[str]) -> str:
    if not counts:
        return ""
    return f"Of {counts.total()} {what}: {', '.join(f'{word} {number}' for word, number in counts.most_common())}. "


def _line(name: str, verdict: dict[str, Any]) -> list[str]:
    differences = [one for one in verdict["comparisons"] if one["difference"] is not None]
    words = ""
    if differences:
        least = min(differences, key=lambda one: one["difference"])
        margin = "" if least["margin"] is None else f" ± {least['margin']:.2g}"
        words = f"{least['difference']:+.3g}{margin}"
        which = "row" if len({one["other"] for one in differences}) == 1 else "other"
        words += f" (the least of {len(differences)}: {least[which]})" if len(differences) > 1 else ""
    link = f"[{name}]({name}/results.md)"
    return [link, escaped(verdict["claim"]), escaped(verdict["where"]), escaped(words), verdict["verdict"]]


def _without_verdict(name: str, found: dict[str, Any]) -> list[str]:
    return [f"[{name}]({name}/results.md)", escaped(found["claim"]), "", "", NOT_JUDGED]
