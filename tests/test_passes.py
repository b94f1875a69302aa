"""What a step evaluates: switching, micro-batches, a given first pass, and the loop form."""

from __future__ import annotations

import pytest
import torch
from problems import METHODS, batch, closure_for, distance, loss_of, net, same, sgd, train, values

import lookbehind as lb

CLIMBING = [name for name in METHODS if name not in ("lookahead",)]


def after(make, act, steps=3):
    """The weights after some steps, where ``act`` takes one."""
    model = net()
    optimizer = make(sgd(model))
    for step in range(steps):
        act(optimizer, model, step)
    return values(model), optimizer


def plain_step(optimizer, model, step):
    return optimizer.step(closure_for(model, batch(step)))


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


# --- switching minibatches


def switching_step(optimizer, model, step):
    closures = [closure_for(model, batch(10 * step + i)) for i in range(3)]
    optimizer.step(closures if step % 2 else lb.switching(*closures))


def test_switching_takes_2k_evaluations_each_minibatch_twice_in_order():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3)
    order = []

    def noting(i):
        def closure():
            order.append((i, optimizer.climbing))
            return closure_for(model, batch(i))()

        return closure

    loss = optimizer.step([noting(0), noting(1), noting(2)])
    assert order == [(0, False), (0, True), (1, True), (1, True), (2, True), (2, True)]
    assert optimizer.evaluations == 6
    assert loss.item() == loss_of(net(), batch(0)).item()
    assert len(optimizer.last.losses) == 4


def test_switching_between_equal_minibatches_is_the_plain_step():
    def equal(optimizer, model, step):
        optimizer.step([closure_for(model, batch(step))] * 3)

    for method in ("lookbehind", "multistep-mean", "adaptive"):
        assert same(after(METHODS[method], equal)[0], after(METHODS[method], plain_step)[0])


def test_switching_in_the_loop_form():
    def loop(optimizer, model, step):
        with optimizer.passes(switching=True) as passes:
            assert len(passes) == 6
            for this in passes:
                loss_of(model, batch(10 * step + this.minibatch)).backward()

    assert same(after(METHODS["lookbehind"], switching_step)[0], after(METHODS["lookbehind"], loop)[0])


def test_a_wrong_number_of_minibatches_is_an_error_that_counts():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3)
    assert optimizer.ascents == 3
    with pytest.raises(ValueError, match="with 2 closures: this step takes 3 ascent steps, so give 3"):
        optimizer.step([closure_for(model, batch())] * 2)
    lazy = lb.LookbehindSAM(sgd(model), k=3, schedule=lb.Schedule(start=1))
    assert lazy.ascents == 0
    with pytest.raises(ValueError, match="takes 0 ascent steps, so give 1"):
        lazy.step([closure_for(model, batch())] * 3)
    lazy.step([closure_for(model, batch())])
    assert (lazy.evaluations, lazy.ascents) == (1, 3)


# --- micro-batches


def halves(step):
    inputs, targets = batch(step)
    return (inputs[:8], targets[:8]), (inputs[8:], targets[8:])


@pytest.mark.parametrize("method", CLIMBING)
def test_one_micro_batch_is_the_plain_step_bitwise(method):
    def single(optimizer, model, step):
        optimizer.step(lb.micro_batches((12, closure_for(model, batch(step)))))

    assert same(after(METHODS[method], single)[0], after(METHODS[method], plain_step)[0])


@pytest.mark.parametrize("method", CLIMBING)
def test_without_a_climb_micro_batches_are_gradient_accumulation(method):
    """With rho = 0 every chain stays where it is, so the averaged gradients are those of the whole batch."""

    def run(act):
        model = net(batchnorm=False)
        optimizer = METHODS[method](sgd(model))
        inner = optimizer.base if method == "lookahead-lookbehind" else optimizer
        inner.rho = 0.0
        for step in range(3):
            act(optimizer, model, step)
        return values(model)

    def micro(optimizer, model, step):
        first, second = halves(step)
        optimizer.step(lb.micro_batches((8, closure_for(model, first)), (4, closure_for(model, second))))

    assert distance(run(micro), run(plain_step)) < 1e-14


def test_micro_batches_in_the_loop_form_and_their_diagnostics():
    def by_closures(optimizer, model, step):
        first, second = halves(step)
        optimizer.step(lb.micro_batches((8, closure_for(model, first)), (4, closure_for(model, second))))

    def by_loop(optimizer, model, step):
        with optimizer.passes(micro_batches=[8, 4]) as passes:
            for this in passes:
                loss = loss_of(model, halves(step)[this.micro_batch])
                loss.backward()
                passes.report(loss)

    weights, optimizer = after(METHODS["lookbehind"], by_closures)
    loop_weights, loop_optimizer = after(METHODS["lookbehind"], by_loop)
    assert same(weights, loop_weights)
    assert optimizer.last.to_dict() == loop_optimizer.last.to_dict()
    assert optimizer.last.evaluations == 8
    model = net()
    one = METHODS["lookbehind"](sgd(model))
    by_closures(one, model, 0)
    first, second = halves(0)
    expected = (8 * loss_of(net(), first) + 4 * loss_of(net(), second)) / 12
    assert one.last.loss == pytest.approx(expected.item(), abs=1e-15)


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
