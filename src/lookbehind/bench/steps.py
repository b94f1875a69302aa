"""What a step costs beyond the passes and base steps that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from lookbehind.bench.authors import AuthorsLookbehind
from lookbehind.bench.peers import peers
from lookbehind.bench.problems import ALPHA, LR, MOMENTUM, RHO, Problem
from lookbehind.bench.timing import Effort, Measured, Work, in_rounds, least, ratio, uncertainty
from lookbehind.optim.methods import LookbehindSAM

LIMITS = {"resnet": 1.03, "convnet": 1.10, "mlp": 1.30}
AUTHORS = {"resnet": 1.75, "convnet": 1.75, "mlp": 2.0}
GROWTH = (2, 3, 5, 8, 12, 20)


def made(works: Mapping[str, Callable[[], Work]]) -> Callable[[], dict[str, Work]]:
    """A function that makes all of them anew."""
    return lambda: {name: make() for name, make in works.items()}


def _base(parameters: object) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM)  # type: ignore[arg-type]


def lookbehind_step(problem: Problem, k: int, nonfinite: str = "raise") -> Work:
    """A step of ours."""
    model, closure = problem.fresh()
    optimizer = LookbehindSAM(
        _base(model.named_parameters()), rho=RHO, k=k, alpha=ALPHA, nonfinite=nonfinite, cosine="none"
    )
    return lambda: optimizer.step(closure)


def authors_step(problem: Problem, k: int) -> Work:
    """A step of the authors' way."""
    model, closure = problem.fresh()
    optimizer = AuthorsLookbehind(_base(model.parameters()), rho=RHO, k=k, alpha=ALPHA)
    return lambda: optimizer.step(closure)


def floor(problem: Problem, k: int) -> Work:
    """What no implementation can do without: k + 1 forward and backward passes, and k base steps."""
    model, closure = problem.fresh()
    base = _base(model.parameters())

    def work() -> None:
        closure()
        for _ in range(k):
            closure()
            base.step()

    return work


def against_the_floor(problem: Problem, ks: Sequence[int], effort: Effort) -> Iterator[Measured]:
    """Lookbehind's step over its floor, with the check for non-finite numbers and without."""
    for k in ks:
        works = {
            "ours": partial(lookbehind_step, problem, k),
            "propagate": partial(lookbehind_step, problem, k, "propagate"),
            "floor": partial(floor, problem, k),
        }
        times = in_rounds(made(works), effort)
        what = f"Lookbehind step, k = {k} / ({k + 1} passes + {k} base steps)"
        yield ratio(times, "ours", "floor", what, problem.name, at_most=LIMITS.get(problem.name))
        yield ratio(times, "propagate", "floor", f'{what}, nonfinite="propagate"', problem.name)


def growth(problem: Problem, ks: Sequence[int], effort: Effort) -> Measured:
    """How much the ratio to the floor changes over k: the greatest over the least."""
    works: dict[str, Callable[[], Work]] = {}
    for k in ks:
        works[f"ours {k}"] = partial(lookbehind_step, problem, k)
        works[f"floor {k}"] = partial(floor, problem, k)
    times = in_rounds(made(works), effort)
    values = [ratio(times, f"ours {k}", f"floor {k}", "", "").value for k in ks]
    what = f"step / floor, the greatest over the least for k = {ks[0]} to {ks[-1]}"
    return Measured(what, problem.name, max(values) / min(values), at_most=1.05)


def against_the_authors(problem: Problem, k: int, effort: Effort) -> Measured:
    """The authors' 2k evaluations and copies over our step."""
    works = {"authors": partial(authors_step, problem, k), "ours": partial(lookbehind_step, problem, k)}
    limit = AUTHORS.get(problem.name)
    what = f"the authors' way / ours, k = {k}"
    return ratio(in_rounds(made(works), effort), "authors", "ours", what, problem.name, at_least=limit)


def difference_to_the_authors(problem: Problem, k: int, steps: int = 3) -> float:
    """The largest difference of a weight after some steps, both in float64."""
    double = Problem(problem.name, problem.network.double(), _double(problem.inputs), problem.labels)
    ends = []
    for make in (_ours_on, _authors_on):
        model, closure = double.fresh()
        step = make(model, closure, k)
        for _ in range(steps):
            step()
        ends.append([p.detach() for p in model.parameters()])
    problem.network.float()
    return max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))


def _double(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs


def _ours_on(model: torch.nn.Module, closure: Callable[[], Tensor], k: int) -> Work:
    optimizer = LookbehindSAM(_base(model.named_parameters()), rho=RHO, k=k, alpha=ALPHA, cosine="none")
    return lambda: optimizer.step(closure)


def _authors_on(model: torch.nn.Module, closure: Callable[[], Tensor], k: int) -> Work:
    optimizer = AuthorsLookbehind(_base(model.parameters()), rho=RHO, k=k, alpha=ALPHA)
    return lambda: optimizer.step(closure)


def _on_fresh(make: Callable[[torch.nn.Module, Callable[[], Tensor]], Work], problem: Problem) -> Work:
    return make(*problem.fresh())


def against_the_peers(problem: Problem, effort: Effort) -> Iterator[Measured]:
    """Our SAM and ASAM over the fastest of the others; and the fastest over itself, for the spread."""
    for name, adaptive in (("SAM", False), ("ASAM", True)):
        makes = peers(adaptive)
        every = {peer: partial(_on_fresh, make, problem) for peer, make in makes.items()}
        times = in_rounds(made(every), effort)
        fastest = min(makes.keys() - {"ours"}, key=lambda peer: median([least(some[peer]) for some in times]))
        again = in_rounds(made(dict.fromkeys((fastest, "again"), every[fastest])), effort)
        what = f"{name}: ours / the fastest peer ({fastest})"
        room = uncertainty(again, "again", fastest)
        yield ratio(times, "ours", fastest, what, problem.name, at_most=1.0 + room)
        yield ratio(again, "again", fastest, f"{name}: {fastest} / itself", problem.name)
