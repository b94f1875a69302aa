"""Several minibatches in a step: a new one per ascent step, and micro-batches that climb on their own."""

from __future__ import annotations

import pytest
from problems import CLIMBING, METHODS, after, batch, closure_for, distance, loss_of, net, plain_step, same, sgd, values

import lookbehind as lb

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
