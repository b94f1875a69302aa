"""Options of the constructor: running statistics, random numbers, reach, averaging, schedule, diagnostics."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from problems import METHODS, batch, closure_for, distance, loss_of, net, same, sgd, train, values
from torch import nn

import lookbehind as lb
from lookbehind.optim.ascent import asam
from lookbehind.optim.descent import mean_with_clean
from lookbehind.optim.interpolation import constant

# --- running statistics


def statistics_after(optimizer_of, steps=2):
    model = net()
    optimizer = optimizer_of(model)
    train(optimizer, model, range(steps))
    return model[1]


def test_batchnorm_all_updates_on_every_pass_and_first_only_on_the_clean_one():
    everything = statistics_after(lambda m: lb.LookbehindSAM(sgd(m), k=3, model=m))
    assert int(everything.num_batches_tracked) == 2 * 4
    first = statistics_after(lambda m: lb.LookbehindSAM(sgd(m), k=3, model=m, batchnorm="first"))
    assert int(first.num_batches_tracked) == 2
    # what a plain forward pass at the same weights would have recorded
    model = net()
    lb.LookbehindSAM(sgd(model), k=3, model=model, batchnorm="first").step(closure_for(model, batch(0)))
    plain = net()
    plain(batch(0)[0])
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert torch.equal(model[1].running_var, plain[1].running_var)


def test_batchnorm_first_does_not_change_the_weights():
    results = []
    for batchnorm in ("all", "first"):
        model = net()
        train(lb.LookbehindSAM(sgd(model), k=3, model=model, batchnorm=batchnorm), model, range(3))
        results.append(values(model))
    assert same(*results)


class OwnNorm(nn.Module):
    """Keeps statistics under a name of its own, and puts new tensors in the buffer's place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_scale", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.running_scale = self.running_scale + x.detach().abs().mean()
        return x / (1 + self.running_scale)


NORMS = {
    "batch": lambda: nn.BatchNorm1d(4),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "instance": lambda: nn.InstanceNorm1d(4, track_running_stats=True),
    "lazy": lambda: nn.LazyBatchNorm1d(),
    "own": OwnNorm,
}


@pytest.mark.parametrize("kind", NORMS)
def test_statistics_are_held_whatever_the_class(kind):
    model = nn.Sequential(nn.Linear(5, 5), NORMS[kind]())
    inputs = torch.randn(6, 4, 5)
    model(inputs)
    before = {name: b.clone() for name, b in model.named_buffers()}
    with lb.held_statistics(model):
        with lb.held_statistics(model):  # re-entrant
            model(inputs + 5)
        model(inputs - 5)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    model(inputs + 5)  # and afterwards they move again
    assert not all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_statistics_are_held_through_an_exception():
    model = net()
    before = model[1].running_mean.clone()
    with pytest.raises(ZeroDivisionError), lb.held_statistics(model):
        raise (model(batch()[0]), ZeroDivisionError())[1]
    assert torch.equal(model[1].running_mean, before)


# --- random numbers


def masks_seen(rng, evaluate=lambda c: c, k=3):
    model = net(dropout=0.5)
    masks = []
    model[3].register_forward_hook(lambda _, __, out: masks.append(out == 0))
    optimizer = lb.LookbehindSAM(sgd(model), rho=0.01, k=k, rng=rng)
    torch.manual_seed(1)
    optimizer.step(evaluate(closure_for(model, batch())))
    return masks, torch.rand(1)


def test_replay_repeats_the_dropout_masks_within_a_step_and_fresh_does_not():
    masks, following = masks_seen("replay")
    assert len(masks) == 4
    assert all(torch.equal(mask, masks[0]) for mask in masks[1:])
    # the random numbers then go on as after one evaluation
    model = net(dropout=0.5)
    torch.manual_seed(1)
    model(batch()[0])
    assert torch.equal(following, torch.rand(1))
    fresh, _ = masks_seen("fresh")
    assert not any(torch.equal(mask, fresh[0]) for mask in fresh[1:])


def test_replay_with_several_minibatches_repeats_each_ones_own():
    masks, _ = masks_seen("replay", lambda c: [c, c, c])
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[2], masks[3])
    assert not torch.equal(masks[1], masks[2])
    masks, _ = masks_seen("replay", lambda c: lb.micro_batches((1, c), (1, c)), k=1)
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[2], masks[3])
    assert not torch.equal(masks[0], masks[2])


def test_replay_needs_the_first_pass():
    model = net(dropout=0.5)
    optimizer = lb.SAM(sgd(model), rng="replay")
    loss = closure_for(model, batch())()
    with pytest.raises(ValueError, match="rng='replay' with given"):
        optimizer.step(lb.given(loss, closure_for(model, batch())))


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


def test_the_diagnostics_of_the_last_step():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), rho=0.1, k=3, alpha="adaptive")
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
