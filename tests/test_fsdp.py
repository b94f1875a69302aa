"""Sharded parameters (FSDP2): two ranks equal one process, weights come back, checkpoints move between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from problems import CLIMBING, METHODS, OLD_TORCH, batch, closure_for, distance, loss_of, net, same, sgd, values
from ranks import Ranks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import lookbehind as lb

pytestmark = pytest.mark.skipif(OLD_TORCH, reason="FSDP2 on the CPU needs torch 2.7")

POLICIES = {
    "plain": lambda: {},
    "bf16": lambda: {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
    "offload": lambda: {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "kept": lambda: {"reshard_after_forward": False},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pair = Ranks(2, str(tmp_path_factory.mktemp("ranks") / "init"))
    yield pair
    pair.stop()


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    one = Ranks(1, str(tmp_path_factory.mktemp("rank") / "init"))
    yield one
    one.stop()


def sharded(policy="plain", dtype=torch.float64):
    model = net(dtype, batchnorm=False)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in (model[0], model[3], model):
        fully_shard(part, mesh=mesh, **POLICIES[policy]())
    return model


def whole(model):
    for part in (model[0], model[3], model):
        part.reshard()
    return [p.detach().full_tensor().clone() for p in model.parameters()]


def mine(rank, step, dtype=torch.float64):
    inputs, targets = batch(step, dtype=dtype)
    size = 12 // torch.distributed.get_world_size()
    return inputs[size * rank : size * rank + size], targets[size * rank : size * rank + size]


def trained(rank, method, policy, dtype, steps=4, options=()):
    model = sharded(policy, dtype)
    optimizer = METHODS[method](sgd(model))
    optimizer.cosine = "climb"
    for name, value in options:
        setattr(optimizer, name, value)
    if policy == "kept":
        optimizer.model = model
        for part in (model[0], model[3], model):
            part.set_reshard_after_backward(False)
    for step in range(steps):
        optimizer.step(closure_for(model, mine(rank, step, dtype)))
        optimizer.zero_grad()
    last = getattr(optimizer, "last", None)
    return whole(model), None if last is None else last.cosine


def expected(method, dtype=torch.float64, steps=4, options=()):
    model = net(dtype, batchnorm=False)
    optimizer = METHODS[method](sgd(model))
    optimizer.cosine = "climb"
    for name, value in options:
        setattr(optimizer, name, value)
    for step in range(steps):
        optimizer.step(closure_for(model, batch(step, dtype=dtype)))
        model.zero_grad()
    last = getattr(optimizer, "last", None)
    return values(model), None if last is None else last.cosine


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_with_sharded_parameters_equal_one_process(ranks, method):
    (weights, cosine), (others, _) = ranks.run(trained, method, "plain", torch.float64)
    assert same(weights, others)
    reference, reference_cosine = expected(method)
    assert distance(weights, reference) < 1e-14
    if not method.startswith("lookahead"):
        assert cosine == pytest.approx(reference_cosine, abs=1e-12)


@pytest.mark.parametrize("method", ["sam", "lookbehind", "adaptive"])
@pytest.mark.parametrize("policy", ["offload", "kept", "bf16"])
def test_policies_of_fsdp_do_not_change_the_method(ranks, method, policy):
    dtype = torch.float32 if policy == "bf16" else torch.float64
    (weights, _), _ = ranks.run(trained, method, policy, dtype)
    reference, _ = expected(method, dtype)
    if policy == "bf16":
        moved = distance(reference, values(net(dtype, batchnorm=False)))
        assert 0 < distance(weights, reference) < 0.05 * moved
    else:
        assert distance(weights, reference) < 1e-14


@pytest.mark.parametrize("method", ["sam", "adaptive"])
def test_slow_shards_may_wait_on_the_cpu(ranks, method):
    options = (("offload", True),)
    (weights, _), _ = ranks.run(trained, method, "plain", torch.float64, 4, options)
    assert distance(weights, expected(method)[0]) < 1e-14
    with pytest.raises(AssertionError, match=r"Lookahead\(offload=True\) of sharded parameters"):
        ranks.run(trained, "lookahead", "plain", torch.float64, 1, options)


@pytest.mark.parametrize("clip", [lb.clip_norm(0.3), lb.clip_value(0.05)])
def test_clipping_is_over_all_ranks(ranks, clip):
    options = (("clip", clip),)
    (weights, _), _ = ranks.run(trained, "lookbehind", "plain", torch.float64, 4, options)
    assert distance(weights, expected("lookbehind", options=options)[0]) < 1e-14
    assert distance(weights, expected("lookbehind")[0]) > 1e-4


def without_learning_rate(rank, method, policy):
    model = sharded(policy)
    before = whole(model)
    optimizer = METHODS[method](sgd(model, lr=0.0))
    for step in range(3):
        optimizer.step(closure_for(model, mine(rank, step)))
    return same(before, whole(model))


@pytest.mark.parametrize("method", CLIMBING)
def test_with_a_learning_rate_of_zero_the_weights_do_not_move(ranks, method):
    assert ranks.run(without_learning_rate, method, "plain") == [True, True]
    assert ranks.run(without_learning_rate, method, "offload") == [True, True]


def with_nan(rank, scale):
    model = sharded(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scale else None
    optimizer = lb.LookbehindSAM(sgd(model), rho=0.1, k=3, nonfinite="skip", scaler=scaler)
    data, calls, before = mine(rank, 0, torch.float32), [], whole(model)

    def closure():
        calls.append(1)
        model.zero_grad()
        loss = loss_of(model, data)
        bad = loss * (float("inf") if len(calls) == 3 and rank == 1 else 1.0)
        (scaler.scale(bad) if scaler else bad).backward()
        return loss

    optimizer.step(closure)
    kept = same(before, whole(model))
    optimizer.step(closure)
    return kept, optimizer.skipped, scaler.get_scale() if scaler else None, whole(model)


@pytest.mark.parametrize("scale", [False, True])
def test_a_nan_or_overflow_on_one_rank_is_decided_alike(ranks, scale):
    (kept, skipped, level, one), (also_kept, also_skipped, other_level, two) = ranks.run(with_nan, scale)
    assert kept
    assert also_kept
    assert skipped == also_skipped == 1
    assert level == other_level == (512.0 if scale else None)
    assert same(one, two)


def saved(rank, method, folder):
    model = sharded()
    optimizer = METHODS[method](sgd(model))
    for step in range(2):
        optimizer.step(closure_for(model, mine(rank, step)))
    model.zero_grad()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)


def resumed(rank, method, folder):
    model = sharded()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = METHODS[method](sgd(model, lr=0.5))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    counted = getattr(optimizer, "evaluations", None)
    for step in (2, 3):
        optimizer.step(closure_for(model, mine(rank, step)))
    return whole(model), counted


@pytest.mark.parametrize("method", ["sam", "lookbehind", "lookahead", "lookahead-lookbehind"])
def test_a_distributed_checkpoint_goes_on_with_any_number_of_ranks(ranks, single, method, tmp_path):
    folder = str(tmp_path / "checkpoint")
    ranks.run(saved, method, folder)
    reference, _ = expected(method)
    (pair, counted), _ = ranks.run(resumed, method, folder)
    ((alone, _),) = single.run(resumed, method, folder)
    assert distance(pair, reference) < 1e-14
    assert distance(alone, reference) < 1e-14
    assert counted == {"sam": 4, "lookbehind": 8, "lookahead": 2, "lookahead-lookbehind": 6}[method]


def refused(rank):
    model = sharded()
    try:
        lb.SAM(sgd(model), ranks="apart", model=model)
    except ValueError as error:
        return str(error)
    return ""


def test_shards_cannot_climb_apart(ranks):
    assert all("use ranks='together'" in words for words in ranks.run(refused))


def with_slow_weights(rank, around):
    """Losses of training and evaluation where every step is followed by looking at the slow weights."""
    model = net(batchnorm=False)
    if torch.distributed.get_world_size() > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    base = lb.SAM(sgd(model), rho=0.1) if around == "sam" else sgd(model)
    optimizer = lb.Lookahead(base, k=3, alpha=0.5, model=model)
    losses = []
    for step in range(4):
        optimizer.zero_grad()  # not the model's: its modules may show gathered weights, which are other tensors
        optimizer.step(closure_for(model, mine(rank, step)))
        with torch.no_grad():
            with optimizer.slow_weights():
                losses.append(loss_of(model, batch(0)).item())
            losses.append(loss_of(model, batch(0)).item())
    return losses


@pytest.mark.parametrize("around", ["sgd", "sam"])
def test_slow_weights_are_seen_and_gone_again(ranks, single, around):
    one, two = ranks.run(with_slow_weights, around)
    (alone,) = single.run(with_slow_weights, around)
    assert one == two
    assert one == pytest.approx(alone, abs=1e-12)


def without_model(rank):
    model = sharded()
    optimizer = lb.Lookahead(sgd(model), k=3)
    optimizer.step(closure_for(model, mine(rank, 0)))
    try:
        with optimizer.slow_weights():
            return ""
    except ValueError as error:
        optimizer.step(closure_for(model, mine(rank, 1)))  # training goes on all the same
        return str(error)


def test_slow_weights_of_shards_need_the_model(ranks):
    assert all("give Lookahead(..., model=model)" in words for words in ranks.run(without_model))


def partly_sharded(rank):
    model = net(torch.float32, batchnorm=False)
    fully_shard(model[0], mesh=init_device_mesh("cpu", (2,)))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = lb.SAM(sgd(model), rho=0.1, scaler=scaler)
    data = batch(0, dtype=torch.float32)  # the same on both ranks: the plain part is not averaged

    def closure():
        model.zero_grad()
        loss = loss_of(model, data)
        scaler.scale(loss).backward()
        return loss

    optimizer.step(closure)
    return [p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in model.parameters()]


def test_sharded_and_plain_parameters_are_unscaled_alike(ranks):
    one, _ = ranks.run(partly_sharded)
    model = net(torch.float32, batchnorm=False)
    lb.SAM(sgd(model), rho=0.1).step(closure_for(model, batch(0, dtype=torch.float32)))
    assert distance(one, values(model)) < 1e-7
