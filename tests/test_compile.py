"""torch.compile of the model: the same steps, and nothing is compiled again because the weights move."""

from __future__ import annotations

import shutil

import pytest
import torch
from problems import METHODS, OLD_TORCH, batch, closure_for, distance, net, same, sgd, values

import lookbehind as lb


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compiled_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("method", METHODS)
def test_a_compiled_model_takes_the_same_steps_without_compiling_again(method):
    model, twin = net(), net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer, plain = METHODS[method](sgd(model)), METHODS[method](sgd(twin))
    graphs = []
    for step in range(4):
        optimizer.step(closure_for(compiled, batch(step)))
        plain.step(closure_for(twin, batch(step)))
        model.zero_grad()
        twin.zero_grad()
        graphs.append(compiled_graphs())
    assert same(values(model), values(twin))
    assert graphs == [1, 1, 1, 1]


@pytest.mark.parametrize("options", [{"batchnorm": "first"}, {"rng": "replay"}, {"clip": lb.clip_norm(0.1)}])
def test_options_do_not_compile_again(options):
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = lb.LookbehindSAM(sgd(model), k=2, model=compiled, **options)
    for step in range(3):
        optimizer.step(closure_for(compiled, batch(step)))
    assert compiled_graphs() == 1
    if options == {"batchnorm": "first"}:
        assert int(model[1].num_batches_tracked) == 3


@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler, which inductor needs"
)
@pytest.mark.skipif(OLD_TORCH, reason="needs torch 2.7")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_with_torchs_own_compiler():
    model, twin = net(torch.float32), net(torch.float32)
    compiled = torch.compile(model)
    optimizer, plain = lb.LookbehindASAM(sgd(model), k=2), lb.LookbehindASAM(sgd(twin), k=2)
    for step in range(3):
        data = batch(step, dtype=torch.float32)
        optimizer.step(closure_for(compiled, data))
        plain.step(closure_for(twin, data))
    assert distance(values(model), values(twin)) < 1e-6
    assert compiled_graphs() == 1
