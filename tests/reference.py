"""A naive float64 reference of every method, straight from the pseudo-code, and the comparison with it.

Nothing is reused or done in place: weights are lists of tensors, and a gradient is a fresh forward and backward on a
copy of the model, once for every time it appears in the pseudo-code (``2k`` per Lookbehind step). What a step sees is
a list of chains ``(size, [d_1, ..., d_k])``: ascent step i climbs on ``d_i``. One chain with the same minibatch k times
is the usual step, different minibatches along a chain are the switching form, several chains are micro-batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

Weights = list[Tensor]
Gradients = list[Tensor | None]  # None: this parameter takes no part in the loss
Batch = tuple[Tensor, Tensor]
Chains = list[tuple[float, list[Batch]]]
Build = Callable[..., Optimizer]  # of the parameters, named or not

TOLERANCE = 1e-9


class Problem:
    """The loss and its gradient as functions of the weights, on a copy of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        self.names, self.parameters = zip(*self.model.named_parameters(), strict=True)

    def evaluate(self, weights: Weights, batch: Batch) -> tuple[float, Gradients]:
        for parameter, weight in zip(self.parameters, weights, strict=True):
            parameter.data, parameter.grad = weight.clone(), None
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        loss.backward()
        return loss.item(), [parameter.grad for parameter in self.parameters]

    def gradient(self, weights: Weights, batch: Batch) -> Gradients:
        return self.evaluate(weights, batch)[1]

    def loss(self, weights: Weights, chains: Chains) -> float:
        """The loss at ``weights``, on the first minibatch of every chain."""
        total = sum(size for size, _ in chains)
        return sum(size * self.evaluate(weights, batches[0])[0] for size, batches in chains) / total


class Base:
    """OPT(w, g): one step of a torch optimizer on weights of its own, set to w."""

    def __init__(self, build: Build, weights: Weights) -> None:
        self.parameters = [nn.Parameter(weight.clone()) for weight in weights]
        self.optimizer = build(self.parameters)

    def __call__(self, weights: Weights, gradients: Gradients) -> Weights:
        for parameter, weight, gradient in zip(self.parameters, weights, gradients, strict=True):
            parameter.data = weight.clone()
            parameter.grad = None if gradient is None else gradient.clone()
        self.optimizer.step()
        return [parameter.detach().clone() for parameter in self.parameters]

    def momentum(self) -> dict[int, Tensor]:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        return {i: state["momentum_buffer"].clone() for i, state in enumerate(states) if "momentum_buffer" in state}

    def set_momentum(self, momentum: dict[int, Tensor]) -> None:
        for i, buffer in momentum.items():
            self.optimizer.state[self.parameters[i]]["momentum_buffer"] = buffer.clone()


@dataclass(frozen=True)
class Ascent:
    """SAM: ``rho g / |g|``; with ``eta`` ASAM: ``rho T^2 g / |T g|``, T at the point itself or at the slow weights."""

    rho: float
    eta: float | None = None
    at: str = "point"

    def __call__(self, names: Sequence[str], point: Weights, slow: Weights, gradients: Gradients) -> Weights:
        """The point after the step."""
        where = point if self.at == "point" else slow
        scales = [self.scale(name, weight) for name, weight in zip(names, where, strict=True)]
        scaled = [t * g for t, g in zip(scales, gradients, strict=True) if g is not None]
        norm = torch.cat([each.flatten() for each in scaled]).norm() + 1e-16
        return [
            w.clone() if g is None else w + self.rho * t**2 * g / norm
            for w, t, g in zip(point, scales, gradients, strict=True)
        ]

    def scale(self, name: str, weight: Tensor) -> Tensor:
        return weight.abs() + self.eta if self.eta is not None and "weight" in name else torch.ones_like(weight)


def climb(problem: Problem, slow: Weights, batches: list[Batch], ascent: Ascent) -> list[Weights]:
    """phi'_1, ..., phi'_k."""
    points, point = [], slow
    for batch in batches:
        point = ascent(problem.names, point, slow, problem.gradient(point, batch))
        points.append(point)
    return points


def averaged(gradients: Sequence[Gradients], sizes: Sequence[float]) -> Gradients:
    """The mean weighted by ``sizes``; a gradient that is None in some is zero there."""
    return [
        None
        if all(g is None for g in column)
        else sum(size * g for size, g in zip(sizes, column, strict=True) if g is not None) / sum(sizes)
        for column in zip(*gradients, strict=True)
    ]


def gradients_above(problem: Problem, slow: Weights, chains: Chains, ascent: Ascent) -> list[Gradients]:
    """g(phi'_1), ..., g(phi'_k), the i-th gradients of several chains averaged."""
    per_chain = []
    for _, batches in chains:
        points = climb(problem, slow, batches, ascent)
        per_chain.append([problem.gradient(point, batch) for point, batch in zip(points, batches, strict=True)])
    sizes = [size for size, _ in chains]
    return [averaged(ith, sizes) for ith in zip(*per_chain, strict=True)]


def gradient_below(problem: Problem, slow: Weights, chains: Chains) -> Gradients:
    """g(phi), on the first minibatch of every chain."""
    return averaged([problem.gradient(slow, batches[0]) for _, batches in chains], [size for size, _ in chains])


# One iteration of each method: (problem, base, weights, chains) -> weights.


def plain(problem: Problem, base: Base, weights: Weights, chains: Chains) -> Weights:
    return base(weights, gradient_below(problem, weights, chains))


def sam(problem: Problem, base: Base, weights: Weights, chains: Chains, ascent: Ascent) -> Weights:
    (gradients,) = gradients_above(problem, weights, chains, ascent)
    return base(weights, gradients)


def multistep(
    problem: Problem, base: Base, weights: Weights, chains: Chains, ascent: Ascent, average: bool | str
) -> Weights:
    gradients = gradients_above(problem, weights, chains, ascent)
    if average == "with-clean":
        gradients = [gradient_below(problem, weights, chains), *gradients]
    return base(weights, averaged(gradients, [1] * len(gradients)) if average else gradients[-1])


def lookbehind(
    problem: Problem, base: Base, weights: Weights, chains: Chains, ascent: Ascent, alpha: float | str
) -> Weights:
    return followed(base, weights, gradients_above(problem, weights, chains, ascent), alpha)


def repeat(
    problem: Problem, base: Base, weights: Weights, chains: Chains, ascent: Ascent, alpha: float | str
) -> Weights:
    """The control: k base steps on g(phi'_1), then interpolation."""
    k = len(chains[0][1])
    first = gradients_above(problem, weights, [(size, batches[:1]) for size, batches in chains], ascent)
    return followed(base, weights, first * k, alpha)


def followed(base: Base, slow: Weights, gradients: list[Gradients], alpha: float | str) -> Weights:
    """Let the fast weights descend on each gradient; the slow ones follow."""
    path, fast = [], slow
    for gradient in gradients:
        fast = base(fast, gradient)
        path.append(fast)
    alphas = [alpha] * len(slow) if not isinstance(alpha, str) else adaptive(slow, path[0], path[-1], alpha)
    return [s + a * (f - s) for s, f, a in zip(slow, fast, alphas, strict=True)]


def adaptive(slow: Weights, first: Weights, final: Weights, alpha: str) -> list[float]:
    """(cos + 1) / 2 of the angle between the first fast step and all of them."""
    early = [(f - s).flatten() for s, f in zip(slow, first, strict=True)]
    total = [(f - s).flatten() for s, f in zip(slow, final, strict=True)]
    if alpha == "adaptive-per-tensor":
        return [(cosine(a, b) + 1) / 2 for a, b in zip(early, total, strict=True)]
    return [(cosine(torch.cat(early), torch.cat(total)) + 1) / 2] * len(slow)


def cosine(a: Tensor, b: Tensor) -> float:
    if not a.any() or not b.any():
        return 0.0  # 0/0: weights that did not move at all, or not in the first step; 0 as in the authors' code
    return (a @ b / (a.norm() * b.norm())).item()


class Lookahead:
    """k steps of any method above, then slow <- slow + alpha (fast - slow) and fast <- slow."""

    def __init__(self, method: Callable[..., Weights], k: int, alpha: float, momentum: str) -> None:
        self.method, self.k, self.alpha, self.policy = method, k, alpha, momentum
        self.steps, self.slow, self.slow_momentum = 0, None, {}

    def __call__(self, problem: Problem, base: Base, weights: Weights, chains: Chains) -> Weights:
        if self.slow is None:
            self.slow = weights
        fast = self.method(problem, base, weights, chains)
        self.steps += 1
        if self.steps % self.k:
            return fast
        self.slow = [s + self.alpha * (f - s) for s, f in zip(self.slow, fast, strict=True)]
        self.settle_momentum(base)
        return self.slow

    def settle_momentum(self, base: Base) -> None:
        buffers = base.momentum()
        if self.policy == "reset":
            base.set_momentum({i: torch.zeros_like(buffer) for i, buffer in buffers.items()})
        if self.policy == "interpolate":
            for i, buffer in buffers.items():
                slow = self.slow_momentum.get(i, torch.zeros_like(buffer))
                self.slow_momentum[i] = slow + self.alpha * (buffer - slow)
            base.set_momentum(self.slow_momentum)


# What the tests share: a seeded network, and the comparison.


def network(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build().double()


def weights_of(model: nn.Module) -> Weights:
    return [parameter.detach().clone() for parameter in model.parameters()]


def distance(model: nn.Module, weights: Weights) -> float:
    """The largest difference of any element; NaN if there is one."""
    pairs = zip(weights_of(model), weights, strict=True)
    return torch.cat([(ours - theirs).abs().flatten() for ours, theirs in pairs]).max().item()


class SideBySide:
    """An optimizer of the library and the reference from the same start, compared after every step."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, build: Build, method: Callable[..., Weights]) -> None:
        self.model, self.optimizer, self.method = model, optimizer, method
        self.problem = Problem(model)
        self.weights = weights_of(model)
        self.base = Base(build, self.weights)
        self.calls = 0

    def step(self, chains: Chains, argument: Callable[..., object]) -> None:
        """One step; ``argument`` makes what the library's ``step`` is given, from a closure maker and the chains."""
        clean = self.problem.loss(self.weights, chains)
        loss = self.optimizer.step(argument(self.closure, chains))
        self.weights = self.method(self.problem, self.base, self.weights, chains)
        assert abs(loss.item() - clean) <= TOLERANCE
        assert distance(self.model, self.weights) <= TOLERANCE

    def closure(self, batch: Batch) -> Callable[[], Tensor]:
        def evaluate() -> Tensor:
            self.calls += 1
            self.model.zero_grad()
            loss = cross_entropy(self.model(batch[0]), batch[1])
            loss.backward()
            return loss

        return evaluate
