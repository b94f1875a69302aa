"""Nothing lost: whatever stops a step, the weights are as before, bit for bit, and the optimizer goes on."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from problems import ASCENTS, CLIMBING, METHODS, batch, closure_for, net, same, sgd, train, values

import lookbehind as lb

ONE_BASE_STEP = ["sam", "asam", "multistep", "multistep-mean"]


class Stop(BaseException):
    """Not an Exception: as KeyboardInterrupt and SystemExit."""


def failing(closure, call, failure):
    calls = iter(range(100))

    def wrapped():
        loss = closure()
        if next(calls) == call:
            return failure(loss)
        return loss

    return wrapped


def raising(loss):
    raise Stop


def nan_loss(loss):
    return loss * float("nan")


def snapshot(optimizer):
    return copy.deepcopy(optimizer.state_dict()["state"])


def equal_states(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(torch.as_tensor(a[i][key]), torch.as_tensor(b[i][key])) for i in a for key in a[i]
    )


@pytest.fixture(params=[False, True], ids=["exchanged", "in-place"])
def alias(request):
    """Views of the parameters force the path that copies in place, as on CUDA."""
    kept = []

    def hold(model):
        if request.param:
            kept.extend(p.detach() for p in model.parameters())

    return hold


EVERY_CALL = [(method, call) for method in CLIMBING for call in range(ASCENTS.get(method, 3) + 1)]


@pytest.mark.parametrize(("method", "call"), EVERY_CALL)
def test_a_closure_that_raises_at_any_call_leaves_the_weights(method, call, alias):
    model = net()
    optimizer = METHODS[method](sgd(model))
    alias(model)
    train(optimizer, model, range(2))
    before, addresses = values(model), [p.data_ptr() for p in model.parameters()]
    with pytest.raises(Stop):
        optimizer.step(failing(closure_for(model, batch(2)), call, raising))
    assert same(values(model), before)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(p.grad is None for p in model.parameters())
    untouched = net()
    twin = METHODS[method](sgd(untouched))
    train(twin, untouched, range(4))
    train(optimizer, model, range(2, 4))
    if method in ONE_BASE_STEP:
        assert equal_states(snapshot(optimizer), snapshot(twin))
        assert same(values(model), values(untouched))
    elif call < 2:  # the base optimizer had not been stepped yet
        assert same(values(model), values(untouched))
    else:  # its momentum was, and is not put back: restore="weights"
        assert not same(values(model), values(untouched))


@pytest.mark.parametrize("make", [lb.LookbehindSAM, lb.SAM, lb.LookbehindASAM], ids=["lookbehind", "sam", "asam"])
@pytest.mark.parametrize(
    "base", [sgd, lambda m: torch.optim.AdamW(m.named_parameters(), lr=0.01)], ids=["sgd", "adamw"]
)
@pytest.mark.parametrize("steps", [0, 2])
def test_restore_all_puts_the_base_state_back(make, base, steps, alias):
    options = {} if make is lb.SAM else {"k": 3}
    model, twin_model = net(), net()
    optimizer = make(base(model), restore="all", **options)
    twin = make(base(twin_model), restore="all", **options)
    alias(model)
    train(optimizer, model, range(steps))
    train(twin, twin_model, range(steps))
    with pytest.raises(Stop):
        optimizer.step(failing(closure_for(model, batch(9)), 1 if make is lb.SAM else 3, raising))
    train(optimizer, model, range(steps, 5))
    train(twin, twin_model, range(steps, 5))
    assert same(values(model), values(twin_model))
    assert equal_states(snapshot(optimizer), snapshot(twin))


def test_an_error_inside_the_base_step_of_lookbehind_restores_the_weights():
    model = net()
    base = sgd(model)
    optimizer = lb.LookbehindSAM(base, k=3)
    before = values(model)
    calls = iter(range(9))

    def hook(*_):
        if next(calls) == 1:
            raise Stop

    handle = base.register_step_post_hook(hook)
    with pytest.raises(Stop):
        optimizer.step(closure_for(model, batch()))
    handle.remove()
    assert same(values(model), before)
    train(optimizer, model, range(1))


@pytest.mark.parametrize("failure", ["loss", "gradient"])
@pytest.mark.parametrize(("method", "call"), [(m, c) for m, c in EVERY_CALL if m in ("sam", "lookbehind-asam")])
def test_a_non_finite_loss_or_gradient_raises_and_restores(method, failure, call):
    model = net()
    optimizer = METHODS[method](sgd(model))
    before = values(model)

    def infinite_gradient(loss):
        next(model.parameters()).grad[0, 0] = float("inf")
        return loss

    with pytest.raises(lb.NonFiniteError, match=rf"evaluation {call + 1} of the step.*nonfinite="):
        optimizer.step(failing(closure_for(model, batch()), call, nan_loss if failure == "loss" else infinite_gradient))
    assert same(values(model), before)
    train(optimizer, model, range(1))
    assert not same(values(model), before)


def test_skip_counts_and_goes_on():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=2, nonfinite="skip", restore="all")
    before = values(model)
    loss = optimizer.step(failing(closure_for(model, batch()), 1, nan_loss))
    assert torch.isfinite(loss)  # the clean loss was fine
    assert (optimizer.skipped, optimizer.steps, optimizer.evaluations) == (1, 1, 2)
    assert optimizer.last.skipped
    assert same(values(model), before)
    optimizer.step(closure_for(model, batch()))
    assert (optimizer.skipped, optimizer.steps, optimizer.evaluations) == (1, 2, 5)
    assert not same(values(model), before)


def test_a_skipped_step_returns_its_loss_also_if_that_was_the_bad_one():
    model = net()
    optimizer = lb.SAM(sgd(model), nonfinite="skip")
    assert torch.isnan(optimizer.step(failing(closure_for(model, batch()), 0, nan_loss)))
    assert len(optimizer.last.losses) == 1


def test_propagate_lets_it_through():
    model = net()
    optimizer = lb.SAM(sgd(model), nonfinite="propagate")
    optimizer.step(failing(closure_for(model, batch()), 0, nan_loss))
    assert optimizer.last.loss != optimizer.last.loss


def test_the_buffers_of_normalisation_layers_are_restored_with_the_model_known():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=2, model=model)
    before = [b.clone() for b in model.buffers()]
    with pytest.raises(Stop):
        optimizer.step(failing(closure_for(model, batch()), 2, raising))
    assert same(list(model.buffers()), before)
    assert int(model[1].num_batches_tracked) == 0


def test_random_numbers_are_not_rewound_by_a_failure():
    for rng in ("fresh", "replay"):
        model = net(dropout=0.5)
        optimizer = lb.SAM(sgd(model), rng=rng)
        state = torch.get_rng_state()
        calls = iter(range(9))

        def closure(model=model, calls=calls):
            if next(calls) == 1:
                raise Stop  # before it has drawn anything
            return closure_for(model, batch())()

        with pytest.raises(Stop):
            optimizer.step(closure)
        assert not torch.equal(torch.get_rng_state(), state)


SOURCE = str(Path(lb.__file__).parent)


def lines_of(action, stop_at=None):
    """Run an action, count the lines of our own code that it runs, and interrupt it before one of them."""
    seen = 0

    def trace(frame, event, argument):
        nonlocal seen
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            if seen == stop_at:
                seen += 1
                raise KeyboardInterrupt
            seen += 1
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
    return seen


@pytest.mark.parametrize("restore", ["weights", "all"])
@pytest.mark.parametrize("method", ["sam", "lookbehind", "adaptive", "multistep-mean"])
def test_an_interrupt_at_any_line_finds_the_step_taken_or_not(method, restore, alias):
    def fresh():
        model = net()
        optimizer = METHODS[method](sgd(model))
        optimizer.restore = restore
        optimizer.k = min(optimizer.k, 2)  # with two ascent steps there are all kinds of lines
        alias(model)
        train(optimizer, model, range(1))
        return model, optimizer

    model, optimizer = fresh()
    before = values(model), snapshot(optimizer), 1
    lines = lines_of(lambda: optimizer.step(closure_for(model, batch(1))))
    after = values(model), snapshot(optimizer), 2
    assert lines > 200
    for line in range(0, lines, 11):
        model, optimizer = fresh()
        addresses = [p.data_ptr() for p in model.parameters()]
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda m=model, o=optimizer: o.step(closure_for(m, batch(1))), stop_at=line)
        assert torch.is_grad_enabled()
        assert [p.data_ptr() for p in model.parameters()] == addresses
        weights, state, steps = before if same(values(model), before[0]) else after
        assert same(values(model), weights)
        if restore == "all":
            assert equal_states(snapshot(optimizer), state)
        assert optimizer.steps == steps or 35 < lines - line < 60  # between the weights and their counter
        optimizer.zero_grad()
        train(optimizer, model, range(2, 3))
