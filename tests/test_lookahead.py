"""Lookahead: periods, slow weights, momentum, and the places where it meets the base optimizer's state."""

from __future__ import annotations

import copy

import pytest
import torch
from problems import METHODS, batch, closure_for, distance, net, same, sgd, train, values

import lookbehind as lb


def test_the_weights_follow_at_the_end_of_a_period():
    """Fast steps from the slow weights, then slow + alpha (fast - slow), by hand over two periods of 2."""
    model, plain = net(), net()
    optimizer = lb.Lookahead(sgd(model, momentum=0.0), k=2, alpha=0.3)
    base = sgd(plain, momentum=0.0)
    for period in range(2):
        slow = values(plain)
        for step in (2 * period, 2 * period + 1):
            train(base, plain, range(step, step + 1))
            plain.zero_grad()
            train(optimizer, model, range(step, step + 1))
            model.zero_grad()
            if step == 2 * period:
                assert optimizer.phase == 1
                fast = values(model)
                assert distance(fast, values(plain)) < 1e-15
                with optimizer.slow_weights():
                    assert distance(values(model), slow) < 1e-15
                assert same(values(model), fast)
        for parameter, start in zip(plain.parameters(), slow, strict=True):
            parameter.data = start + 0.3 * (parameter.data - start)
        assert optimizer.phase == 0
        assert distance(values(model), values(plain)) < 1e-15


def test_slow_weights_come_back_after_an_exception_and_at_a_boundary_are_the_weights():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=2)
    before = values(model)
    with optimizer.slow_weights():  # before the first step
        assert same(values(model), before)
    train(optimizer, model, range(1))
    model.zero_grad()
    fast = values(model)
    with pytest.raises(ZeroDivisionError), optimizer.slow_weights():
        raise ZeroDivisionError if same(values(model), before) else AssertionError
    assert same(values(model), fast)


def test_weights_that_were_loaded_between_periods_are_the_new_slow_weights():
    model = net()
    optimizer = lb.Lookahead(sgd(model, momentum=0.0), k=2, alpha=0.5)
    train(optimizer, model, range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    twin = copy.deepcopy(model)
    fresh = lb.Lookahead(sgd(twin, momentum=0.0), k=2, alpha=0.5)
    model.zero_grad()
    train(optimizer, model, range(2))
    train(fresh, twin, range(2))
    assert same(values(model), values(twin))


@pytest.mark.parametrize(("momentum", "buffer"), [("keep", 1.9), ("reset", 0.0), ("interpolate", 0.8 * 1.9)])
def test_momentum_at_the_end_of_a_period(momentum, buffer):
    """A constant gradient of 1 with momentum 0.9: the buffer is 1, then 1.9; slow momentum starts at 0."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    base = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    optimizer = lb.Lookahead(base, k=2, alpha=0.8, momentum=momentum)
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert base.state[weight]["momentum_buffer"].item() == pytest.approx(buffer)
    assert weight.item() == pytest.approx(0.8 * -2.9)


def test_adam_with_a_parameter_that_gets_its_first_gradient_late():
    """Adam takes a parameter with an entry in its state for one that it knows; Lookahead must not make one."""
    model, late = net(), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = lb.Lookahead(torch.optim.Adam([*model.parameters(), late], lr=0.1), k=2)
    train(optimizer, model, range(3))
    assert late not in optimizer.base.state
    late.grad = torch.ones_like(late)
    optimizer.step()
    assert not torch.equal(late, torch.ones(3, dtype=torch.float64))
    resumed = lb.Lookahead(torch.optim.Adam([*net().parameters(), late], lr=0.1), k=2)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.phase == optimizer.phase == 0


def test_a_plain_loop_without_closures_works():
    model, plain = net(), net()
    optimizer, base = lb.Lookahead(sgd(model), k=2, alpha=1.0), sgd(plain)
    for step in range(3):
        for stepper, network in ((optimizer, model), (base, plain)):
            closure_for(network, batch(step))()
            stepper.step()
    assert same(values(model), values(plain))
    assert optimizer.evaluations == 3


def test_a_state_of_the_base_alone_begins_a_new_period():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=3)
    train(optimizer, model, range(2))
    optimizer.load_state_dict(sgd(net()).state_dict())
    assert optimizer.phase == 0


def test_loading_says_what_differs():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=3)
    train(optimizer, model, range(2))
    with pytest.warns(UserWarning, match="'k': 3.*'k': 2"):
        lb.Lookahead(sgd(net()), k=2).load_state_dict(optimizer.state_dict())
    other = torch.nn.Sequential(torch.nn.Linear(6, 9, bias=False), *list(net())[1:])
    with pytest.raises(ValueError, match=r"number 0 have the shape \[8, 6\], here it is \[9, 6\]"):
        lb.Lookahead(sgd(other), k=3).load_state_dict(optimizer.state_dict())


def test_the_state_dict_is_not_changed_by_loading_it():
    model = net()
    optimizer = METHODS["lookahead"](sgd(model))
    train(optimizer, model, range(2))
    state = optimizer.state_dict()
    slow = [entry["lookahead_slow"].clone() for entry in state["state"].values()]
    resumed_model = copy.deepcopy(model)
    resumed = METHODS["lookahead"](sgd(resumed_model))
    resumed.load_state_dict(state)
    train(resumed, resumed_model, range(3))
    assert same([entry["lookahead_slow"] for entry in state["state"].values()], slow)


def test_a_checkpointing_step_with_lr_zero_does_not_count():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=2)
    optimizer.param_groups[0]["lr"] = 0.0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert optimizer.phase == 0
    assert "lookahead_slow" in optimizer.state_dict()["state"][0]
    closure_for(model, batch())()  # but a real gradient in a warm-up from zero does
    optimizer.step()
    assert optimizer.phase == 1


def test_the_loop_form_is_only_for_a_base_that_climbs():
    with pytest.raises(TypeError, match="SGD needs one gradient per step"):
        lb.Lookahead(sgd(net())).passes()
    model = net()
    optimizer = lb.Lookahead(lb.SAM(sgd(model)), k=2)
    for expected in (1, 0):
        with optimizer.passes() as passes:
            for _ in passes:
                closure_for(model, batch())()
        assert optimizer.phase == expected
    optimizer.free_buffers()
