"""Numbers as people read them, for the terminal and the report; the table of the terminal; the answer in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from lookbehind.experiments.differences import LEVEL, Difference, best_of, control_pairs, cost_ratio, difference, kind
from lookbehind.experiments.results import Row, Spread

NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
NO_DIFFERENCE = "no difference that these seeds can show"
CAPTION = (
    "Accuracy: test set, last epoch, mean ± standard deviation over seeds. Difference: to the first row, "
    "paired by seed, ± half of the 95 % t interval (none where the seeds give none); * where the interval does not "
    "contain zero. Seconds: in training steps."
)


def finite(values: Sequence[float | None]) -> list[float]:
    """Those of the values that are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]


def signed(value: float | None, decimals: int = 2) -> str:
    """A difference in points, with its sign: +0.35, and a true minus."""
    if value is None:
        return NOTHING
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def accuracy(value: float | None) -> str:
    """Percent with two decimals, without the sign of percent."""
    return NOTHING if value is None else f"{value:.2f}"


def loss(value: float | None, like: float | None = None) -> str:
    """Three decimals, four below 0.1, two digits where these would say little; as many as ``like`` has."""
    if value is None:
        return NOTHING
    size = abs(value if like is None else like)
    return f"{value:.3f}" if size >= 0.1 or size == 0 else f"{value:.4f}" if size >= 0.001 else f"{value:.1e}"


def duration(value: float | None) -> str:
    """Seconds with the digits that matter."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def clock(seconds: float) -> str:
    """A time as on a watch: 4.2 s, 3 min 20 s, 2 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def count(value: int) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,}"


def short_count(value: int) -> str:
    """A number in at most five characters: 960, 1.2k, 23.5k, 120k, 1.2M."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit * 0.9995 and value >= 1000:
            scaled = value / unit
            return f"{scaled:.1f}".removesuffix(".0") + suffix if scaled < 99.95 else f"{scaled:.0f}{suffix}"
    return str(value)


def ratio(value: float | None) -> str:
    """How many times as much: twice is 2.0 and the sign."""
    if value is None:
        return NOTHING
    return f"{value:.1f}{TIMES}" if value >= 0.95 else f"{value:.2g}{TIMES}"


def with_std(values: Spread, form: Callable[[float | None], str]) -> str:
    """Mean ± standard deviation, or the mean alone where one seed knows of no deviation."""
    if values["mean"] is None or values["std"] is None:
        return form(values["mean"])
    return f"{form(values['mean'])} ± {form(values['std'])}"


def loss_with_std(values: Spread) -> str:
    """Mean ± standard deviation of losses, to the same decimals."""
    return with_std(values, lambda value: loss(value, values["mean"]))


def interval(found: Difference | None) -> str:
    """The ends of the interval, as in +0.12 to +0.82."""
    if found is None or found.margin is None:
        return "no interval"
    return f"{signed(found.low)} to {signed(found.high)}"


def setting(value: object) -> str:
    """The value of a setting, without the rounding errors of a float."""
    if isinstance(value, (list, tuple)):
        return " ".join(setting(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else "not set" if value is None else str(value)


def counted(number: int, noun: str) -> str:
    """1 seed, 3 seeds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def joined(names: Sequence[str], most: int = 5) -> str:
    """a, b and c; beyond ``most`` of them: a, b and 7 more."""
    kept = list(names) if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} and {kept[-1]}"


def folded(label: str, width: int) -> list[str]:
    """The label in lines of at most ``width`` characters, broken after a colon, comma, plus or space."""
    lines = [""]
    for part in re.findall(r"[^:,+]*[:,+]?", "".join(c if c.isprintable() else "�" for c in label)):
        rest = part
        if len(lines[-1]) + len(rest) > width and lines[-1]:
            lines.append("")
        while len(rest) > width:
            end = rest.rfind(" ", 1, width) + 1 or width
            lines[-1], rest = rest[:end], rest[end:]
            lines.append("")
        lines[-1] += rest
    return lines


def diverged(row: Row) -> str:
    """How many of the runs diverged, in words; nothing where none did."""
    runs = len(row["seeds"])
    if not row["diverged"]:
        return ""
    return "all runs diverged" if row["diverged"] >= runs else f"{row['diverged']} of {runs} runs diverged"


def terminal_table(rows: Sequence[Row], width: int = 80) -> Table:
    """A table for a terminal; ``rows[0]`` is the baseline. A narrow one goes without seconds, then without the loss."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold", min_width=14)
    headings = ["accuracy %", "difference", "gradients", "train\nloss", "seconds"]
    headings = headings[: 5 if width >= 78 else 4 if width >= 70 else 3]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        # Text, not str: brackets in a label are no markup
        name = Text("\n".join(folded(row["method"], 22 if width >= 84 else 19 if width >= 70 else 16)))
        if row["diverged"]:
            name.append(f"\n{diverged(row)}", style="bold red")
        cost = "" if row is rows[0] else f" {ratio(cost_ratio(row, rows[0])):>5}"
        cells: list[str | Text] = [
            with_std(row["accuracy"], accuracy),
            _difference(row, rows),
            short_count(row["gradient_evaluations"]) + (cost or " " * 6),
            loss(row["train_loss"]["mean"]),
            duration(row["seconds"]["mean"]),
        ]
        table.add_row(name, *cells[: len(headings)])
    return table


def _difference(row: Row, rows: Sequence[Row]) -> Text:
    if row is rows[0]:
        return Text("baseline ", style="dim")
    found = difference(row, rows[0])
    if found is None:
        return Text(f"{NOTHING} ")
    margin = "" if found.margin is None else f" ± {found.margin:.2f}"
    return Text(f"{signed(found.mean)}{margin}{'*' if found.shown else ' '}", style="bold" if found.shown else "")


def answer(rows: Sequence[Row]) -> list[str]:
    """Plain sentences: the best mean, what exceeds the seeds, what it costs, and what diverged."""
    best = best_of(rows)
    if best is None:
        return ["No run ended with a finite loss: there is nothing to compare."]
    said = [_best(best, rows)]
    if len(rows) > 1:
        said += [_against_baseline(rows), *_against_controls(rows)]
    broken = [f"{row['method']} ({row['diverged']} of {len(row['seeds'])})" for row in rows if row["diverged"]]
    if broken:
        said.append(f"Runs that diverged are left out of the means: {joined(broken)}.")
    return said


def _best(best: Row, rows: Sequence[Row]) -> str:
    """The best mean and who cannot be told from it: a rank within the noise is no rank."""
    seeds = counted(len(finite(best["accuracy"]["values"])), "seed")
    value = f"{best['method']}: {with_std(best['accuracy'], accuracy)} % ({seeds})"
    if len(rows) == 1:
        return f"Test accuracy after the last epoch, {value}. There is no other method to compare it with."
    others = [row for row in rows if row is not best and row["accuracy"]["mean"] is not None]
    tied = [row["method"] for row in others if (found := difference(best, row)) is None or not found.shown]
    sentence = f"The highest mean test accuracy after the last epoch is that of {value}"
    if not tied:
        return f"{sentence}."
    who = "any other method" if len(tied) == len(others) else joined(tied, most=3)
    seeds = "one seed" if len(finite(best["accuracy"]["values"])) == 1 else "these seeds"
    return f"{sentence}, but {seeds} cannot tell it from {who}."


def _against_baseline(rows: Sequence[Row]) -> str:
    baseline, others = rows[0], rows[1:]
    against = f"Against {baseline['method']}"
    if baseline["accuracy"]["mean"] is None:
        return f"The baseline {baseline['method']} diverged in every run, so there are no differences to take."
    found = [(row, d) for row in others if (d := difference(row, baseline)) is not None]
    costs = _costs(others, baseline)
    if max((d.seeds for _, d in found), default=0) < 2:
        return f"{against}: {NO_DIFFERENCE}, for one seed cannot show any; run three or more. {costs}"
    # Lookbehind is what the reader asks about, so it is named first
    shown = sorted([pair for pair in found if pair[1].shown], key=lambda pair: "lookbehind" not in kind(pair[0]))
    if not shown:
        return f"{against}: {NO_DIFFERENCE}. {costs}"
    rest = len(others) - len(shown)
    tail = f" For {'the' if rest == 1 else 'each'} other method: {NO_DIFFERENCE}." if rest else ""
    listed = joined([_shown(row, baseline, d) for row, d in shown], most=4)
    return f"{against}, clearly larger than what changes from seed to seed: {listed}.{tail}{_chance(len(found))}"


def _against_controls(rows: Sequence[Row]) -> list[str]:
    """Whether Lookbehind does more than a SAM that moves as far, where a gain over the baseline asks for it."""
    gains = [
        row["method"]
        for row in rows[1:]
        if kind(row).startswith("lookbehind") and (d := difference(row, rows[0])) and d.shown and d.mean > 0
    ]
    pairs = [(row, control, difference(row, control)) for row, control in control_pairs(rows) if row["method"] in gains]
    if gains and not pairs:
        return ["No control that moves as far per minibatch was run, so the gain may come from the longer step alone."]
    if not pairs:
        return []
    ahead = [f"{row['method']} over {control['method']}" for row, control, d in pairs if d and d.shown and d.mean > 0]
    of = f"the {counted(len(pairs), 'pair')} of Lookbehind and a control that moves as far per minibatch"
    if not ahead:
        return [f"In {of}: {NO_DIFFERENCE} in favour of Lookbehind."]
    return [f"Of {of}, {len(ahead)} {'shows' if len(ahead) == 1 else 'show'} a gain: {joined(ahead, most=3)}."]


def _shown(row: Row, baseline: Row, found: Difference) -> str:
    price = ratio(cost_ratio(row, baseline))
    return f"{row['method']} {signed(found.mean)} points ({interval(found)}) at {price} the gradients"


def _costs(others: Sequence[Row], baseline: Row) -> str:
    costs = sorted(cost for row in others if (cost := cost_ratio(row, baseline)) is not None)
    if not costs:
        return ""
    ends = list(dict.fromkeys(ratio(cost) for cost in (costs[0], costs[-1])))
    return f"{'It costs' if len(others) == 1 else 'The other methods cost'} {' to '.join(ends)} the gradients."


def _chance(intervals: int) -> str:
    """Of many intervals some leave out zero by chance alone."""
    if intervals < 5:
        return ""
    expected = f"{intervals * (1 - LEVEL):.1f}"
    return f" (Of {intervals} such intervals, {expected} would not contain zero by chance if no method differed.)"
