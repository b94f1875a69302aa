"""Four methods around every optimizer of torch.optim follow the naive reference; two optimizers are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import pytest
import reference
import torch
from reference import Ascent, SideBySide, network
from torch import nn
from torch.optim import Optimizer

import lookbehind as lb

# found by looking, so that an optimizer that torch adds is tested as well
FOUND = {
    name: kind
    for name, kind in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(kind, Optimizer) and kind is not Optimizer
}
REFUSED = {"LBFGS", "SparseAdam"}
BASES = sorted(FOUND.keys() - REFUSED)

RHO, ETA, K = 0.1, 0.02, 3
SAM, ASAM = Ascent(RHO), Ascent(RHO, ETA)
METHODS = {
    "sam": (partial(lb.SAM, rho=RHO), partial(reference.sam, ascent=SAM), 1),
    "multistep-asam": (
        partial(lb.MultistepASAM, rho=RHO, eta=ETA, k=K, average=True),
        partial(reference.multistep, ascent=ASAM, average=True),
        K,
    ),
    "lookbehind-sam": (
        partial(lb.LookbehindSAM, rho=RHO, k=K, alpha=0.5),
        partial(reference.lookbehind, ascent=SAM, alpha=0.5),
        K,
    ),
    "lookbehind-asam": (
        partial(lb.LookbehindASAM, rho=RHO, eta=ETA, k=K, alpha="adaptive"),
        partial(reference.lookbehind, ascent=ASAM, alpha="adaptive"),
        K,
    ),
}


def mlp(bias: bool) -> nn.Module:
    """Tanh: no gradient is rounding noise, which Rprop would follow by its sign."""
    return nn.Sequential(nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3, bias=bias))


def numbers(seed: int) -> reference.Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (8,), generator=generator)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", METHODS)
def test_follows_the_reference(name: str, base: str) -> None:
    ours, theirs, k = METHODS[name]
    build = partial(FOUND[base], lr=0.02)
    model = network(lambda: mlp(bias=base != "Muon"))  # Muon takes matrices only
    pair = SideBySide(model, ours(build(model.named_parameters())), build, theirs)
    for seed in range(1, 5):
        pair.step([(1, [numbers(seed)] * k)], lambda closure_on, chains: closure_on(chains[0][1][0]))
    assert pair.calls == pair.optimizer.evaluations == 4 * (k + 1)


@pytest.mark.parametrize("base", sorted(REFUSED))
@pytest.mark.parametrize("name", METHODS)
def test_refuses(name: str, base: str) -> None:
    wrapped: Callable[..., Optimizer] = METHODS[name][0]
    with pytest.raises(TypeError, match=base):
        wrapped(FOUND[base](mlp(bias=True).named_parameters()))
