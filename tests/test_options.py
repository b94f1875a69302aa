"""Options of the constructor: reach, averaging, scaling, schedule; and the diagnostics."""

from __future__ import annotations

import copy
from inspect import signature
from itertools import pairwise

import pytest
import torch
from problems import METHODS, batch, closure_for, distance, loss_of, net, same, sgd, train, values

import lookbehind as lb
from lookbehind.optim.ascent import asam
from lookbehind.optim.descent import mean_with_clean
from lookbehind.optim.interpolation import constant
from lookbehind.optim.methods import Options

# --- reach, averaging, T


def reach_of(optimizer, model):
    points = []

    def closure():
        points.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        return closure_for(model, batch())()

    optimizer.step(closure)
    return [float((b - a).norm()) for a, b in pairwise(points)], points


def test_every_ascent_step_has_size_rho_or_all_of_them_together():
    model = net(batchnorm=False)
    sizes, _ = reach_of(lb.MultistepSAM(sgd(model), rho=0.3, k=3), model)
    assert sizes == pytest.approx([0.3] * 3)
    sizes, points = reach_of(lb.MultistepSAM(sgd(model), rho=0.3, k=3, reach="total"), model)
    assert sizes == pytest.approx([0.1] * 3)
    assert float((points[-1] - points[0]).norm()) <= 0.3 + 1e-12


def test_the_average_may_include_the_clean_gradient():
    model, twin = net(), net()
    lb.MultistepSAM(sgd(model), rho=0.1, k=2, average="with-clean").step(closure_for(model, batch()))
    gradients = []

    def noting():
        loss = closure_for(twin, batch())()
        gradients.append([p.grad.clone() for p in twin.parameters()])
        return loss

    start = values(twin)
    lb.MultistepSAM(sgd(twin), rho=0.1, k=2).step(noting)
    expected = [w - 0.1 * sum(g) / 3 for w, *g in zip(start, *gradients, strict=True)]
    assert distance(values(model), expected) < 1e-15


def test_the_scaling_may_be_taken_at_the_slow_point():
    model = net(batchnorm=False)
    slow = torch.cat([p.detach().flatten() for p in model.parameters()])
    parameters, gradients = [], []

    def closure():
        parameters.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        loss = closure_for(model, batch())()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        return loss

    lb.LookbehindASAM(sgd(model), rho=0.5, eta=0.1, k=2, scale="all", at="slow").step(closure)
    scaling = slow.abs() + 0.1
    step = 0.5 * scaling.square() * gradients[1] / (scaling * gradients[1]).norm()
    assert torch.allclose(parameters[2] - parameters[1], step, atol=1e-14)


# --- schedule


def evaluations_per_step(optimizer, model, steps):
    counts = []
    for step in range(steps):
        before = optimizer.evaluations
        train(optimizer, model, range(step, step + 1))
        counts.append(optimizer.evaluations - before)
    return counts


@pytest.mark.parametrize(
    ("schedule", "counts"),
    [
        (lb.Schedule(), [4] * 8),
        (lb.Schedule(start=2), [1, 1, 4, 4, 4, 4, 4, 4]),
        (lb.Schedule(stop=3), [4, 4, 4, 1, 1, 1, 1, 1]),
        (lb.Schedule(every=3), [4, 1, 1, 4, 1, 1, 4, 1]),
        (lb.Schedule(start=1, stop=6, every=2), [1, 4, 1, 4, 1, 4, 1, 1]),
        (lb.Schedule(k=lb.piecewise({0: 1, 3: 0, 5: 2})), [2, 2, 2, 1, 1, 3, 3, 3]),
    ],
)
def test_when_to_climb(schedule, counts):
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=3, schedule=schedule)
    assert evaluations_per_step(optimizer, model, 8) == counts
    # saved and loaded in the middle, it goes on
    half_model = net()
    half = lb.LookbehindSAM(sgd(half_model), k=3, schedule=schedule)
    train(half, half_model, range(4))
    rest = lb.LookbehindSAM(sgd(half_model), k=3, schedule=schedule)
    rest.load_state_dict(copy.deepcopy(half.state_dict()))
    assert rest.steps == 4
    train(rest, half_model, range(4, 8))
    assert same(values(half_model), values(model))


@pytest.mark.parametrize("method", [m for m in METHODS if "look" not in m or m == "lookbehind"])
def test_a_step_that_does_not_climb_is_a_plain_base_step_bitwise(method):
    model, plain = net(), net()
    optimizer = METHODS[method](sgd(model))
    optimizer.schedule = lb.Schedule(start=100)
    train(optimizer, model, range(3))
    train(sgd(plain), plain, range(3))
    assert same(values(model), values(plain))
    assert optimizer.evaluations == 3
    assert optimizer.last.ascents == 0
    assert len(optimizer.last.losses) == 1


def test_rho_over_time_is_a_factor_on_every_radius():
    model = net(batchnorm=False)
    optimizer = lb.SAM(sgd(model), rho=0.4, schedule=lb.Schedule(rho=lb.linear(0.0, 1.0, steps=4)))
    sizes = [reach_of(optimizer, model)[0][0] for _ in range(6)]
    assert sizes == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4])


# --- diagnostics


def test_losses_and_norms_of_micro_batches_are_weighted_by_their_sizes():
    model = net(batchnorm=False)
    optimizer = lb.SAM(sgd(model), rho=0.1)
    seen = []

    def part(rows):
        def closure():
            inputs, labels = batch()
            loss = closure_for(model, (inputs[rows], labels[rows]))()
            seen.append((loss.item(), float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())))
            return loss

        return closure

    optimizer.step(lb.micro_batches((3, part(slice(0, 3))), (9, part(slice(3, 12)))))
    first, second = seen[:2], seen[2:]  # of the one chain and of the other
    assert first != second
    for number, name in enumerate(("losses", "gradient_norms")):
        expected = [0.25 * one[number] + 0.75 * other[number] for one, other in zip(first, second, strict=True)]
        assert getattr(optimizer.last, name) == pytest.approx(expected)


def test_the_diagnostics_of_the_last_step():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), rho=0.1, k=3, alpha="adaptive", cosine="climb")
    assert optimizer.last is None
    losses, gradients, points = [], [], []

    def closure():
        points.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        loss = closure_for(model, batch())()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        return loss

    optimizer.step(closure)
    last = optimizer.last
    assert last.losses == tuple(losses)
    assert last.loss == losses[0] < losses[3]
    assert last.gradient_norms == pytest.approx([float(g.norm()) for g in gradients])
    climb = points[3] - points[0]
    assert last.cosine == pytest.approx(float(climb @ gradients[3] / climb.norm() / gradients[3].norm()))
    assert 0 < last.alpha < 1
    assert last.evaluations == 4
    assert set(last.to_dict()) >= {"loss", "losses", "gradient_norms", "alpha", "cosine", "evaluations"}
    optimizer.cosine = "gradients"
    gradients.clear()
    optimizer.step(closure)
    expected = float(gradients[0] @ gradients[3] / gradients[0].norm() / gradients[3].norm())
    assert optimizer.last.cosine == pytest.approx(expected)
    optimizer.cosine = "none"
    optimizer.step(closure)
    assert optimizer.last.cosine is None


def test_alpha_per_tensor_is_one_number_each():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), rho=0.1, k=3, alpha="adaptive-per-tensor")
    train(optimizer, model, range(2))
    assert len(optimizer.last.alpha) == 5
    assert all(0 <= alpha <= 1 for alpha in optimizer.last.alpha)


def test_climbing_is_true_exactly_at_perturbed_points():
    model = net()
    optimizer = lb.Lookahead(lb.LookbehindSAM(sgd(model), k=2))
    seen = []

    def closure():
        seen.append(optimizer.climbing)
        return closure_for(model, batch())()

    optimizer.step(closure)
    assert seen == [False, True, True]
    assert not optimizer.climbing


def test_the_returned_loss_is_that_of_the_unperturbed_weights():
    for make in METHODS.values():
        model = net()
        optimizer = make(sgd(model))
        for step in range(3):
            expected = loss_of(copy.deepcopy(model), batch(step)).item()
            assert optimizer.step(closure_for(model, batch(step))).item() == expected


def test_parts_are_values_that_compose():
    model = net()
    optimizer = lb.SharpnessAware(
        sgd(model),
        rho=0.5,
        k=2,
        ascent=asam(eta=0.1, at="slow"),
        descent=mean_with_clean,
        interpolation=constant(0.5),
    )
    train(optimizer, model, range(2))
    assert optimizer.evaluations == 6
    assert optimizer.last.alpha == 0.5
    assert "asam(eta=0.1, scale=auto, at=slow), descent=mean_with_clean, interpolation=constant(alpha=0.5)" in repr(
        optimizer
    )


def test_options_stand_in_three_places_alike():
    """In the optimizer, in what the named methods take, and in what is printed and a saved state compared by."""
    parts = {"base", "rho", "k", "ascent", "descent", "interpolation"}
    every = set(signature(lb.SharpnessAware).parameters) - parts
    assert set(Options.__annotations__) == every
    compared = set(lb.SAM(sgd(net()))._settings())
    assert compared & every == every - {"model", "nonfinite", "restore", "cosine", "scaler", "offload"}
