"""Reductions: what a method must become when one of its parts is taken away; and a trajectory worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import METHODS, batch, closure_for, distance, net, same, sgd, train, values

import lookbehind as lb
from lookbehind.optim.ascent import Leaf, Slope, asam, sam
from lookbehind.optim.descent import each, last, mean, repeat
from lookbehind.optim.interpolation import constant, none
from lookbehind.optim.weights import Scratch


def run(make, steps=4, **base):
    model = net()
    optimizer = make(sgd(model, **base)) if make else sgd(model, **base)
    train(optimizer, model, range(steps))
    return values(model)


def test_a_trajectory_worked_by_hand():
    """L(w) = w^2 / 2 for one weight, so g(w) = w; SGD with lr 0.1, rho = 0.5, k = 2, alpha = 0.5, from w = 1.

    Ascent:  g(1) = 1, point = 1 + 0.5 = 1.5; g(1.5) = 1.5, point = 1.5 + 0.5 = 2.
    Descent: fast = 1 - 0.1 * 1.5 = 0.85; fast = 0.85 - 0.1 * 2 = 0.65.
    Slow:    1 + 0.5 * (0.65 - 1) = 0.825.
    Second step: points 1.325 and 1.825; fast = 0.825 - 0.1325 - 0.1825 = 0.51; slow = 0.825 - 0.5 * 0.315 = 0.6675.
    Multistep from 1: 1 - 0.1 * 2 = 0.8. SAM: 1 - 0.1 * 1.5 = 0.85. Their mean: 1 - 0.1 * 1.75 = 0.825.
    """

    def trajectory(make, steps=1):
        weight = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        optimizer = make(torch.optim.SGD([weight], lr=0.1))
        losses = [optimizer.step(closure_for_square(weight)).item() for _ in range(steps)]
        return weight.item(), losses

    def closure_for_square(weight):
        def closure():
            weight.grad = None
            loss = weight.square() / 2
            loss.backward()
            return loss

        return closure

    weight, losses = trajectory(lambda base: lb.LookbehindSAM(base, rho=0.5, k=2, alpha=0.5), steps=2)
    assert weight == pytest.approx(0.6675, abs=1e-14)
    assert losses == pytest.approx([0.5, 0.825**2 / 2], abs=1e-14)
    assert trajectory(lambda base: lb.MultistepSAM(base, rho=0.5, k=2))[0] == pytest.approx(0.8, abs=1e-14)
    assert trajectory(lambda base: lb.SAM(base, rho=0.5))[0] == pytest.approx(0.85, abs=1e-14)
    averaged = trajectory(lambda base: lb.MultistepSAM(base, rho=0.5, k=2, average=True))[0]
    assert averaged == pytest.approx(0.825, abs=1e-14)
    # |w| = 1 and g = 1: T = 1.5, so the step is 0.5 * 1.5^2 / 1.5 = 0.75
    scaled = trajectory(lambda base: lb.ASAM(base, rho=0.5, eta=0.5, scale="all"))[0]
    assert scaled == pytest.approx(1 - 0.1 * 1.75, abs=1e-14)


@pytest.mark.parametrize("method", ["sam", "multistep"])
def test_rho_zero_with_descent_last_is_the_base_optimizer_bitwise(method):
    make = {"sam": lambda b: lb.SAM(b, rho=0.0), "multistep": lambda b: lb.MultistepSAM(b, rho=0.0, k=3)}[method]
    assert same(run(make), run(None))


def test_rho_zero_with_descent_each_is_k_base_steps_on_one_gradient():
    model = net()
    lb.LookbehindSAM(sgd(model), rho=0.0, k=3, alpha=1.0).step(closure_for(model, batch()))
    plain = net()
    base = sgd(plain)
    closure_for(plain, batch())()
    for _ in range(3):
        base.step()
    assert same(values(model), values(plain))


def test_k_one_makes_last_mean_each_and_repeat_agree_bitwise():
    results = [run(lambda b, d=d: lb.SharpnessAware(b, rho=0.1, k=1, descent=d)) for d in (last, mean, each, repeat)]
    assert all(same(results[0], other) for other in results[1:])


def test_lookbehind_with_k_one_and_alpha_one_is_sam_bitwise():
    sam_result = run(METHODS["sam"])
    assert same(run(lambda b: lb.LookbehindSAM(b, rho=0.1, k=1, alpha=1.0)), sam_result)
    assert distance(run(lambda b: lb.LookbehindSAM(b, rho=0.1, k=1, alpha="adaptive")), sam_result) < 1e-14
    assert same(run(lambda b: lb.MultistepSAM(b, rho=0.1, k=1)), sam_result)


def test_alpha_zero_leaves_the_weights_bitwise():
    assert same(run(lambda b: lb.LookbehindSAM(b, rho=0.1, k=3, alpha=0.0)), values(net()))


def test_without_momentum_alpha_one_over_k_is_multistep_with_the_mean_gradient():
    lookbehind = run(lambda b: lb.LookbehindSAM(b, rho=0.1, k=4, alpha=0.25), momentum=0.0)
    multistep = run(lambda b: lb.MultistepSAM(b, rho=0.1, k=4, average=True), momentum=0.0)
    assert distance(lookbehind, multistep) < 1e-14


def test_asam_that_scales_nothing_is_sam_bitwise():
    assert same(run(lambda b: lb.ASAM(b, rho=0.1, scale=lambda name, p: False)), run(METHODS["sam"]))


def test_lookahead_with_alpha_one_is_its_base_bitwise():
    assert same(run(lambda b: lb.Lookahead(b, k=2, alpha=1.0)), run(None))
    assert same(run(lambda b: lb.Lookahead(METHODS["sam"](b), k=2, alpha=1.0)), run(METHODS["sam"]))


def test_the_repeat_control_takes_k_base_steps_on_the_gradient_of_sam():
    model, plain = net(), net()
    optimizer = lb.SharpnessAware(sgd(model), rho=0.1, k=3, descent=repeat, interpolation=constant(0.5))
    optimizer.step(closure_for(model, batch()))
    assert optimizer.evaluations == 2
    before = values(plain)
    base = sgd(plain)
    lb.SAM(base, rho=0.1).step(closure_for(plain, batch()))
    gradient = [(a - b) / 0.1 for a, b in zip(before, values(plain), strict=True)]
    for _ in range(2):
        for parameter, value in zip(plain.parameters(), gradient, strict=True):
            parameter.grad = value.clone()
        base.step()
    expected = [a + 0.5 * (b - a) for a, b in zip(before, values(plain), strict=True)]
    assert distance(values(model), expected) < 1e-14


def test_a_descent_of_ones_own_is_a_line():
    halves = run(lambda b: lb.SharpnessAware(b, rho=0.1, k=2, descent=lambda k: [{1: 0.5, 2: 0.5}]))
    assert distance(halves, run(lambda b: lb.MultistepSAM(b, rho=0.1, k=2, average=True))) < 1e-15


def test_the_order_of_a_plan_holds_whatever_the_order_of_its_gradients():
    def gradients(rows):
        model = net()
        base = torch.optim.SGD(model.named_parameters(), lr=0.1)
        taken = []
        base.register_step_pre_hook(lambda *_: taken.append([p.grad.clone() for p in model.parameters()]))
        optimizer = lb.SharpnessAware(base, rho=0.1, k=2, descent=lambda k: rows, interpolation=none)
        optimizer.step(closure_for(model, batch(0)))
        return taken

    first, second = gradients([{1: 1.0}, {2: 1.0}])
    assert not same(first, second)
    found = gradients([{2: 1.0}, {1: 1.0}, {2: 1.0}])
    assert all(same(one, other) for one, other in zip(found, (second, first, second), strict=True))


@pytest.mark.parametrize("eta", [0.0, 0.01])
@pytest.mark.parametrize("make", [lb.ASAM, lb.LookbehindASAM], ids=["asam", "lookbehind-asam"])
def test_asam_has_the_same_bits_where_there_is_no_room_for_its_products(make, eta):
    """``T g`` waits in the memory of the point, or is computed twice where weights are written in place."""
    ends = []
    for alias in (False, True):
        model = net(torch.float32)
        views = [p.detach() for p in model.parameters()] if alias else []
        optimizer = make(sgd(model), rho=0.7, eta=eta, scale="all")
        for number in range(3):
            optimizer.step(closure_for(model, batch(number, dtype=torch.float32)))
        ends.append(values(model))
        del views  # they had to live until here
    assert same(*ends)


@pytest.mark.parametrize("alias", [False, True])
def test_a_base_step_may_come_before_the_climb(alias):
    """Rows may use the clean gradient: fast weights that begin with a plain step."""
    model, plain = net(), net()
    views = [p.detach() for p in model.parameters()] if alias else []
    lb.SharpnessAware(sgd(model), rho=0.1, k=1, descent=lambda k: [{0: 1.0}, {1: 1.0}]).step(
        closure_for(model, batch())
    )
    gradients = []

    def noting():
        loss = closure_for(plain, batch())()
        gradients.append([p.grad.clone() for p in plain.parameters()])
        return loss

    lb.SharpnessAware(sgd(plain), rho=0.1, interpolation=constant(0.0)).step(noting)
    base = sgd(plain)
    for gradient in gradients:
        for parameter, value in zip(plain.parameters(), gradient, strict=True):
            parameter.grad = value
        base.step()
    del views  # they had to live until here
    assert same(values(model), values(plain))


@settings(max_examples=60, deadline=None)
@given(
    rho=st.floats(1e-3, 10),
    eta=st.floats(0.01, 1),
    scale=st.sampled_from(["all", "dimensions", "none"]),
    seed=st.integers(0, 10**6),
    sign=st.sampled_from([1.0, -1.0]),
    kept=st.booleans(),
)
def test_the_ascent_step_has_scaled_length_rho_and_climbs(rho, eta, scale, seed, sign, kept):
    """|e / T| = rho, and g . e = sign * rho * |T g|: the linearised loss is maximised over the ellipsoid."""
    torch.manual_seed(seed)
    weights = [torch.randn(3, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]
    gradients = [torch.randn_like(w) for w in weights]
    rule = sam if scale == "none" else asam(eta=eta, scale=scale)
    leaves = [Leaf(w, None, rho, None, sign) for w in weights]
    points = [torch.empty_like(w) for w in weights]
    products = [*points] if kept else [None] * len(leaves)  # T g may wait in the memory that the points will have
    slope = Slope(rule, leaves, weights, weights, gradients, Scratch())
    reach = slope.scaled_norm([g.norm() for g in gradients], products)
    slope.ascend(reach, products, out=points)
    climb = [p - w for p, w in zip(points, weights, strict=True)]
    scaling = [
        w.abs() + eta if scale == "all" or (scale == "dimensions" and w.dim() > 1) else torch.ones_like(w)
        for w in weights
    ]
    scaled = math.sqrt(sum(float((e / t).square().sum()) for e, t in zip(climb, scaling, strict=True)))
    assert scaled == pytest.approx(rho, rel=1e-9)
    gain = sum(float((g * e).sum()) for g, e in zip(gradients, climb, strict=True))
    assert gain == pytest.approx(sign * rho * float(reach), rel=1e-9)


def test_zero_gradients_give_zero_perturbation():
    model = net(torch.float32, batchnorm=False)
    before = values(model)
    seen = []

    def closure():
        model.zero_grad()
        loss = sum(p.sum() * 0.0 for p in model.parameters())
        loss.backward()
        seen.append(values(model))
        return loss

    lb.LookbehindASAM(sgd(model), rho=10.0, k=2).step(closure)
    assert len(seen) == 3
    assert all(same(point, before) for point in seen)
    assert same(values(model), before)


def test_a_scaling_that_a_rule_keeps_is_never_written_into_and_its_signs_do_not_matter():
    kept = {}

    def ramp(like):
        return torch.linspace(0.5, 2, like.numel(), dtype=torch.float64).view_as(like)

    def method(sign):
        def rule(leaf, slow, point, room):
            return kept.setdefault((leaf.name, sign), sign * ramp(slow))

        return lambda base: lb.SharpnessAware(base, rho=0.1, k=2, descent=each, ascent=rule)

    scaled = run(method(1))
    assert same(scaled, run(method(-1)))
    assert distance(scaled, run(lambda base: lb.SharpnessAware(base, rho=0.1, k=2, descent=each))) > 1e-4
    assert len(kept) > 2
    assert all(torch.equal(scaling, sign * ramp(scaling)) for (_, sign), scaling in kept.items())
