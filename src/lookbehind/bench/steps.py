"""What a step costs beyond the passes and base steps that it is made of."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from lookbehind.bench.authors import AuthorsLookbehind
from lookbehind.bench.peers import OURS, Closure, Make, peers
from lookbehind.bench.problems import ALPHA, LR, MOMENTUM, RHO, Problem
from lookbehind.bench.timing import (
    Effort,
    Measured,
    Times,
    Work,
    between_passes,
    in_rounds,
    least,
    ratio,
    together,
    uncertainty,
)
from lookbehind.optim.methods import LookbehindSAM

LIMITS = {"resnet": 1.03, "convnet": 1.10, "mlp": 1.30}
AUTHORS = {"resnet": 1.75, "convnet": 1.75, "mlp": 2.0}
GROWTH = (2, 3, 5, 8, 12, 20)


def in_turn(problem: Problem, makes: Mapping[str, Make], effort: Effort, *, passes: bool = True) -> list[Times]:
    """Works that take turns on one network, a new one in every round; without passes, their gradients are at hand.

    On networks of their own equal works differ by some percent, by where the weights happen to lie.
    """

    def works() -> dict[str, Work]:
        model, closure = problem.fresh() if passes else problem.at_hand()
        return {name: make(model, closure) for name, make in makes.items()}

    return in_rounds(works, effort)


def _base(parameters: object) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM)  # type: ignore[arg-type]


def lookbehind_step(model: nn.Module, closure: Closure, k: int, nonfinite: str = "raise") -> Work:
    """A step of ours."""
    optimizer = LookbehindSAM(_base(model.named_parameters()), rho=RHO, k=k, alpha=ALPHA, nonfinite=nonfinite)
    return lambda: optimizer.step(closure)


def authors_step(model: nn.Module, closure: Closure, k: int) -> Work:
    """A step of the authors' way."""
    optimizer = AuthorsLookbehind(_base(model.parameters()), rho=RHO, k=k, alpha=ALPHA)
    return lambda: optimizer.step(closure)


def floor(model: nn.Module, closure: Closure, k: int) -> Work:
    """What no implementation can do without: k + 1 forward and backward passes, and k base steps."""
    base = _base(model.parameters())

    def work() -> None:
        closure()
        for _ in range(k):
            closure()
            base.step()
        base.zero_grad()  # as all works leave the network that they share

    return work


def against_the_floor(problem: Problem, ks: Sequence[int], effort: Effort) -> Iterator[Measured]:
    """Lookbehind's step over its floor, with the check for non-finite numbers and without."""
    for k in ks:
        makes: dict[str, Make] = {
            "ours": partial(lookbehind_step, k=k),
            "propagate": partial(lookbehind_step, k=k, nonfinite="propagate"),
            "floor": partial(floor, k=k),
            "again": partial(floor, k=k),
        }
        times = in_turn(problem, makes, effort)
        what = f"Lookbehind step, k = {k} / ({k + 1} passes + {k} base steps)"
        yield ratio(times, "ours", "floor", what, problem.name, at_most=LIMITS.get(problem.name))
        yield ratio(times, "propagate", "floor", f'{what}, nonfinite="propagate"', problem.name)
        yield ratio(times, "again", "floor", f"{k + 1} passes + {k} base steps / the same again", problem.name)
        share = between(times, "ours", "floor")
        yield Measured(f"Lookbehind step, k = {k}: share of what is ours between the passes", problem.name, share)


def between(times: Sequence[Times], ours: str, floor: str) -> float:
    """What a step does between its passes beyond the base steps, over the floor.

    This is measured far more exactly than whole steps are, for passes take most of the time and all of the disturbance.
    """
    step, base = together(times, ours), together(times, floor)
    return (between_passes(step) - between_passes(base)) / least(base)


def growth(problem: Problem, ks: Sequence[int], effort: Effort) -> Iterator[Measured]:
    """How much the ratio to the floor changes over k: the greatest over the least.

    The greatest and least of several ratios are also those that the machine disturbed most; so it is told as well how
    much what lies between the passes lets the ratio change.
    """
    makes: dict[str, Make] = {}
    for k in ks:
        makes[f"ours {k}"] = partial(lookbehind_step, k=k)
        makes[f"floor {k}"] = partial(floor, k=k)
    times = in_turn(problem, makes, effort)
    values = [ratio(times, f"ours {k}", f"floor {k}", "", "").value for k in ks]
    what = f"step / floor, the greatest over the least for k = {ks[0]} to {ks[-1]}"
    yield Measured(what, problem.name, max(values) / min(values), at_most=1.05)
    shares = [1 + between(times, f"ours {k}", f"floor {k}") for k in ks]
    yield Measured("the same, by what is ours between the passes", problem.name, max(shares) / min(shares))


def against_the_authors(problem: Problem, k: int, effort: Effort) -> Measured:
    """The authors' 2k evaluations and copies over our step."""
    makes: dict[str, Make] = {"authors": partial(authors_step, k=k), "ours": partial(lookbehind_step, k=k)}
    times, limit = in_turn(problem, makes, effort), AUTHORS.get(problem.name)
    return ratio(times, "authors", "ours", f"the authors' way / ours, k = {k}", problem.name, at_least=limit)


def difference_to_the_authors(problem: Problem, k: int, steps: int = 3) -> float:
    """The largest difference of a weight after some steps, both in float64."""
    network = copy.deepcopy(problem.network).double()
    double = Problem(problem.name, network, _double(problem.inputs), problem.labels)
    ends = []
    for make in (lookbehind_step, authors_step):
        model, closure = double.fresh()
        step = make(model, closure, k)
        for _ in range(steps):
            step()
        ends.append([p.detach() for p in model.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))


def _double(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs


def against_the_peers(problem: Problem, effort: Effort) -> Iterator[Measured]:
    """Our SAM and ASAM over the fastest of the others; and the fastest over itself, for the spread.

    With the gradients at hand as well: then nothing is measured but the code of the optimizers, with the weights in the
    caches as far as they fit.
    """
    for name, adaptive in (("SAM", False), ("ASAM", True)):
        makes = peers(adaptive)
        times = in_turn(problem, makes, effort)
        fastest = _fastest(makes, times)
        again = in_turn(problem, dict.fromkeys((fastest, "again"), makes[fastest]), effort)
        room = uncertainty(again, "again", fastest)
        for mine in OURS:
            what = f"{name}: {mine} / the fastest peer ({fastest})"
            yield ratio(times, mine, fastest, what, problem.name, at_most=1.0 + room)
            between = [between_passes(together(times, one)) for one in (mine, fastest)]
            what = f"{name}, only between the passes: {mine} / the fastest peer ({fastest})"
            yield Measured(what, problem.name, between[0] / between[1])
        yield ratio(again, "again", fastest, f"{name}: {fastest} / itself", problem.name)
        bare = in_turn(problem, makes, effort, passes=False)
        quickest = _fastest(makes, bare)
        for mine in OURS:
            what = f"{name}, gradients at hand: {mine} / the fastest peer ({quickest})"
            yield ratio(bare, mine, quickest, what, problem.name)


def _fastest(makes: Mapping[str, Make], times: Sequence[Times]) -> str:
    return min(makes.keys() - set(OURS), key=lambda peer: median([least(some[peer]) for some in times]))
