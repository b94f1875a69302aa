"""What a step costs: evaluations, parameter-sized buffers, host reads."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from problems import ASCENTS, CLIMBING, METHODS, batch, closure_for, distance, loss_of, net, same, sgd, train, values
from torch import nn

import lookbehind as lb
from lookbehind.bench.memory import buffers_used
from lookbehind.optim.weights import Scratch


@pytest.mark.parametrize("method", METHODS)
def test_a_step_costs_exactly_k_plus_one_closure_calls(method):
    model = net()
    optimizer = METHODS[method](sgd(model))
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        return closure_for(model, batch())()

    for step in range(1, 4):
        optimizer.step(closure)
        assert calls == step * (ASCENTS.get(method, 3) + 1) == optimizer.evaluations


# --- memory


def micro(closure):
    return lb.micro_batches((3, closure), (1, closure))


@pytest.mark.parametrize("alias", [False, True], ids=["exchanged", "in-place"])
@pytest.mark.parametrize(
    ("make", "buffers"),
    [
        (lambda b: lb.SAM(b), 1),
        (lambda b: lb.ASAM(b), 1),
        (lambda b: lb.MultistepSAM(b, rho=0.05, k=3), 1),
        (lambda b: lb.MultistepASAM(b, rho=0.5, eta=0.01, k=3, average=True), 2),
        (lambda b: lb.LookbehindSAM(b, k=4), 2),
        (lambda b: lb.LookbehindASAM(b, k=4), 2),
        (lambda b: lb.LookbehindSAM(b, k=4, alpha="adaptive"), 3),
        (lambda b: lb.LookbehindASAM(b, k=4, alpha="adaptive-per-tensor"), 3),
        (lambda b: lb.RepeatSAM(b, k=4), 2),
        (lambda b: lb.RepeatASAM(b, k=4, alpha="adaptive"), 3),
    ],
    ids=["sam", "asam", "multi", "mean", "lb", "lb-asam", "adaptive", "per-tensor", "repeat", "repeat-adaptive"],
)
def test_parameter_sized_buffers(make, buffers, alias):
    # above the whole number: one tensor (1/24) as a temporary or two, activations
    assert buffers <= buffers_used(make, alias=alias, steps=2) < buffers + 0.2


@pytest.mark.parametrize(
    ("make", "buffers"),
    [
        (lambda b: lb.SAM(b), 2),
        (lambda b: lb.LookbehindSAM(b, k=4), 5),
        (lambda b: lb.MultistepSAM(b, rho=0.1, k=4), 2),
    ],
    ids=["sam", "lookbehind", "multistep"],
)
def test_micro_batches_need_at_most_k_plus_one_buffers(make, buffers):
    assert buffers <= buffers_used(make, evaluate=micro) < buffers + 0.2


def test_buffers_are_kept_between_steps_until_they_are_freed():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=2)
    train(optimizer, model, range(1))
    kept = [[t.data_ptr() for t in vector] for vector in optimizer._scratch._vectors]
    assert len(kept) == 2
    train(optimizer, model, range(1))
    assert [[t.data_ptr() for t in vector] for vector in optimizer._scratch._vectors] == kept
    optimizer.free_buffers()
    assert optimizer._scratch._vectors == []
    train(optimizer, model, range(1))  # and they come back


# --- exchanging storages


@pytest.mark.parametrize("method", METHODS)
def test_exchanged_and_copied_weights_agree_bitwise(method):
    results, moved = [], []
    for alias in (False, True):
        model = net()
        optimizer = METHODS[method](sgd(model))
        views = [p.detach() for p in model.parameters()] if alias else []
        home = [p.data_ptr() for p in model.parameters()]
        seen = set()

        def closure(model=model, home=home, seen=seen):
            seen.add([p.data_ptr() for p in model.parameters()] == home)
            return closure_for(model, batch())()

        for _ in range(4):
            optimizer.step(closure)
            assert [p.data_ptr() for p in model.parameters()] == home
        assert all(torch.equal(view, p) for view, p in zip(views, model.parameters(), strict=False))
        results.append(values(model))
        moved.append(False in seen)
    assert same(*results)
    assert moved == [method != "lookahead", False]


def test_a_view_of_a_parameter_sees_the_perturbed_weights():
    """As with any optimizer that writes in place: here half of the loss goes through an alias of the weight."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    flat = weight.detach().view(-1)
    optimizer = lb.SAM(torch.optim.SGD([weight], lr=1.0), rho=1.0)

    def closure():
        optimizer.zero_grad()
        loss = (weight * flat).sum()  # its gradient is the alias
        loss.backward()
        return loss

    optimizer.step(closure)
    start = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert distance([weight.detach()], [start - (start + start / start.norm())]) < 1e-15


# --- host reads


@contextmanager
def no_host_reads(monkeypatch, allowed):
    """Reading a tensor on the host raises, but inside the base optimizer's step and the closure."""

    def trap(name):
        original = getattr(torch.Tensor, name)

        def read(self, *args, **kwargs):
            allowed.setdefault("reads", []).append(name) if not allowed["inside"] else None
            if not allowed["inside"] and not allowed.get("count"):
                raise AssertionError(f"Tensor.{name} inside step")
            return original(self, *args, **kwargs)

        return read

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__"):
            patch.setattr(torch.Tensor, name, trap(name))
        yield


def traced_step(method, monkeypatch, *, nonfinite, count, scaler=None):
    model = net(torch.float32)
    allowed = {"inside": False, "count": count}
    base = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    optimizer = METHODS[method](base)
    climber = optimizer.base if method == "lookahead-lookbehind" else optimizer
    climber.nonfinite, climber.scaler = nonfinite, scaler
    base.register_step_pre_hook(lambda *_: allowed.update(inside=True))
    base.register_step_post_hook(lambda *_: allowed.update(inside=False))
    data = batch(dtype=torch.float32)

    def closure():
        allowed["inside"] = True
        model.zero_grad()
        loss = loss_of(model, data)
        (loss if scaler is None else scaler.scale(loss)).backward()
        allowed["inside"] = False
        return loss

    with no_host_reads(monkeypatch, allowed):
        for _ in range(3):
            optimizer.step(closure)
    return optimizer, allowed.get("reads", [])


@pytest.mark.parametrize("method", CLIMBING)
def test_with_propagate_nothing_of_ours_reads_a_tensor_on_the_host(method, monkeypatch):
    optimizer, reads = traced_step(method, monkeypatch, nonfinite="propagate", count=False)
    assert reads == []
    assert optimizer.last.loss > 0  # reading is possible afterwards


@pytest.mark.parametrize("method", CLIMBING)
def test_the_check_costs_one_host_read_per_evaluation(method, monkeypatch):
    optimizer, reads = traced_step(method, monkeypatch, nonfinite="raise", count=True)
    assert len(reads) == optimizer.evaluations


@pytest.mark.parametrize("nonfinite", ["raise", "propagate"])
@pytest.mark.parametrize("method", CLIMBING)
def test_with_a_scaler_it_is_one_host_read_per_evaluation_too(method, nonfinite, monkeypatch):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer, reads = traced_step(method, monkeypatch, nonfinite=nonfinite, count=True, scaler=scaler)
    assert optimizer.skipped == 0
    assert len(reads) == optimizer.evaluations


@pytest.mark.parametrize("method", CLIMBING)
def test_a_step_runs_on_the_meta_device_where_no_value_can_be_read(method):
    model = net(torch.float32).to("meta")
    optimizer = METHODS[method](sgd(model))
    inner = optimizer.base if method == "lookahead-lookbehind" else optimizer
    inner.nonfinite = "propagate"
    inputs, targets = torch.randn(12, 6, device="meta"), torch.zeros(12, dtype=torch.long, device="meta")
    for _ in range(4):
        optimizer.step(closure_for(model, (inputs, targets)))
    assert optimizer.evaluations == 4 * (ASCENTS.get(method, 3) + 1)


def test_a_temporary_is_made_once_per_shape_and_never_outlives_a_larger_one():
    """Views of one flat buffer: two shapes share it, and a larger tensor takes the smaller memory's place."""
    scratch, small = Scratch(), torch.zeros(2, 3)
    first = scratch.temporary(small)
    assert scratch.temporary(torch.ones(2, 3)) is first
    assert scratch.temporary(torch.zeros(3, 2)).data_ptr() == first.data_ptr()
    image = torch.zeros(2, 4, 3, 3).to(memory_format=torch.channels_last)
    large = scratch.temporary(image)
    assert (large.shape, large.stride()) == (image.shape, image.stride())
    again = scratch.temporary(small)
    assert again is not first
    assert again.data_ptr() == large.data_ptr()
    assert scratch.temporary(small.double()).dtype == torch.float64
    assert scratch.temporary(small.to("meta")).is_meta
    column = scratch.temporary(torch.zeros(3, 2).t())
    assert (column.shape, column.stride()) == (small.shape, (1, 2))
    scratch.free()
    assert scratch.temporary(small) is not again
