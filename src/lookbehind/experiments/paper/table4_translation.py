"""Table 4, left: machine translation, with a new minibatch per ascent step.

The paper copies its rows of Adam, SAM and ASAM from the ASAM paper and compares after equally many epochs, at which
Adam has computed half as many gradients as the others. Here a row of Adam for twice the epochs stands beside it; where
the scale gives all rows the same number of gradients, that row is Adam itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.differences import Line, line_through
from lookbehind.experiments.drawing import GRADIENTS, looks
from lookbehind.experiments.figures import curves_figure
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import Cell, Findings, chosen
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, written
from lookbehind.experiments.paper.numbers import TABLE_4_TRANSLATION
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.paper.tables import row_of
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import accuracy, count, with_std

LONGER = "Adam, twice the epochs"
ALPHAS: dict[str, float | str] = {"": 0.8, ", adaptive alpha": ADAPTIVE}


def arms(task: Task, scale: Scale) -> list[Arm]:
    """Adam, SAM and ASAM, and Lookbehind with k = 2 and a new minibatch per ascent step."""
    settings = task.translation
    usual = float(settings.run("adamw", 0).filled.lr or 0.0)
    # the usual one is not written, so that a run is the same with and without a search
    rates: list[dict[str, float]] = [
        {} if lr == 1 else {"lr": float(f"{usual * lr:.6g}")} for lr in scale.translation.lrs
    ]
    found = [Arm("Adam", tuple(written("adamw", **lr) for lr in rates))]
    if settings.gradients is None:
        epochs = settings.run("adamw", 0).whole_epochs
        found.append(Arm(LONGER, tuple(written("adamw", epochs=2 * epochs, **lr) for lr in rates)))
    for family in FAMILIES:
        default = settings.asam_rho if family == "asam" else settings.rho
        radii = [float(f"{default * factor:.6g}") for factor in scale.translation.rhos]
        searched: list[dict[str, float]] = [{"rho": rho, **lr} for lr in rates for rho in radii]
        found.append(Arm(family.upper(), tuple(written(family, **one) for one in searched)))
        found += [
            Arm(
                f"Lookbehind-{family.upper()}{words}",
                tuple(written(f"lookbehind-{family}-switching", k=2, alpha=alpha, **one) for one in searched),
            )
            for words, alpha in ALPHAS.items()
        ]
    return found


def _claims() -> list[Claim]:
    found = []
    for family in FAMILIES:
        upper = family.upper()
        both = tuple(f"Lookbehind-{upper}{words}" for words in ALPHAS)
        found.append(Claim(f"Lookbehind-{upper} with one of its alphas is above {upper}", both, (upper,)))
        # its row of ASAM with an adaptive alpha is 0.02 below that of ASAM
        found += [Claim(f"{row} is above Adam", (row,), ("Adam",)) for row in both]
    return found


def show(findings: Findings) -> Output:
    """BLEU beside the paper's, the verdicts, and how the validation BLEU came."""
    output = Output()
    for task in findings.tasks:
        rows = arms(task, findings.scale)
        cells = chosen(findings, task, rows, "honest")
        output.tables.append(_table(task, rows, cells, findings))
        values = {name: cell.values("test_accuracy") for name, cell in cells.items()}
        output.verdicts += [(task.title, judged(claim, values, [arm.name for arm in rows])) for claim in _claims()]
        lines = [line for name, cell in cells.items() if (line := _course(name, cell)) is not None]
        if lines:
            caption = "Tokenised, in lower case, of the network as it then was; mean over the seeds, and their range."
            figure = curves_figure(lines, looks([arm.name for arm in rows]), GRADIENTS, "BLEU")
            output.pictures.append(Picture(f"table4-{task.key}", "Validation BLEU", caption, figure))
    return output


def _table(task: Task, rows: Sequence[Arm], cells: Mapping[str, Cell], findings: Findings) -> Grid:
    heads = ["method", "BLEU", "detokenised", "validation BLEU", f"paper, {task.stands_for}", "settings", "minibatches",
             "gradients"]  # fmt: skip
    lines = []
    for arm in rows:
        said = TABLE_4_TRANSLATION.get(arm.name, {}).get(task.stands_for, "")
        cell, words = row_of(findings, task, arm, "honest")
        if cell is None:
            lines.append([arm.name, words, "", "", said, "", "", ""])
            continue
        keys = ("test_accuracy", "test_bleu_detokenised", "validation_accuracy")
        ours = [with_std(cell.spread(key), accuracy) for key in keys]
        ours[0] += words
        steps = max(outcome.end["steps"] for outcome in cell.outcomes)
        lines.append([arm.name, *ours, said, cell.settings, count(steps), count(cell.gradients)])
    signatures = {outcome.end["test_bleu_signature"] for cell in cells.values() for outcome in cell.outcomes}
    detokenised = f"; detokenised: {', '.join(sorted(signatures))}" if signatures else ""
    note = (
        "Of the test text, by the network of the epoch with the best validation BLEU. BLEU: Moses's tokens in lower "
        f"case, as the paper has it{detokenised}."
    )
    return Grid(task.title, note, heads, lines)


def _course(name: str, cell: Cell) -> Line | None:
    """Validation BLEU over gradients, where all seeds know it."""
    by_seed = [
        {
            e["gradient_evaluations"]: e["validation_accuracy"]
            for e in one.epochs
            if e["validation_accuracy"] is not None
        }
        for one in cell.outcomes
    ]
    shared = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    if not shared:
        return None
    return line_through(name, [float(x) for x in shared], [[seed[x] for seed in by_seed] for x in shared])


EXPERIMENT = Experiment(
    id="table4-translation",
    title="Table 4: machine translation",
    claim="With a new minibatch per ascent step, at the cost of SAM, Lookbehind improves Adam, and SAM and ASAM with "
    "at least one of its alphas.",
    tasks=("translation",),
    arms=arms,
    show=show,
    best_of_rows=True,
    one_protocol=True,
)
