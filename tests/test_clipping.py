"""Gradient clipping and gradient accumulation: as torch does them, and as one minibatch."""

from __future__ import annotations

import pytest
from problems import CLIMBING, METHODS, batch, closure_for, distance, loss_of, net, same, sgd, train, values
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import lookbehind as lb
from lookbehind.optim.descent import mean


@pytest.mark.parametrize("method", CLIMBING)
def test_every_gradient_of_a_base_step_is_clipped_as_torch_does_it(method):
    """A base optimizer that clips by itself is the same."""

    def clipping(model, clip):
        base = sgd(model)
        step = base.step

        def clipped():
            clip(list(model.parameters()))
            step()

        base.step = clipped
        return base

    for clip, ours in (
        (lambda p: clip_grad_norm_(p, 0.3), lb.clip_norm(0.3)),
        (lambda p: clip_grad_value_(p, 0.05), lb.clip_value(0.05)),
    ):
        model, twin = net(), net()
        expected = METHODS[method](clipping(twin, clip))
        optimizer = METHODS[method](sgd(model))
        (optimizer if hasattr(optimizer, "clip") else optimizer.base).clip = ours
        train(optimizer, model, range(3))
        train(expected, twin, range(3))
        assert same(values(model), values(twin))
        unclipped = net()
        train(METHODS[method](sgd(unclipped)), unclipped, range(3))
        assert not same(values(model), values(unclipped))


@pytest.mark.parametrize("ours", [lb.clip_norm(0.3, ascent=True), lb.clip_value(0.05, ascent=True)])
def test_every_evaluated_gradient_may_be_clipped(ours):
    """As a closure that clips by itself."""
    model, twin = net(), net()
    optimizer = lb.SharpnessAware(sgd(model), rho=0.1, k=3, descent=mean, clip=ours)
    expected = lb.SharpnessAware(sgd(twin), rho=0.1, k=3, descent=mean)
    for step in range(3):
        optimizer.step(closure_for(model, batch(step)))

        def closure(step=step):
            loss = closure_for(twin, batch(step))()
            if isinstance(ours, lb.clip_norm):
                clip_grad_norm_(twin.parameters(), 0.3)
            else:
                clip_grad_value_(twin.parameters(), 0.05)
            return loss

        expected.step(closure)
    assert same(values(model), values(twin))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lb.clip_norm(0.0), "max_norm=0.0: give a number above 0"),
        (lambda: lb.clip_value(-1.0), "limit=-1.0: give a number above 0"),
        (lambda: lb.SAM(sgd(net()), clip=1.0), r"clip=1.0: give clip=lookbehind.clip_norm\(1.0\)"),
    ],
)
def test_wrong_clipping_is_told(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


# --- accumulation


@pytest.mark.parametrize("method", METHODS)
def test_accumulated_micro_batches_are_one_minibatch(method):
    whole, parted = net(batchnorm=False), net(batchnorm=False)
    one, two = METHODS[method](sgd(whole)), METHODS[method](sgd(parted))
    for step in range(3):
        inputs, targets = batch(step)
        parts = [(inputs[:5], targets[:5]), (inputs[5:9], targets[5:9]), (inputs[9:], targets[9:])]
        closure = lb.accumulated(lambda part: loss_of(parted, part), parts, sizes=[5, 4, 3])
        loss = two.step(closure)
        whole.zero_grad()
        expected = one.step(closure_for(whole, (inputs, targets))).detach()
        assert float(loss) == pytest.approx(float(expected), rel=1e-14)
        assert distance(values(whole), values(parted)) < 1e-14


def test_wrong_accumulation_is_told():
    with pytest.raises(ValueError, match="at least one micro-batch"):
        lb.accumulated(loss_of, [])
    with pytest.raises(ValueError, match="one for each of the 2 micro-batches"):
        lb.accumulated(loss_of, [1, 2], sizes=[3])
    with pytest.raises(ValueError, match="above 0"):
        lb.accumulated(loss_of, [1, 2], sizes=[3, 0])


@pytest.mark.parametrize("clip", [lb.clip_value(0.5, ascent=True), lb.clip_norm(0.5, ascent=True), lb.clip_value(0.5)])
@pytest.mark.parametrize("bad", [0, 1])
def test_clipping_does_not_hide_an_infinite_gradient(clip, bad):
    """Cut to a limit it would look like any other."""
    model = net()
    optimizer, before = lb.SAM(sgd(model), clip=clip), values(model)
    calls = iter(range(2))

    def closure():
        loss = closure_for(model, batch(0))()
        if next(calls) == bad:
            next(model.parameters()).grad[0] = float("inf")
        return loss

    with pytest.raises(lb.NonFiniteError, match=f"evaluation {bad + 1}"):
        optimizer.step(closure)
    assert same(values(model), before)
