"""What was measured as tables: an overview with a column per network, and every row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from lookbehind.bench.problems import NETWORKS
from lookbehind.bench.timing import Measured

HEADS = ("what", "where", "measured", "quartiles", "whole times", "must reach", "")
SHOWN_TOO = ("gradients at hand", "share of what is ours", "by what is ours", 'nonfinite="propagate"')
"""Rows of the overview without a limit of their own."""


def overview(
    found: Sequence[Measured], marked: Callable[[str], str], networks: Sequence[str] = NETWORKS
) -> tuple[list[str], list[list[str]]]:
    """Heads and lines: what must be reached, a line for what was measured and a column for every network.

    Args:
        found: what was measured; what belongs to no network stands in the first column.
        marked: makes a number stand out, for what is not reached.
        networks: the columns, of which those that nothing was measured on are left out.
    """
    by_what: dict[str, dict[str, Measured]] = {}
    for one in found:
        by_what.setdefault(_without_peer(one.what), {})[one.where] = one
    columns = [name for name in networks if any(name in some for some in by_what.values())]
    lines, nothing_wanted = [], all(one.reached is None for one in found)
    for what, some in by_what.items():
        judged = nothing_wanted or any(one.reached is not None for one in some.values())
        if not judged and not any(words in what for words in SHOWN_TOO):
            continue
        elsewhere = [one for where, one in some.items() if where not in columns]
        if elsewhere or len(some) < 2:  # of methods, or of one network alone
            lines += [[f"{what}, {one.where}".rstrip(", "), _short(one, marked)] for one in some.values()]
        else:
            lines.append([what, *(_short(some[name], marked) if name in some else "" for name in columns)])
    return ["", *columns], [line + [""] * (len(columns) + 1 - len(line)) for line in lines]


def _without_peer(what: str) -> str:
    """Which peer is the fastest differs from network to network."""
    return re.sub(r"(the fastest peer) \([^)]*\)", r"\1", what)


def _short(one: Measured, marked: Callable[[str], str]) -> str:
    value = marked(_value(one)) if one.reached is False else _value(one)
    limit = _limit(one).replace("<= ", "≤\u00a0").replace(">= ", "≥\u00a0")  # short, and on one line
    return f"{value} ({limit})" if limit else value


def _number(value: float, digits: int) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}g}"


def _value(one: Measured) -> str:
    return f"{_number(one.value, 3)} {one.unit}".strip()


def _limit(one: Measured) -> str:
    if one.at_most is not None:
        return f"<= {_number(one.at_most, 4)}"
    return "" if one.at_least is None else f">= {_number(one.at_least, 4)}"


def cells(one: Measured) -> list[str]:
    """A line of the table of all rows."""
    whole = "" if one.whole is None else f"{one.whole:.3g}"
    spread = "" if one.low is None or one.high is None else f"{one.low:.3g} to {one.high:.3g}"
    verdict = {True: "reached", False: "**not reached**", None: ""}[one.reached]
    return [one.what, one.where, _value(one), spread, whole, _limit(one), verdict]


def lines(found: Iterable[Measured]) -> list[str]:
    """Both as tables of Markdown, the second folded."""
    # matplotlib comes with it, which takes long to import and is not needed to parse a command
    from lookbehind.experiments.markdown import table_lines

    every = list(found)
    heads, short = overview(every, "**{}**".format)
    rows = table_lines(HEADS, [*map(cells, every)])
    return [
        *table_lines(heads, short),
        "",
        '<details markdown="1"><summary>All rows</summary>',
        "",
        *rows,
        "",
        "</details>",
    ]
