"""The command line: compare, train, evaluate, list; made from the dataclasses that the Python API takes."""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal

try:
    import tyro
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, TimeElapsedColumn
    from rich.table import Table

    from lookbehind.data.vision import SETS
    from lookbehind.experiments.compare import Comparison, compare, runs_of, unfinished
    from lookbehind.experiments.display import Display
    from lookbehind.experiments.measure_tables import terminal_grids
    from lookbehind.experiments.paper.catalogue import IDS, experiment
    from lookbehind.experiments.paper.reproduce import Reproduction, cost_in_trainings, reproduce
    from lookbehind.experiments.paper.reproduce import unfinished as to_reproduce
    from lookbehind.experiments.pool import Ended, Told, run_all
    from lookbehind.experiments.results import described
    from lookbehind.experiments.saved import Saved, by_method, is_finished, measure_saved, rows_of, write_saved
    from lookbehind.experiments.table import CAPTION, accuracy, answer, loss, terminal_table
    from lookbehind.models import MODELS
    from lookbehind.training.measuring import Measures
    from lookbehind.training.methods import METHODS
    from lookbehind.training.parallel import joined, started_by_torchrun
    from lookbehind.training.run import Run
    from lookbehind.training.train import Storage, finished_records
except ImportError as error:  # the core installs with torch alone
    sys.exit(f"the command line needs {error.name}: pip install 'lookbehind[experiments]'")

INTERRUPTED = 130


@dataclass(frozen=True)
class Compare:
    """Compare methods: same data, same seeds, accuracy with its spread and its cost in gradients.

    For example:

    lookbehind compare --data digits

    lookbehind compare --data cifar10 --model resnet8-narrow --pool 2 --train-images 10000 --epochs 20
    --methods sgd sam sam-matched lookbehind-sam lookbehind-sam:k=2,alpha=adaptive

    lookbehind compare --data digits --budget gradients --epochs 240
    """

    comparison: Comparison = field(default_factory=Comparison)

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal."""
        comparison = self.comparison
        if started_by_torchrun():
            raise ValueError("compare starts processes of its own: call it without torchrun, which is for train")
        named = [(label, run) for label, runs in runs_of(comparison).items() for run in runs]
        todo = unfinished(comparison)
        if len(todo) < len(named):
            console.print(f"{len(named) - len(todo)} of {len(named)} runs are finished already")
        failed: list[Ended] = []

        def tell(told: Told) -> None:
            display(told)
            if isinstance(told, Ended) and told.error:
                failed.append(told)

        out = Path(comparison.storage.out)
        try:
            with Display(console, todo) as display:
                rows = compare(comparison, tell, command)
        except KeyboardInterrupt:
            some = any(finished_records(run, comparison.storage) for _, run in named)
            so_far = f"what is finished so far: {out / 'report.html'}" if some else "no run has finished yet"
            say(console, f"\nstopped; the same command goes on from here; {so_far}")
            return INTERRUPTED
        console.print(terminal_table(rows, console.width))
        say(console, f"{CAPTION}\n\n{' '.join(answer(rows))}\n", wrapped=True)
        for table in terminal_grids(rows, console.width):
            console.print(table)
        say(console, f"report   {out / 'report.html'}\nresults  {out / 'results.json'}, {out / 'results.md'}")
        if failed:
            say(console, f"{len(failed)} of {len(named)} runs failed; see above")
        return 1 if failed else 0


@dataclass(frozen=True)
class Train:
    """Train one network with one method.

    For example:

    lookbehind train --data digits --method lookbehind-sam --k 5 --alpha 0.5

    lookbehind train --data cifar10 --model resnet18 --method sam+lookbehind-sam@100 --tensorboard

    torchrun --nproc-per-node 4 -m lookbehind train --data cifar10 --model wrn-28-10 --method lookbehind-sam
    """

    run: Run = field(default_factory=Run)
    storage: Storage = field(default_factory=lambda: Storage(out=Path("out/train")))

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal."""
        run, ended = as_torchrun_says(self.run), list[Ended]()

        def tell(told: Told) -> None:
            display(told)
            if isinstance(told, Ended):
                ended.append(told)

        with joined(run.filled.device) as team:
            shown = console if team.first else Console(quiet=True)
            try:
                with Display(shown, [(run.method, run)]) as display:
                    run_all([run], self.storage, 1, tell)
            except KeyboardInterrupt:
                say(shown, "\nstopped; the same command goes on from here")
                return INTERRUPTED
            if ended[0].error:
                say(Console(stderr=True), f"process {team.rank} of {team.world}: {ended[0].error}")
                return 1
            say(shown, f"records, weights  {self.storage.directory(run)}")
        return 0


def as_torchrun_says(run: Run) -> Run:
    """The run with ``parallel`` filled in; an error where it does not fit how the processes were started."""
    if started_by_torchrun():
        processes = int(os.environ["WORLD_SIZE"])
        if run.processes not in (1, processes):
            raise ValueError(f"processes={run.processes}: torchrun has started {processes}; leave it out")
        return replace(run, parallel="ddp" if run.parallel == "none" else run.parallel, processes=processes)
    if run.parallel != "none" or run.processes != 1:
        raise ValueError(
            f"parallel={run.parallel!r}: start it with torchrun, as in torchrun --nproc-per-node 2 -m lookbehind train"
        )
    return run


@dataclass(frozen=True)
class Evaluate:
    """Measure the networks of finished runs: loss and accuracy, sharpness, robustness, curvature, landscape.

    For example:

    lookbehind evaluate out/compare/runs/*

    lookbehind evaluate out/compare/runs/* --measures sharpness,noise,curvature,landscape --out out/measured

    lookbehind evaluate out/compare/runs/sgd-* --measures towards --towards out/compare/runs/sam-seed0-0123456789
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of finished runs, OUT/runs/ID."""
    measures: Measures = field(default_factory=Measures)
    data_dir: Path = Path("data")
    """The data sets' official files."""
    out: Path | None = None
    """Write report.html, results.json, results.md and the figures here."""
    json: bool = False
    """Print JSON in place of tables."""

    def __call__(self, console: Console, command: str) -> int:
        """Measure and print."""
        began, storage = monotonic(), Storage(data_dir=self.data_dir)
        if not self.runs:
            raise ValueError("give the directories of finished runs, such as out/compare/runs/*")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={self.out}: a file; give a directory")
        if self.out is not None and (self.out / "runs").exists():
            raise ValueError(f"out={self.out}: has runs and their results; give a directory of its own")
        errors, failed = Console(stderr=True), 0
        runs = list({path.resolve(): path for path in self.runs}.values())
        found: list[Saved] = []
        bar = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True)
        bar.disable = self.json or not console.is_terminal
        with bar:
            task = bar.add_task("measuring", total=len(runs) * (1 + len(self.measures.measures)))
            for number, path in enumerate(runs):
                if (path / "run.json").exists() and not is_finished(path):
                    say(errors, f"note: {path} is not finished, so it is left out")
                    continue

                def watch(name: str, path: Path = path) -> None:
                    bar.advance(task)
                    bar.update(task, description=f"{escape(path.name)}: {name}")

                try:
                    one = measure_saved(path, self.measures, storage, watch)
                except (ValueError, RuntimeError, OSError) as error:
                    if len(runs) == 1:
                        raise
                    say(errors, f"error: {error}")
                    failed += 1
                    continue
                if one.run.id in {other.run.id for other in found}:
                    say(errors, f"note: {path} is a copy of a run that is there already, so it is left out")
                    continue
                found.append(one)
                bar.update(task, completed=(number + 1) * (1 + len(self.measures.measures)))
        if not found:
            raise ValueError("none of these is a finished run that can be measured")
        if self.json:
            print(json.dumps([one.scores | {"measures": one.measures} for one in found], indent=2, allow_nan=False))
        else:
            console.print(_scores(found))
        if self.out is not None or not self.json:
            groups = by_method(found)
            rows = rows_of(groups)
            if not self.json:
                for table in terminal_grids(rows, console.width):
                    console.print(table)
            if self.out is not None:
                write_saved(self.out, groups, rows, command, began)
                if not self.json:
                    say(console, f"report   {self.out / 'report.html'}\nfigures  {self.out / 'figures'}")
        return 1 if failed else 0


def _scores(found: Sequence[Saved]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in ("seed", "train\nloss", "train\n%", "test\nloss", "test\n%", "BatchNorm\nre-estimated %"):
        table.add_column(name, justify="right", no_wrap=True)
    keys = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "recalibrated_test_accuracy")
    for one in found:
        values = (loss(one.scores[key]) if "loss" in key else accuracy(one.scores[key]) for key in keys)
        table.add_row(escape(one.run.method), str(one.run.seed), *values)
    return table


@dataclass(frozen=True)
class Reproduce:
    """Reproduce tables and figures of the paper by their numbers.

    For example:

    lookbehind reproduce table1 --scale smoke

    lookbehind reproduce table1 figure5 figure7 --scale laptop --data-dir data

    lookbehind reproduce table1 --scale paper --shard 3/16
    """

    experiments: Annotated[tuple[str, ...], tyro.conf.Positional]
    """table1, figure5, ...; `lookbehind list experiments` shows them."""
    reproduction: Annotated[Reproduction, tyro.conf.OmitSubcommandPrefixes] = field(default_factory=Reproduction)

    def __call__(self, console: Console, command: str) -> int:
        """Run it, with its progress on the terminal."""
        wanted = replace(self.reproduction, experiments=self.experiments)
        todo = [(described(run), run) for run, _ in (to_reproduce(wanted) if wanted.train else [])]
        failed: list[Ended] = []

        def tell(told: Told) -> None:
            display(told)
            if isinstance(told, Ended) and told.error:
                failed.append(told)

        try:
            with Display(console, todo) as display:
                pages = reproduce(wanted, tell, command)
        except KeyboardInterrupt:
            say(console, "\nstopped; the same command goes on from here")
            return INTERRUPTED
        for name, out in pages.items():
            verdicts = json.loads((out / "results.json").read_text())["verdicts"]
            for verdict in verdicts:
                say(console, f"{name}: {verdict['verdict']}: {verdict['claim']} ({verdict['where']})", wrapped=True)
            say(console, f"report   {out / 'report.html'}")
        for one in failed:
            say(console, f"failed: {one.run.method}, seed {one.run.seed}: {one.error}")
        return 1 if failed else 0


@dataclass(frozen=True)
class List:
    """Show the methods, models and data sets.

    For example:

    lookbehind list

    lookbehind list methods
    """

    what: Annotated[Literal["all", "methods", "models", "data", "experiments"], tyro.conf.Positional] = "all"

    def __call__(self, console: Console, command: str) -> int:
        """Print the tables."""
        shown: dict[str, list[tuple[str, ...]]] = {
            "methods": [(m.name, m.about, _cost(m.name)) for m in METHODS.values()],
            "models": [(name, about) for name, (_, about) in MODELS.items()],
            "data": [(name, known.about) for name, known in SETS.items()],
            "experiments": [experiment_row(name) for name in IDS] if self.what in ("all", "experiments") else [],
        }
        heads = {
            "methods": ("method", "what it does", "gradients per minibatch"),
            "models": ("model", ""),
            "data": ("data", ""),
            "experiments": ("experiment", "what the paper claims", "laptop, paper: SGD trainings per seed"),
        }
        for name, rows in shown.items():
            if self.what in ("all", name):
                table = Table(box=box.SIMPLE_HEAD)
                for head in heads[name]:
                    table.add_column(head, overflow="fold")
                for row in rows:
                    table.add_row(*row)
                console.print(table)
        if self.what in ("all", "methods"):
            say(console, "A method's own settings follow a colon: lookbehind-sam:k=2,alpha=adaptive")
            say(console, "A method may change on the way: sam+lookbehind-sam@20 changes after epoch 20")
        return 0


def experiment_row(name: str) -> tuple[str, ...]:
    """What an experiment is and costs, in trainings of plain SGD."""
    costs = []
    for scale in ("laptop", "paper"):
        wanted = Reproduction(experiments=(name,), scale=scale, seeds=1)
        costs.append(f"{cost_in_trainings(wanted):.0f}")
    return name, experiment(name).claim, ", ".join(costs)


def _cost(name: str) -> str:
    one, two = (METHODS[name].gradients(k) for k in (5, 6))
    return str(one) if one == two else "k + 1"


def say(console: Console, text: str, *, wrapped: bool = False) -> None:
    """Print plain text: a path may have brackets, which are no markup, and should not be broken."""
    console.print(text, markup=False, highlight=False, soft_wrap=not wrapped)


Command = Compare | Train | Evaluate | Reproduce | List
COMMANDS: dict[str, type[Command]] = {
    "compare": Compare,
    "train": Train,
    "evaluate": Evaluate,
    "reproduce": Reproduce,
    "list": List,
}


def parsed(arguments: Sequence[str]) -> Command:
    """The command in a command line; prints help or what is wrong, and exits, if that is what it asks for."""
    config = (tyro.conf.OmitArgPrefixes,)
    if list(arguments) == ["--version"]:
        print(f"lookbehind {version('lookbehind')}")
        sys.exit(0)
    if not arguments:
        arguments = ["--help"]
    flags = [word.split("=")[0] for word in arguments if word.startswith("--")]
    if twice := next((flag for flag in flags if flags.count(flag) > 1), None):
        raise ValueError(f"{twice} is there twice: give all its values together, {twice} A B")
    if arguments[0] in COMMANDS:  # one parser per command: its errors are about that command only
        name, *rest = arguments
        return tyro.cli(COMMANDS[name], prog=f"lookbehind {name}", args=rest, config=config)
    choices = tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items())
    union: Any = choices[0]
    for choice in choices[1:]:
        union = union | choice
    command: Command = tyro.cli(union, prog="lookbehind", args=list(arguments), config=config)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    console = Console()
    errors = Console(stderr=True)
    warnings.showwarning = lambda message, *_, **__: say(errors, f"note: {message}")
    try:
        return parsed(arguments)(console, shlex.join(["lookbehind", *arguments]))
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        say(errors, f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say(errors, "stopped")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
