"""Code that reaches into the parameters while we do: optimizers, layers and closures that keep or replace tensors."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from problems import CLIMBING, METHODS, batch, closure_for, distance, loss_of, net, same, sgd, train, values
from torch import nn

import lookbehind as lb
from lookbehind.optim.descent import repeat


class ReplacingSGD(torch.optim.SGD):
    """Puts a new tensor in the parameter's place, as some optimizers do, in place of writing into the old one."""

    def step(self, closure=None):
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad
        return loss


class KeepingSGD(torch.optim.SGD):
    """Keeps the gradient of the step before: the tensor itself, or a copy."""

    def __init__(self, parameters, clone):
        super().__init__(parameters, lr=0.1)
        self.clone = clone

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            previous = self.state[p].get("previous", p.grad)
            p.add_(2 * p.grad - previous, alpha=-0.1)
            self.state[p]["previous"] = p.grad.clone() if self.clone else p.grad


class MaxNorm(nn.Linear):
    """Renormalises its weight in every forward pass, by replacing it."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        return super().forward(x)


@pytest.fixture(params=[False, True], ids=["exchanged", "in-place"])
def maybe_aliased(request):
    def wrap(model):
        return [p.detach() for p in model.parameters()] if request.param else []

    return wrap


@pytest.mark.parametrize("method", METHODS)
def test_a_base_that_replaces_the_tensors_of_its_parameters(method, maybe_aliased):
    model, plain = net(), net()
    views = maybe_aliased(model)
    train(METHODS[method](ReplacingSGD(model.named_parameters(), lr=0.1)), model, range(4))
    train(METHODS[method](sgd(plain, momentum=0.0)), plain, range(4))
    assert distance(values(model), values(plain)) < 1e-14
    del views  # they had to live until here


@pytest.mark.parametrize("make", [lb.SAM, lambda b, **o: lb.LookbehindSAM(b, k=3, **o)], ids=["sam", "lookbehind"])
def test_a_layer_that_replaces_its_weight_in_the_forward_pass(make, maybe_aliased):
    torch.manual_seed(0)
    model = nn.Sequential(MaxNorm(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model(batch()[0])
    views = maybe_aliased(model)
    before = values(model)
    make(sgd(model, lr=0.0, momentum=0.0), rho=0.5).step(closure_for(model, batch()))
    assert distance(values(model), before) < 1e-15
    del views  # they had to live until here


@pytest.mark.parametrize("evaluate", ["plain", "micro"])
@pytest.mark.parametrize(
    "make",
    [
        lambda b: lb.MultistepSAM(b, rho=0.1, k=2, average=True),
        lambda b: lb.LookbehindSAM(b, rho=0.1, k=2),
        lambda b: lb.SharpnessAware(b, rho=0.1, k=3, descent=repeat),
    ],
    ids=["mean", "lookbehind", "repeat"],
)
def test_a_base_that_keeps_the_gradient_it_was_given(make, evaluate):
    results = []
    for clone in (True, False):
        model = net(batchnorm=False)
        optimizer = make(KeepingSGD(model.parameters(), clone))
        for step in range(4):
            closure = closure_for(model, batch(step))
            optimizer.step(lb.micro_batches((1, closure), (2, closure)) if evaluate == "micro" else closure)
        results.append(values(model))
    assert same(*results)


def test_two_parameters_over_the_same_memory_are_refused_by_name():
    model = net(batchnorm=False)
    model[3].weight = nn.Parameter(model[0].weight.data[:3])
    model[0] = nn.Linear(8, 8).double()
    twin = nn.Parameter(model[0].weight.data)
    base = torch.optim.SGD([("first", model[0].weight), ("second", twin)], lr=0.1)
    with pytest.raises(ValueError, match=r"'first' and parameter 'second' are two parameters over the same memory"):
        lb.SAM(base).step(lambda: 1.0)


def test_a_closure_that_returns_the_same_tensor_each_time():
    model = net()
    total = torch.zeros((), dtype=torch.float64)

    def closure():
        total.zero_()
        total.add_(closure_for(model, batch())().detach())
        return total

    optimizer = lb.SAM(sgd(model), rho=0.5)
    expected = loss_of(net(), batch()).item()
    assert optimizer.step(closure).item() == expected
    assert optimizer.last.losses[1] > expected


def test_a_state_dict_kept_from_inside_a_perturbed_pass_stays_what_it_was():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=2)
    kept, found = [], []

    def closure():
        if optimizer.climbing and not kept:
            kept.extend(t.detach() for t in model.parameters())
            found.extend(values(model))
        return closure_for(model, batch())()

    optimizer.step(closure)
    assert len(kept) == 5
    assert not same(kept, found)  # within its own step a point moves on
    later = [t.clone() for t in kept]
    train(optimizer, model, range(2))
    assert same(kept, later)  # but no later step writes into it


def test_weights_that_live_in_a_numpy_array_are_written_there():
    array = np.ones((3, 6))
    model = nn.Linear(6, 3, bias=False).double()
    model.weight = nn.Parameter(torch.from_numpy(array))
    optimizer = lb.SAM(sgd(model), rho=0.5)
    seen = []

    def closure():
        seen.append(array.copy())
        return closure_for(model, batch())()

    optimizer.step(closure)
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(array, model.weight.detach().numpy())


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch has no gradients of another type")
def test_gradients_in_another_type_than_their_parameters():
    weight = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    base = torch.optim.SGD([weight], lr=1.0, foreach=False)
    optimizer = lb.MultistepSAM(base, rho=0.1, k=2, average=True)

    def closure():
        weight.grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return 0.0

    optimizer.step(closure)
    assert torch.equal(weight.detach().float(), -torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_step_inside_the_loop_and_free_buffers_inside_a_step_are_refused():
    model = net()
    optimizer = lb.SAM(sgd(model))

    def loop():
        with optimizer.passes() as passes:
            for _ in passes:
                closure_for(model, batch())()
                optimizer.step()

    with pytest.raises(RuntimeError, match="the loop takes the step by itself"):
        loop()
    with pytest.raises(RuntimeError, match="buffers are in use"):
        optimizer.step(lambda: optimizer.free_buffers())
    with pytest.raises(RuntimeError, match="the `with` ends the step"):
        next(iter(optimizer.passes()))


@pytest.mark.parametrize("form", ["closure", "loop"])
def test_autocast_around_the_step_does_not_hide_the_climb(form):
    """Autocast keeps its copies of the weights until the outermost ``with`` ends."""

    def losses(outside):
        model = net(torch.float32, batchnorm=False)
        optimizer = lb.LookbehindSAM(sgd(model), rho=0.5, k=2)

        def evaluate():
            model.zero_grad()
            with nullcontext() if outside else torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, batch(dtype=torch.float32))
            loss.backward()
            return loss

        with torch.autocast("cpu", torch.bfloat16) if outside else nullcontext():
            if form == "closure":
                optimizer.step(evaluate)
            else:
                with optimizer.passes() as passes:
                    for _ in passes:
                        passes.report(evaluate())
        return optimizer.last.losses

    assert losses(outside=True) == losses(outside=False)
    assert len(set(losses(outside=True))) == 3


class WritingSGD(torch.optim.SGD):
    """Writes into the gradient that it was given, as clipping, scalers and Nesterov momentum do."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.grad.fill_(float("nan"))
        return loss


@pytest.mark.parametrize("batches", ["one", "micro", "switching"])
@pytest.mark.parametrize("method", [*CLIMBING, "repeat"])
def test_a_base_that_writes_into_its_gradient(method, batches):
    make = METHODS.get(method, lambda b: lb.SharpnessAware(b, rho=0.1, k=3, descent=repeat))
    results = []
    for kind in (torch.optim.SGD, WritingSGD):
        model = net()
        optimizer = make(kind(model.named_parameters(), lr=0.1, momentum=0.9))
        for step in range(3):
            closure = closure_for(model, batch(step))
            many = [closure_for(model, batch(10 * step + i)) for i in range(optimizer.ascents)]
            what = {"one": closure, "micro": lb.micro_batches((1, closure), (2, closure)), "switching": many}
            optimizer.step(what[batches])
        results.append(values(model))
    assert same(*results)


def test_the_diagnostics_of_a_step_that_failed_can_be_read():
    model = net()
    optimizer = lb.SAM(sgd(model))
    train(optimizer, model, range(1))
    with pytest.raises(lb.NonFiniteError):
        optimizer.step(lambda: closure_for(model, batch())() * float("nan"))
    assert optimizer.last.loss != optimizer.last.loss


def test_a_hook_that_raises_after_the_base_step_leaves_what_the_base_alone_would(maybe_aliased):
    model, plain = net(), net()
    views = maybe_aliased(model)
    base = sgd(model)
    base.register_step_post_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lb.SAM(base, rho=0.1).step(closure_for(model, batch()))
    lb.SAM(sgd(plain), rho=0.1).step(closure_for(plain, batch()))
    assert same(values(model), values(plain))
    del views  # they had to live until here


def test_a_parameter_without_elements_beside_another_in_one_storage():
    flat = torch.ones(10, dtype=torch.float64)
    first, empty = nn.Parameter(flat), nn.Parameter(flat[5:5])
    optimizer = lb.SAM(torch.optim.SGD([first, empty], lr=0.1))

    def closure():
        optimizer.zero_grad()
        loss = first.sum() + empty.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 10


def test_names_and_parameters_of_a_group_that_went_apart_are_told():
    model = net()
    optimizer = lb.SAM(sgd(model))
    del optimizer.param_groups[0]["params"][0]
    with pytest.raises(ValueError, match="4 params and 5 param_names: change both"):
        train(optimizer, model, range(1))
