"""Table 9: micro-batches."""

from __future__ import annotations

from lookbehind.experiments.claims import Claim, judged
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.findings import REPORTED, Findings
from lookbehind.experiments.paper.grid import ADAPTIVE, FAMILIES, Arm, written
from lookbehind.experiments.paper.numbers import TABLE_9
from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.experiments.shown import Output
from lookbehind.experiments.table import accuracy, with_std


def _sizes(task: Task) -> tuple[int, int]:
    """A quarter and a half of the minibatch: 32 and 64 of the paper's 128."""
    whole = task.images.batch_size or 128
    return whole // 4, whole // 2


def _lookbehind(scale: Scale, task: Task) -> list[tuple[float | str, int]]:
    ks = [k for k in scale.values_of_k(task) if k <= 5]
    alphas: list[float | str] = [*sorted(scale.few_alphas), ADAPTIVE]
    return [(alpha, k) for k in ks for alpha in alphas]


def _candidate(family: str, size: int, pair: tuple[float | str, int] | None) -> str:
    if pair is None:
        return written(f"m-{family}", micro_batch=size)
    alpha, k = pair
    return written(f"lookbehind-m-{family}", micro_batch=size, k=k, alpha=alpha)


def _row(pair: tuple[float | str, int] | None) -> str:
    return "baseline" if pair is None else f"alpha {pair[0]}, k {pair[1]}"


def arms(task: Task, scale: Scale) -> list[Arm]:
    """Every cell of the table is an arm of its own: nothing is chosen. With SGD on micro-batches as a control."""
    pairs = [None, *_lookbehind(scale, task)]
    cells = [
        Arm(f"{_row(pair)}, {family}, {size}", (_candidate(family, size, pair),))
        for family in FAMILIES
        for size in _sizes(task)
        for pair in pairs
    ]
    return [*(Arm(f"m-SGD, {size}", (written("m-sgd", micro_batch=size),)) for size in _sizes(task)), *cells]


def show(findings: Findings) -> Output:
    """A column per family and size, the paper's beside it."""
    output = Output()
    for task in findings.tasks:
        columns = [(family, size) for family in FAMILIES for size in _sizes(task)]
        names = [f"m-{family.upper()}, {share}" for family in FAMILIES for share in (32, 64)]
        heads = ["method", *(f"m-{f.upper()}, m = {m}" for f, m in columns), *(f"paper, {name}" for name in names)]
        lines = []
        for pair in [None, *_lookbehind(findings.scale, task)]:
            ours = [findings.cell(task, _candidate(f, m, pair)) for f, m in columns]
            words = [with_std(cell.spread("test_accuracy"), accuracy) for cell in ours]
            lines.append([_row(pair), *words, *(TABLE_9.get(_row(pair), {}).get(name, "") for name in names)])
        sgd = [findings.cell(task, written("m-sgd", micro_batch=m)) for m in _sizes(task)] * 2
        control = [with_std(cell.spread("test_accuracy"), accuracy) for cell in sgd]
        lines.append(["control: SGD on micro-batches", *control, "", "", "", ""])
        output.tables.append(Grid(task.title, "Test accuracy after the last epoch.", heads, lines))
        for family, size in columns:
            # the paper's own exception
            pairs = [p for p in _lookbehind(findings.scale, task) if (*p, size) != (0.2, 2, _sizes(task)[1])]
            values = {
                _row(pair): findings.cell(task, _candidate(family, size, pair)).values(REPORTED["honest"])
                for pair in [None, *pairs]
            }
            claim = Claim(
                f"Lookbehind-m-{family.upper()} with micro-batches of {size} is above m-{family.upper()}",
                tuple(_row(pair) for pair in pairs),
                ("baseline",),
            )
            if all(len(found) == len(findings.seeds) for found in values.values()):
                output.verdicts.append((task.title, judged(claim, values)))
    return output


EXPERIMENT = Experiment(
    id="table9",
    title="Table 9: micro-batches",
    claim="Lookbehind gains over m-SAM and m-ASAM as well, but for alpha 0.2 with k 2 and m 64.",
    tasks=("c10-rn34",),
    arms=arms,
    show=show,
)
