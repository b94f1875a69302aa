"""What a step evaluates: switching, micro-batches, a given first pass, and the loop form."""

from __future__ import annotations

import pytest
import torch
from problems import CLIMBING, METHODS, after, batch, closure_for, loss_of, net, plain_step, same, sgd, train, values

import lookbehind as lb

# --- the loop form


def loop_step(optimizer, model, step):
    with optimizer.passes() as passes:
        for _ in passes:
            loss = loss_of(model, batch(step))
            loss.backward()
            passes.report(loss)
    return passes.loss


@pytest.mark.parametrize("method", CLIMBING)
def test_the_loop_is_the_step_bitwise(method):
    by_closure, with_closure = after(METHODS[method], plain_step)
    by_loop, with_loop = after(METHODS[method], loop_step)
    assert same(by_closure, by_loop)
    assert with_loop.evaluations == with_closure.evaluations
    assert with_loop.last.to_dict() == with_closure.last.to_dict()


def test_the_loop_tells_where_it_is_and_returns_the_clean_loss():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3)
    expected = loss_of(net(), batch()).item()
    seen = []
    with optimizer.passes() as passes:
        assert len(passes) == 4
        for this in passes:
            assert torch.is_grad_enabled()
            assert optimizer.climbing == this.climbing
            seen.append((this.number, this.point, this.climbing))
            loss = loss_of(model, batch())
            loss.backward()
            passes.report(loss)
    assert seen == [(0, 0, False), (1, 1, True), (2, 2, True), (3, 3, True)]
    assert passes.loss.item() == expected
    assert not optimizer.climbing


def test_the_loop_without_reported_losses_takes_the_same_step():
    def quiet(optimizer, model, step):
        with optimizer.passes() as passes:
            for _ in passes:
                loss_of(model, batch(step)).backward()
        assert passes.loss is None

    assert same(after(METHODS["lookbehind"], quiet)[0], after(METHODS["lookbehind"], plain_step)[0])


def leave_early(optimizer, model):
    with optimizer.passes() as passes:
        for this in passes:
            if this.number == 1:
                break
            loss_of(model, batch()).backward()


def raise_inside(optimizer, model):
    with optimizer.passes() as passes:
        for _ in passes:
            loss_of(model, batch()).backward()
            raise ZeroDivisionError("of the user")


def forget_backward(optimizer, model):
    with optimizer.passes() as passes:
        for _ in passes:
            loss_of(model, batch())


@pytest.mark.parametrize(
    ("loop", "error", "words"),
    [
        (leave_early, RuntimeError, "left after 1 of 4 passes: the weights are as before"),
        (raise_inside, ZeroDivisionError, "of the user"),
        (forget_backward, RuntimeError, "Call loss.backward"),
    ],
)
def test_a_loop_that_does_not_end_restores_the_weights(loop, error, words):
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3)
    before = values(model)
    with pytest.raises(error, match=words):
        loop(optimizer, model)
    assert same(values(model), before)
    assert optimizer.steps == 0
    loop_step(optimizer, model, 0)
    assert optimizer.steps == 1


def test_a_loop_is_one_step():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3)
    with optimizer.passes() as passes:
        for _ in passes:
            loss_of(model, batch()).backward()
    with pytest.raises(RuntimeError, match=r"call optimizer.passes\(\) again"):
        next(iter(passes))
    assert optimizer.steps == 1


# --- the first pass given


def given_step(optimizer, model, step):
    loss = loss_of(model, batch(step))
    loss.backward()
    returned = optimizer.step(lb.given(loss, closure_for(model, batch(step))))
    assert torch.equal(returned, loss)


@pytest.mark.parametrize("method", CLIMBING)
def test_a_given_first_pass_is_the_step_bitwise(method):
    by_closure, with_closure = after(METHODS[method], plain_step)
    by_given, with_given = after(METHODS[method], given_step)
    assert same(by_closure, by_given)
    assert with_given.evaluations == with_closure.evaluations  # the given gradient counts


def test_gradients_that_were_not_announced_are_refused():
    model = net()
    optimizer = lb.SAM(sgd(model))
    before = values(model)
    closure_for(model, batch())()
    with pytest.raises(RuntimeError, match=r"'0.weight' has a gradient before the step.*given\(loss, closure\)"):
        optimizer.step(closure_for(model, batch()))
    assert same(values(model), before)
    assert model[0].weight.grad is not None  # the user's gradients are not thrown away
    optimizer.zero_grad()
    optimizer.step(closure_for(model, batch()))


def test_a_closure_that_forgets_to_zero_the_gradients_is_no_accident():
    def forgetful(optimizer, model, step):
        def closure():
            loss = loss_of(model, batch(step))
            loss.backward()
            return loss

        optimizer.step(closure)

    assert same(after(METHODS["lookbehind"], forgetful)[0], after(METHODS["lookbehind"], plain_step)[0])


# --- bad input


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda c: None, TypeError, r"step\(\) without a closure"),
        (lambda c: 3, TypeError, r"step\(3\): give a closure"),
        (lambda c: [], ValueError, "one closure per ascent step"),
        (lambda c: lb.micro_batches(), ValueError, "at least one pair"),
        (lambda c: lb.micro_batches(c), TypeError, r"pairs \(size, closure\)"),
        (lambda c: lb.micro_batches((0, c)), ValueError, "size 0: give the number of examples"),
        (lambda c: lb.micro_batches((4, c), (4, lb.switching(c, c, c))), ValueError, "for all"),
        (lambda c: lb.given(1.0, lb.micro_batches((1, c))), TypeError, "cannot be combined"),
        (lambda c: lb.switching(lb.given(1.0, c)), TypeError, "cannot be combined"),
        (lambda c: lambda: None, TypeError, "returned None: return the loss"),
        (lambda c: c(), TypeError, "itself, not its result"),
        (lambda c: lambda: (c(), 1), TypeError, "returned a tuple"),
        (lambda c: lambda: "0.1" if c() else "", TypeError, "returned a str"),
        (lambda c: lambda: torch.ones(3), ValueError, r"tensor of shape \(3,\)"),
        (lambda c: lambda: torch.tensor(1.0), RuntimeError, "Call loss.backward"),
        (lambda c: lb.given(1.0, c), RuntimeError, "Call loss.backward"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(make, error, words):
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3)
    before = values(model)
    with pytest.raises(error, match=words):
        optimizer.step(make(closure_for(model, batch())))
    assert same(values(model), before)
    model.zero_grad()
    train(optimizer, model, range(1))


def test_the_values_are_callable_for_frameworks_but_not_plain_closures():
    value = lb.switching(lambda: 1.0)
    assert callable(value)
    with pytest.raises(TypeError, match="only the optimizers of lookbehind"):
        value()


def test_a_closure_that_runs_out_of_data_is_not_taken_for_the_end_of_the_step():
    model = net()
    optimizer = lb.SAM(sgd(model))
    before = values(model)
    with pytest.raises(StopIteration):
        optimizer.step(lambda: next(iter([])))
    assert same(values(model), before)
    assert optimizer.steps == 0


def test_a_step_inside_a_step_is_refused():
    model = net()
    optimizer = lb.SAM(sgd(model))
    with pytest.raises(RuntimeError, match="inside a step"):
        optimizer.step(lambda: optimizer.step(closure_for(model, batch())))
    train(optimizer, model, range(1))


def test_a_closure_that_returns_a_number_gets_one_back():
    model = net()
    optimizer = lb.SAM(sgd(model))
    loss = optimizer.step(lambda: closure_for(model, batch())().item())
    assert isinstance(loss, float)
    assert loss == loss_of(net(), batch()).item()
