"""Running statistics and random numbers: what a perturbed pass may change, and what it repeats."""

from __future__ import annotations

import pytest
import torch
from problems import batch, closure_for, net, same, sgd, train, values
from torch import nn

import lookbehind as lb

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
