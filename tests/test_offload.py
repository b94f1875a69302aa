"""Slow weights that wait on the CPU: the same bits, whatever happens, and nothing of them on the device meanwhile."""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
from problems import METHODS, batch, closure_for, net, same, sgd, train, values
from test_failures import EVERY_CALL, Stop, equal_states, failing, lines_of, raising, snapshot
from test_state import saved_and_loaded
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

import lookbehind as lb
from lookbehind.bench import memory
from lookbehind.bench.memory import LiveBytes
from lookbehind.optim import exchange

aten = torch.ops.aten


def offloaded(optimizer):
    """The optimizer with all its slow weights on the CPU; the option changes nothing else."""
    optimizer.offload = True
    if isinstance(optimizer, lb.Lookahead) and isinstance(optimizer.base, lb.SharpnessAware):
        optimizer.base.offload = True
    return optimizer


MORE = {
    **METHODS,
    "slow-asam": lambda base: lb.LookbehindASAM(base, rho=0.5, k=3, at="slow"),
    "cosine": lambda base: lb.LookbehindSAM(base, k=2, cosine="gradients"),
    "restoring": lambda base: lb.SAM(base, restore="all"),
    "with-clean": lambda base: lb.MultistepSAM(base, rho=0.1, k=2, average="with-clean"),
    "scheduled": lambda base: lb.LookbehindSAM(base, k=2, schedule=lb.Schedule(every=2)),
    "momentum": lambda base: lb.Lookahead(base, k=2, momentum="interpolate"),
    "own-rule": lambda base: lb.SharpnessAware(base, k=2, ascent=lambda leaf, slow, point, room: slow.abs() + 0.1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", MORE)
def test_the_weights_the_state_and_what_was_seen_are_the_same_bit_for_bit(method, dtype):
    found = []
    for change in (lambda optimizer: optimizer, offloaded):
        model = net(dtype)
        optimizer = change(MORE[method](sgd(model)))
        for step in range(5):
            optimizer.step(closure_for(model, batch(step, dtype=dtype)))
        found.append((values(model), snapshot(optimizer), optimizer.last and optimizer.last.to_dict()))
    assert same(found[0][0], found[1][0])
    assert equal_states(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


@pytest.mark.parametrize("what", ["micro_batches", "switching", "passes", "frozen"])
@pytest.mark.parametrize("alpha", [0.5, "adaptive"])
def test_so_they_are_with_micro_batches_new_minibatches_and_in_the_loop_form(what, alpha):
    found = []
    for offload in (False, True):
        model = net()
        optimizer = lb.LookbehindASAM(sgd(model), k=2, alpha=alpha, offload=offload)
        closures = [closure_for(model, batch(number)) for number in range(2)]
        if what == "frozen":
            next(model.parameters()).requires_grad_(False)
        for _ in range(3):
            if what == "passes":
                with optimizer.passes() as passes:
                    for _ in passes:
                        passes.report(closures[0]())
            else:
                given = {"micro_batches": lambda c: lb.micro_batches((3, c[0]), (1, c[1])),
                         "switching": lambda c: lb.switching(*c), "frozen": lambda c: c[0]}  # fmt: skip
                optimizer.step(given[what](closures))
        found.append(values(model))
    assert same(*found)


def test_every_constructor_has_the_option():
    base = sgd(net())
    for make in (lb.SAM, lb.ASAM, lb.LookbehindSAM, lb.LookbehindASAM, lb.SharpnessAware, lb.Lookahead):
        assert make(base, offload=True).offload
    assert lb.MultistepSAM(base, rho=0.1, k=2, offload=True).offload
    assert lb.MultistepASAM(base, rho=0.1, eta=0.01, k=2, offload=True).offload
    for make in (lb.SAM, lb.Lookahead):
        with pytest.raises(ValueError, match="offload='yes': choose one of False, True"):
            make(base, offload="yes")


@pytest.mark.parametrize("into", [False, True], ids=["from-offload", "into-offload"])
@pytest.mark.parametrize("method", METHODS)
def test_a_state_goes_from_one_to_the_other(method, into):
    whole = net()
    train(METHODS[method](sgd(whole)), whole, range(5))
    for stop in (1, 2):
        model = net()
        optimizer = METHODS[method](sgd(model))
        train(optimizer if into else offloaded(optimizer), model, range(stop))
        resumed = copy.deepcopy(model)
        other = METHODS[method](sgd(resumed))
        other = offloaded(other) if into else other
        other.load_state_dict(saved_and_loaded(optimizer.state_dict()))
        resumed.zero_grad()
        train(other, resumed, range(stop, 5))
        assert same(values(resumed), values(whole))


@pytest.mark.parametrize(("method", "call"), EVERY_CALL)
def test_a_closure_that_raises_leaves_the_weights(method, call):
    model = net()
    optimizer = offloaded(METHODS[method](sgd(model)))
    train(optimizer, model, range(2))
    before, addresses = values(model), [p.data_ptr() for p in model.parameters()]
    with pytest.raises(Stop):
        optimizer.step(failing(closure_for(model, batch(2)), call, raising))
    assert same(values(model), before)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    train(optimizer, model, range(2, 3))


@pytest.mark.parametrize("method", ["sam", "adaptive"])
def test_an_interrupt_at_any_line_finds_the_step_taken_or_not(method):
    def fresh():
        model = net()
        optimizer = offloaded(METHODS[method](sgd(model)))
        optimizer.restore = "all"
        train(optimizer, model, range(1))
        return model, optimizer

    model, optimizer = fresh()
    before = values(model), snapshot(optimizer)
    lines = lines_of(lambda: optimizer.step(closure_for(model, batch(1))))
    after = values(model), snapshot(optimizer)
    for line in range(0, lines, 29):
        model, optimizer = fresh()
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda m=model, o=optimizer: o.step(closure_for(m, batch(1))), stop_at=line)
        expected, state = before if same(values(model), before[0]) else after
        assert same(values(model), expected)
        assert equal_states(snapshot(optimizer), state)


def test_slow_weights_of_lookahead_are_shown_and_taken_back():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=3, offload=True)
    before = values(model)
    train(optimizer, model, range(2))
    fast = values(model)
    with optimizer.slow_weights():
        assert same(values(model), before)
    assert same(values(model), fast)


# --- as if there were a GPU


class Waiting(LiveBytes):
    """Counts as :class:`LiveBytes` does, but for what waits on the CPU; that may be copied, and nothing else."""

    copies = (aten.copy_.default, aten._foreach_copy_.default, aten.clone.default, aten.detach.default)
    storages: ClassVar[set[int]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        used = {StorageWeakRef(t.untyped_storage()).cdata for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)}
        assert function in self.copies or not used & self.storages, function
        self._known |= self.storages
        self._storages = {key: held for key, held in self._storages.items() if key not in self.storages}
        return super().__torch_dispatch__(function, types, args, kwargs)


@pytest.fixture
def waiting(monkeypatch):
    """Every tensor that is put aside is marked, and comes back as a copy, as from another device."""
    kept = []

    def marked(tensor):
        kept.append(torch.empty_like(tensor))
        Waiting.storages.add(StorageWeakRef(kept[-1].untyped_storage()).cdata)
        return kept[-1].copy_(tensor)

    monkeypatch.setattr(exchange, "aside", marked)
    monkeypatch.setattr(exchange.Returning, "__getitem__", lambda self, i: self._waiting[i].clone())
    monkeypatch.setattr(memory, "LiveBytes", Waiting)
    yield
    Waiting.storages.clear()


@pytest.mark.parametrize(
    ("make", "buffers"),
    [
        (lambda b: lb.SAM(b, offload=True), 0),
        (lambda b: lb.ASAM(b, offload=True), 0),
        (lambda b: lb.MultistepASAM(b, rho=0.5, eta=0.01, k=3, at="slow", offload=True), 0),
        (lambda b: lb.MultistepSAM(b, rho=0.05, k=3, average=True, offload=True), 1),
        (lambda b: lb.LookbehindSAM(b, k=4, offload=True), 1),
        (lambda b: lb.LookbehindASAM(b, k=4, alpha="adaptive", offload=True), 2),
        (lambda b: lb.LookbehindSAM(b, k=4, alpha="adaptive-per-tensor", offload=True), 2),
    ],
    ids=["sam", "asam", "multi-slow", "mean", "lb", "adaptive", "per-tensor"],
)
def test_one_buffer_less_on_the_device_and_what_waits_is_only_copied(make, buffers, waiting):
    # above the whole number: two tensors (of 24) as temporaries, and one that comes back
    assert buffers <= memory.buffers_used(make, steps=2) < buffers + 0.2
