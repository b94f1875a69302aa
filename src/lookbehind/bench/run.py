"""All benchmarks in one run, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from lookbehind.bench import steps
from lookbehind.bench.importing import importing
from lookbehind.bench.memory import buffers
from lookbehind.bench.pipeline import pipeline
from lookbehind.bench.problems import Problem, problems
from lookbehind.bench.sharpness import sharpness
from lookbehind.bench.tables import lines
from lookbehind.bench.timing import Effort, Measured
from lookbehind.optim.checks import count, non_negative, one_of
from lookbehind.training.allocator import keep_memory

PARTS = ("steps", "authors", "peers", "growth", "memory", "sharpness", "pipeline", "import")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed and memory as ratios, with works that take turns."""

    only: tuple[str, ...] = ()
    """Some of: steps, authors, peers, growth, memory, sharpness, pipeline, import. All if not given."""
    rounds: int = 5
    """Each makes the network anew, for it matters where its weights lie; median and quartiles are over rounds."""
    repetitions: int = 3
    """Of every work in a round, at least; of each piece of it (a pass, what lies between two) the least time counts."""
    seconds: float = 1.5
    """Short works are repeated more often, until those that take turns have taken so long together."""
    tiny: bool = False
    """Networks of no size: shows in seconds that it works, and nothing else."""
    threads: int = 1
    """Of the CPU."""
    out: Path = Path("out/bench")
    """results.json and results.md go here."""

    def __post_init__(self) -> None:
        for part in self.only:
            one_of("only", part, PARTS)
        count("rounds", self.rounds)
        count("repetitions", self.repetitions)
        count("threads", self.threads)
        non_negative("seconds", self.seconds)


def bench(wanted: Bench, tell: Callable[[str], None] = lambda what: None) -> list[Measured]:
    """Measure, and write what was found, after every piece of it."""
    before = torch.get_num_threads()
    torch.set_num_threads(wanted.threads)
    keep_memory()  # page faults would hide everything else
    found: list[Measured] = []
    try:
        for part in wanted.only or PARTS:
            for name, some in _part(part, wanted):
                tell(f"{part} {name}".strip())
                found += [replace(one, at_most=None, at_least=None) for one in some()] if wanted.tiny else some()
                _write(wanted, found)
    finally:
        torch.set_num_threads(before)
    return found


def _write(wanted: Bench, found: Iterable[Measured]) -> None:
    # matplotlib comes with it, which takes long to import and is not needed to parse a command
    from lookbehind.experiments.output import machine, versions, write_files

    about = {
        "rounds": wanted.rounds,
        "repetitions": wanted.repetitions,
        "seconds": wanted.seconds,
        "threads": wanted.threads,
        "tiny": wanted.tiny,
        "keeps_memory": keep_memory(),
        "versions": versions(),
        "machine": machine("cpu"),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    content = {"about": about, "measured": [{**asdict(one), "reached": one.reached} for one in found]}
    files = {"results.json": json.dumps(content, indent=2), "results.md": "\n".join(lines(found)) + "\n"}
    write_files(wanted.out, files, figures=False)


def _part(part: str, wanted: Bench) -> Iterator[tuple[str, Callable[[], Iterable[Measured]]]]:
    """The pieces of a part, each with its name; they are measured when they are called."""
    tiny, n = wanted.tiny, min(7, wanted.rounds * wanted.repetitions)
    effort = Effort(wanted.rounds, wanted.repetitions, 0.0 if tiny else wanted.seconds)
    known = problems(tiny=tiny) if part in ("steps", "authors", "peers", "growth") else {}
    for problem in known.values():
        yield problem.name, lambda problem=problem: _on(part, problem, effort, tiny)  # type: ignore[misc]
    if part == "memory":
        yield "", buffers
    elif part == "sharpness":
        yield "", lambda: sharpness(effort.at_most(3), 8 if tiny else 128)
    elif part == "pipeline":
        yield "", lambda: pipeline(n, 256 if tiny else 12_800)
    elif part == "import":
        yield "", lambda: [importing(n)]


def _on(part: str, problem: Problem, effort: Effort, tiny: bool) -> Iterable[Measured]:
    if part == "steps":
        return steps.against_the_floor(problem, (1, 2) if tiny else (1, 2, 5, 10), effort)
    if part == "growth":
        fewer = replace(effort, rounds=growth_rounds(effort.rounds))
        return steps.growth(problem, (2, 3) if tiny else steps.GROWTH, fewer)
    if part == "authors":
        k = 2 if tiny else 10
        same = Measured(
            f"largest difference of a weight to the authors' way, k = {k}, float64",
            problem.name,
            steps.difference_to_the_authors(problem, k),
            at_most=1e-9,
        )
        return [same, steps.against_the_authors(problem, k, effort)]
    return steps.against_the_peers(problem, effort)


def growth_rounds(rounds: int) -> int:
    """Of the growth, where twelve works take turns, some of them long: three fifths, but three if there are three."""
    return max(min(rounds, 3), rounds * 3 // 5)
