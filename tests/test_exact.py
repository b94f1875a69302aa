"""Every method, around four base optimizers on three networks, follows the naive reference to rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import reference
import torch
from reference import TOLERANCE, Ascent, Batch, Chains, SideBySide, distance, network
from torch import Tensor, nn
from torch.optim import Optimizer

import lookbehind as lb

K, RHO, ETA, ALPHA = 3, 0.1, 0.02, 0.4
SAM, ASAM, ASAM_AT_SLOW = Ascent(RHO), Ascent(RHO, ETA), Ascent(RHO, ETA, at="slow")
SAM_TOTAL, ASAM_TOTAL = Ascent(RHO / K), Ascent(RHO / K, ETA)

BASES = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.05),
}


class Attention(nn.Module):
    """Embedding, self-attention, LayerNorm. No bias in the attention: that of the keys has no gradient but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.position = nn.Parameter(torch.randn(5, 8) / 4, requires_grad=False)  # frozen, yet given to the optimizer
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        return self.head(self.norm(x + self.attention(x, x, x)[0]).tanh().mean(1))


def images(norm: nn.Module, bias: bool) -> nn.Sequential:
    convolution = nn.Conv2d(2, 4, 3, bias=bias)
    return nn.Sequential(convolution, norm, nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3))


def groups() -> nn.Module:
    model = images(nn.GroupNorm(2, 4), bias=True)
    model[4].register_module("spare", nn.Linear(3, 2))  # never used: its gradients are None
    return model


class Experts(nn.Module):
    """One of two layers, by the sign of the first pixel: the other has no gradient on this minibatch."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(72, 4) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        expert = self.experts[int(inputs[0, 0, 0, 0] > 0)]
        return self.head(expert(inputs.flatten(1)).tanh())


NETWORKS = {
    "batchnorm": lambda: images(nn.BatchNorm2d(4), bias=False),
    "groupnorm": groups,
    "attention": Attention,
    "experts": Experts,
}


def minibatch(model: nn.Module, seed: int, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, Attention):
        inputs = torch.randint(9, (size, 5), generator=generator)
    else:
        inputs = torch.randn(size, 2, 6, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (size,), generator=generator)


class Method(NamedTuple):
    ours: Callable[[Optimizer], lb.SharpnessAware]
    theirs: Callable[..., reference.Weights]
    k: int = K
    evaluations: int = K + 1  # per step on one minibatch


def _sam(ours: Callable[..., lb.SharpnessAware], ascent: Ascent, **options: object) -> Method:
    return Method(partial(ours, rho=RHO, **options), partial(reference.sam, ascent=ascent), k=1, evaluations=2)


def _multistep(average: bool | str, ascent: Ascent = SAM, **options: object) -> Method:
    ours = partial(lb.MultistepSAM, rho=RHO, k=K) if ascent.eta is None else partial(lb.MultistepASAM, **_ASAM)
    theirs = partial(reference.multistep, ascent=ascent, average=average)
    return Method(partial(ours, average=average, **options), theirs)


def _lookbehind(alpha: float | str, ascent: Ascent = SAM, **options: object) -> Method:
    ours = partial(lb.LookbehindSAM, rho=RHO, k=K) if ascent.eta is None else partial(lb.LookbehindASAM, **_ASAM)
    return Method(partial(ours, alpha=alpha, **options), partial(reference.lookbehind, ascent=ascent, alpha=alpha))


def _repeat(alpha: float | str, ascent: Ascent = SAM) -> Method:
    ours = partial(lb.RepeatSAM, rho=RHO, k=K) if ascent.eta is None else partial(lb.RepeatASAM, **_ASAM)
    return Method(partial(ours, alpha=alpha), partial(reference.repeat, ascent=ascent, alpha=alpha), evaluations=2)


_ASAM = {"rho": RHO, "eta": ETA, "k": K}
METHODS = {
    "sam": _sam(lb.SAM, SAM),
    "asam": _sam(lb.ASAM, ASAM, eta=ETA),
    "multistep-sam": _multistep(False),
    "multistep-sam-mean": _multistep(True),
    "multistep-sam-clean": _multistep("with-clean"),
    "multistep-asam": _multistep(False, ASAM),
    "multistep-asam-mean": _multistep(True, ASAM),
    "multistep-asam-clean": _multistep("with-clean", ASAM),
    "lookbehind-sam": _lookbehind(ALPHA),
    "lookbehind-sam-adaptive": _lookbehind("adaptive"),
    "lookbehind-sam-tensor": _lookbehind("adaptive-per-tensor"),
    "lookbehind-asam": _lookbehind(ALPHA, ASAM),
    "lookbehind-asam-adaptive": _lookbehind("adaptive", ASAM),
    "lookbehind-asam-tensor": _lookbehind("adaptive-per-tensor", ASAM),
    "repeat-sam": _repeat(ALPHA),
    "repeat-asam-adaptive": _repeat("adaptive", ASAM),
}
OPTIONS = {
    "lookbehind-asam-without-eta": _lookbehind(ALPHA, Ascent(RHO, 0.0), eta=0.0),  # T is then the weight itself
    "lookbehind-asam-slow-without-eta": _lookbehind(ALPHA, Ascent(RHO, 0.0, at="slow"), eta=0.0, at="slow"),
    "multistep-asam-slow": _multistep(False, ASAM_AT_SLOW, at="slow"),
    "multistep-sam-total": _multistep(False, SAM_TOTAL, reach="total"),
    "lookbehind-asam-slow": _lookbehind(ALPHA, ASAM_AT_SLOW, at="slow"),
    "lookbehind-sam-total": _lookbehind(1.0, SAM_TOTAL, reach="total"),
    "lookbehind-asam-total": _lookbehind("adaptive", ASAM_TOTAL, reach="total"),
}
ALL = METHODS | OPTIONS
# for time, not all again in the other forms of a step; multistep-asam has its parts from two of the others
MICRO = {name: method for name, method in METHODS.items() if "multistep-asam" not in name}
SWITCHED = {name: method for name, method in MICRO.items() if "clean" not in name and "repeat" not in name}


# What the library's step is given: the plain closure, or one of the values in its place.


def closure(closure_on: Callable[[Batch], object], chains: Chains) -> object:
    return closure_on(chains[0][1][0])


def switching(closure_on: Callable[[Batch], object], chains: Chains) -> object:
    return lb.switching(*map(closure_on, chains[0][1]))


def micro_batches(closure_on: Callable[[Batch], object], chains: Chains) -> object:
    return lb.micro_batches(*((size, closure_on(batches[0])) for size, batches in chains))


def one_minibatch(model: nn.Module, seed: int, k: int) -> Chains:
    return [(1, [minibatch(model, seed)] * k)]


def k_minibatches(model: nn.Module, seed: int, k: int) -> Chains:
    return [(1, [minibatch(model, 100 * seed + i) for i in range(k)])]


def two_micro_batches(model: nn.Module, seed: int, k: int) -> Chains:
    # these seeds give mixed micro-batches to the experts: a gradient in one, none in the other
    return [(size, [minibatch(model, 7 * seed + size, size)] * k) for size in (5, 3)]


def side_by_side(method: Method, base: str, net: str) -> SideBySide:
    model = network(NETWORKS[net])
    return SideBySide(model, method.ours(BASES[base](model.named_parameters())), BASES[base], method.theirs)


def run(pair: SideBySide, k: int, chains: Callable[..., Chains], argument: Callable[..., object]) -> None:
    for seed in range(1, 5):
        pair.step(chains(pair.model, seed, k), argument)
    assert pair.calls == pair.optimizer.evaluations


on_every_network = pytest.mark.parametrize("net", NETWORKS)
with_every_base = pytest.mark.parametrize("base", BASES)


@on_every_network
@with_every_base
@pytest.mark.parametrize("name", ALL)
def test_one_minibatch(name: str, base: str, net: str) -> None:
    method = ALL[name]
    pair = side_by_side(method, base, net)
    run(pair, method.k, one_minibatch, closure)
    assert pair.calls == 4 * method.evaluations


@on_every_network
@with_every_base
@pytest.mark.parametrize("name", SWITCHED)
def test_switching_minibatch(name: str, base: str, net: str) -> None:
    method = SWITCHED[name]
    pair = side_by_side(method, base, net)
    run(pair, method.k, k_minibatches, switching)
    assert pair.calls == 4 * 2 * method.k


@on_every_network
@with_every_base
@pytest.mark.parametrize("name", MICRO)
def test_micro_batches(name: str, base: str, net: str) -> None:
    method = MICRO[name]
    pair = side_by_side(method, base, net)
    run(pair, method.k, two_micro_batches, micro_batches)
    assert pair.calls == 4 * 2 * method.evaluations


INNER = {
    "plain": Method(lambda base: base, reference.plain, k=1, evaluations=1),
    "sam": METHODS["sam"],
    "lookbehind": METHODS["lookbehind-sam"],
}


@on_every_network
@pytest.mark.parametrize("momentum", ["keep", "reset", "interpolate"])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("inner", INNER)
def test_lookahead(inner: str, k: int, momentum: str, net: str) -> None:
    model, method, build = network(NETWORKS[net]), INNER[inner], BASES["momentum"]
    settings = {"k": k, "alpha": ALPHA, "momentum": momentum}
    ours = lb.Lookahead(method.ours(build(model.named_parameters())), **settings)
    theirs = reference.Lookahead(method.theirs, **settings)
    pair = SideBySide(model, ours, build, theirs)
    for seed in range(1, 8):
        pair.step(one_minibatch(model, seed, method.k), closure)
        with ours.slow_weights():
            assert distance(model, theirs.slow) <= TOLERANCE
        assert distance(model, pair.weights) <= TOLERANCE
    assert pair.calls == ours.evaluations == 7 * method.evaluations
