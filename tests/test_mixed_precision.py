"""fp16 with GradScaler, bf16 autocast: the same steps as without, to the last bit where it can be."""

from __future__ import annotations

import copy

import pytest
import torch
from problems import batch, closure_for, distance, loss_of, net, same, sgd, values
from torch.amp import GradScaler

import lookbehind as lb
from lookbehind.training.loop import Training
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, load

SCALED = {
    "sam": lambda base, **o: lb.SAM(base, rho=0.1, **o),
    "asam": lambda base, **o: lb.ASAM(base, rho=0.5, **o),
    "multistep": lambda base, **o: lb.MultistepSAM(base, rho=0.1, k=3, **o),
    "multistep-mean": lambda base, **o: lb.MultistepASAM(base, rho=0.5, eta=0.01, k=3, average=True, **o),
    "lookbehind": lambda base, **o: lb.LookbehindSAM(base, rho=0.1, k=3, alpha=0.5, **o),
    "adaptive": lambda base, **o: lb.LookbehindASAM(base, rho=0.5, k=3, alpha="adaptive", **o),
    "lookahead-sam": lambda base, **o: lb.Lookahead(lb.SAM(base, rho=0.1, **o), k=2, alpha=0.5),
}


def scaled_closure(model, data, scaler, factor=lambda: 1.0):
    def closure():
        model.zero_grad()
        loss = loss_of(model, data)
        scaler.scale(loss * factor()).backward()
        return loss

    return closure


def snapshot(optimizer, model):
    return copy.deepcopy((model.state_dict(), [dict(s) for s in optimizer.state.values()]))


def equal(a, b):
    flat = [torch.utils._pytree.tree_leaves(x) for x in (a, b)]
    return len(flat[0]) == len(flat[1]) and all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(*flat, strict=True)
    )


@pytest.mark.parametrize("method", SCALED)
def test_with_a_scale_that_is_a_power_of_two_all_is_the_same_bit_for_bit(method):
    plain, scaled = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    one, two = SCALED[method](sgd(plain)), SCALED[method](sgd(scaled), scaler=scaler)
    for step in range(4):
        data = batch(step, dtype=torch.float32)
        loss = two.step(scaled_closure(scaled, data, scaler))
        assert torch.equal(loss, one.step(closure_for(plain, data)))
        assert same(values(plain), values(scaled))
    assert scaler.get_scale() == 4096.0  # one update per step, not per evaluation: it grew after 2 and after 4
    assert two.skipped == 0
    assert two.evaluations == one.evaluations


@pytest.mark.parametrize("method", SCALED)
@pytest.mark.parametrize("restore", ["weights", "all"])
def test_an_overflow_in_any_evaluation_passes_over_the_whole_step(method, restore):
    model = net(torch.float32)
    scaler = GradScaler("cpu", init_scale=1024.0)
    optimizer = SCALED[method](sgd(model), scaler=scaler, restore=restore, model=model)
    inner = getattr(optimizer, "base", optimizer) if method.startswith("lookahead") else optimizer
    data = batch(0, dtype=torch.float32)
    optimizer.step(scaled_closure(model, data, scaler))
    evaluations = inner.last.evaluations
    for overflowing in range(evaluations):
        before, scale, skipped, calls = snapshot(inner, model), scaler.get_scale(), optimizer.skipped, []

        def factor(overflowing=overflowing, calls=calls):
            calls.append(1)
            return float("inf") if len(calls) - 1 == overflowing else 1.0

        loss = optimizer.step(scaled_closure(model, data, scaler, factor))
        if not method.startswith("lookahead"):  # a skipped step is one of its k, and may be the one that interpolates
            assert equal(before, snapshot(inner, model)), overflowing
        assert len(calls) == overflowing + 1
        assert scaler.get_scale() == scale / 2  # once
        assert optimizer.skipped == skipped + 1
        assert inner.last.skipped
        assert torch.isfinite(loss)
    weights = values(model)
    optimizer.step(scaled_closure(model, data, scaler))
    assert not inner.last.skipped
    assert not same(weights, values(model))


@pytest.mark.parametrize("check", ["raise", "skip", "propagate"])
def test_overflows_are_passed_over_whatever_nonfinite_says(check):
    model = net(torch.float32)
    scaler = GradScaler("cpu", init_scale=2.0**100)
    optimizer = lb.SAM(sgd(model), scaler=scaler, nonfinite=check)
    before = values(model)
    optimizer.step(scaled_closure(model, batch(dtype=torch.float32), scaler, lambda: 1e20))
    assert same(before, values(model))
    assert optimizer.last.skipped
    assert scaler.get_scale() == 2.0**99


def test_a_loss_that_is_not_finite_is_no_overflow():
    model = net(torch.float32)
    scaler = GradScaler("cpu")
    optimizer = lb.SAM(sgd(model), scaler=scaler)
    inputs, targets = batch(dtype=torch.float32)
    with pytest.raises(lb.NonFiniteError, match="evaluation 1 of the step: loss nan"):
        optimizer.step(scaled_closure(model, (inputs * float("nan"), targets), scaler))
    assert scaler.get_scale() == 2.0**16
    optimizer.step(scaled_closure(model, (inputs, targets), scaler))  # and the scaler works on
    assert not optimizer.last.skipped


def test_after_an_error_in_the_closure_the_scaler_works_on():
    model, twin = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=8.0)
    optimizer, plain = lb.LookbehindSAM(sgd(model), k=3, scaler=scaler, restore="all"), lb.LookbehindSAM(sgd(twin), k=3)
    data, calls = batch(dtype=torch.float32), []

    def failing():
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("data")
        return scaled_closure(model, data, scaler)()

    state = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError):
        optimizer.step(failing)
    model.load_state_dict(state)  # running statistics, without model=
    for _ in range(3):
        optimizer.step(scaled_closure(model, data, scaler))
        plain.step(closure_for(twin, data))
    assert same(values(model), values(twin))


@pytest.mark.parametrize("unscale_first", [False, True])
def test_the_first_gradient_may_be_unscaled_by_others(unscale_first):
    """As frameworks do it: backward first, scaler.step(optimizer, given(...)), scaler.update()."""
    model, twin = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    optimizer, plain = lb.LookbehindSAM(sgd(model), k=2, scaler=scaler), lb.LookbehindSAM(sgd(twin), k=2)
    for step in range(3):
        data = batch(step, dtype=torch.float32)
        closure = scaled_closure(model, data, scaler)
        loss = closure()
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer, lb.given(loss, closure))
        assert scaler.get_scale() == 1024.0 * 2**step  # the update is theirs
        scaler.update()
        plain.step(closure_for(twin, data))
    assert same(values(model), values(twin))
    assert scaler.get_scale() == 1024.0 * 8


def test_an_overflow_at_a_perturbed_point_reaches_the_update_of_others():
    model = net(torch.float32)
    scaler = GradScaler("cpu", init_scale=1024.0)
    optimizer = lb.SAM(sgd(model), scaler=scaler)
    data, before = batch(dtype=torch.float32), values(model)
    loss = scaled_closure(model, data, scaler)()
    scaler.step(optimizer, lb.given(loss, scaled_closure(model, data, scaler, lambda: float("inf"))))
    scaler.update()
    assert same(before, values(model))
    assert scaler.get_scale() == 512.0


def test_a_gradient_that_is_given_scaled_is_unscaled():
    model, twin = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=64.0)
    optimizer, plain = lb.SAM(sgd(model), scaler=scaler), lb.SAM(sgd(twin))
    data = batch(dtype=torch.float32)
    closure = scaled_closure(model, data, scaler)
    optimizer.step(lb.given(closure(), closure))
    plain.step(closure_for(twin, data))
    assert same(values(model), values(twin))


def test_the_loop_form_unscales_too():
    model, twin = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=64.0, growth_interval=1)
    optimizer, plain = lb.LookbehindSAM(sgd(model), k=2, scaler=scaler), lb.LookbehindSAM(sgd(twin), k=2)
    data = batch(dtype=torch.float32)
    with optimizer.passes() as passes:
        for _ in passes:
            loss = loss_of(model, data)
            scaler.scale(loss).backward()
            passes.report(loss)
    plain.step(closure_for(twin, data))
    assert same(values(model), values(twin))
    assert scaler.get_scale() == 128.0


def test_a_disabled_scaler_does_nothing():
    model, twin = net(), net()
    scaler = GradScaler("cpu", enabled=False)
    optimizer, plain = lb.SAM(sgd(model), scaler=scaler), lb.SAM(sgd(twin))
    assert optimizer.scaler is None
    optimizer.step(scaled_closure(model, batch(), scaler))
    plain.step(closure_for(twin, batch()))
    assert same(values(model), values(twin))


def test_wrong_use_of_a_scaler_is_told():
    model = net(torch.float32)
    with pytest.raises(TypeError, match=r"scaler=1024: give a torch.amp.GradScaler"):
        lb.SAM(sgd(model), scaler=1024)
    optimizer = lb.SAM(sgd(model), scaler=GradScaler("cpu"))
    with pytest.raises(RuntimeError, match="the closure did not use it"):
        optimizer.step(closure_for(model, batch(dtype=torch.float32)))
    scaler = GradScaler("cpu")
    outer = lb.Lookahead(lb.SAM(sgd(model), scaler=scaler))
    closure = scaled_closure(model, batch(dtype=torch.float32), scaler)
    loss = closure()
    with pytest.raises(RuntimeError, match=r"call it with optimizer.base"):
        scaler.step(outer, lb.given(loss, closure))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["sam", "lookbehind", "adaptive"])
def test_half_precision_follows_full_precision_within_rounding(dtype, method):
    model, twin = net(torch.float32, batchnorm=False), net(torch.float32, batchnorm=False)
    scaler = GradScaler("cpu", init_scale=2.0**12, enabled=dtype == torch.float16)
    optimizer, plain = SCALED[method](sgd(model), scaler=scaler), SCALED[method](sgd(twin))
    start = values(model)
    for step in range(10):
        data = batch(step, dtype=torch.float32)

        def closure(data=data):
            model.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = loss_of(model, data)
            scaler.scale(loss).backward()
            return loss

        optimizer.step(closure)
        plain.step(closure_for(twin, data))
    moved = distance(start, values(twin))
    assert distance(values(model), values(twin)) < (0.01 if dtype == torch.float16 else 0.05) * moved
    assert optimizer.skipped == 0


def test_clipping_comes_after_unscaling():
    model, twin = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=1024.0)
    optimizer, plain = (
        lb.SAM(sgd(m), clip=lb.clip_norm(0.2), **o) for m, o in ((model, {"scaler": scaler}), (twin, {}))
    )
    for step in range(3):
        data = batch(step, dtype=torch.float32)
        optimizer.step(scaled_closure(model, data, scaler))
        plain.step(closure_for(twin, data))
    assert same(values(model), values(twin))


def test_accumulation_with_a_scaler():
    model, twin = net(torch.float32, batchnorm=False), net(torch.float32, batchnorm=False)
    scaler = GradScaler("cpu", init_scale=64.0)
    optimizer, plain = lb.SAM(sgd(model), scaler=scaler), lb.SAM(sgd(twin))
    parts = [batch(0, dtype=torch.float32), batch(1, dtype=torch.float32)]
    optimizer.step(lb.accumulated(lambda part: loss_of(model, part), parts, scaler=scaler))
    plain.step(lb.accumulated(lambda part: loss_of(twin, part), parts))
    assert same(values(model), values(twin))


def test_a_scaler_that_the_optimizer_does_not_know_is_refused():
    """Else the perturbed gradients would be 1024 times too large."""
    model = net(torch.float32)
    scaler = GradScaler("cpu", init_scale=1024.0)
    closure = scaled_closure(model, batch(dtype=torch.float32), scaler)
    for optimizer in (lb.SAM(sgd(model)), lb.Lookahead(lb.SAM(sgd(model)))):
        before, loss = values(model), closure()
        with pytest.raises(RuntimeError, match=r"Give it scaler= when you make it"):
            scaler.step(optimizer, lb.given(loss, closure))
        assert same(before, values(model))
        scaler.update()
    plain = lb.Lookahead(sgd(model))  # needs no closure, so a scaler is no trouble
    closure()
    scaler.step(plain)
    assert not same(before, values(model))


def test_another_optimizer_in_the_middle_of_its_step_is_not_unscaled_twice():
    one, two = net(torch.float32), net(torch.float32)
    scaler = GradScaler("cpu", init_scale=8.0)
    other, optimizer = sgd(one), lb.SAM(sgd(two), scaler=scaler)
    scaled_closure(one, batch(dtype=torch.float32), scaler)()
    scaler.unscale_(other)
    with pytest.raises(RuntimeError, match="take the other's step first"):
        optimizer.step(scaled_closure(two, batch(dtype=torch.float32), scaler))


def test_training_goes_on_after_an_overflow():
    """Also of a method that has an alpha, which a skipped step has not."""
    run = Run(method="lookbehind-sam", k=2, precision="fp16", lr=20.0, epochs=2, batch_size=100)
    training = Training(run, load(run, Storage()))
    scale, records = training.scaler.get_scale(), []
    while not training.finished:
        training.train_epoch(lambda: True)
        records.append(training.epoch_record())
    skipped = training.optimizer.skipped
    assert 0 < skipped < training.step == 6
    assert training.scaler.get_scale() == scale / 2**skipped
    assert [record["alpha"] for record in records] == [0.5, 0.5]  # over the steps that were taken
    assert training.end_record(records)["diverged"] is False
