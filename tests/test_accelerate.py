"""Accelerate: a prepared optimizer equals the plain loop, with a scaler too; what would go wrong is refused."""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from problems import METHODS, batch, closure_for, distance, loss_of, net, same, values
from ranks import leave

accelerate = pytest.importorskip("accelerate")

import lookbehind as lb  # noqa: E402
from lookbehind.integrations.accelerate import accelerated_step  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:accelerate")
EXAMPLE = Path(__file__).parent.parent / "examples" / "accelerate_loop.py"
CLIMBING = [name for name in METHODS if name != "lookahead"]
SCALE = 2.0**10


@pytest.fixture(autouse=True)
def _no_state_is_left():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def sgd(model):
    return torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)


def prepared(make, scaler=None, dtype=torch.float64, **settings):
    """An accelerator, a model and a prepared optimizer; on the CPU Accelerate makes no scaler."""
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    accelerator.scaler = scaler
    model = net(dtype)
    model, optimizer = accelerator.prepare(model, make(sgd(model)))
    return accelerator, model, optimizer


def backward_of(accelerator, model, data):
    def closure():
        model.zero_grad()
        loss = loss_of(model, data)
        accelerator.backward(loss)
        return loss

    return closure


def plain_loop(make, steps=4, dtype=torch.float64):
    model = net(dtype)
    optimizer = make(sgd(model))
    losses = [optimizer.step(closure_for(model, batch(step, dtype=dtype))) for step in range(steps)]
    return values(model), losses


def lookbehind_sam(base, **options):
    return lb.LookbehindSAM(base, rho=0.1, k=2, **options)


@pytest.mark.parametrize("method", CLIMBING)
def test_a_prepared_optimizer_equals_the_plain_loop_bit_for_bit(method):
    accelerator, model, optimizer = prepared(METHODS[method])
    losses = [
        accelerated_step(accelerator, optimizer, backward_of(accelerator, model, batch(step))) for step in range(4)
    ]
    weights, expected = plain_loop(METHODS[method])
    assert same(values(model), weights)
    assert losses == expected


def test_preparing_alone_is_enough():
    """Without this package's step, as Accelerate's own manual has it."""
    accelerator, model, optimizer = prepared(lookbehind_sam)
    for step in range(4):
        assert optimizer.step(backward_of(accelerator, model, batch(step))) is None  # Accelerate drops the loss
    weights, losses = plain_loop(lookbehind_sam)
    assert same(values(model), weights)
    assert optimizer.optimizer.last.loss == losses[-1]


def test_a_prepared_scheduler_sets_the_rate_of_the_base():
    accelerator, model, optimizer = prepared(lookbehind_sam)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer.optimizer, 0.5))
    for step in range(3):
        accelerated_step(accelerator, optimizer, backward_of(accelerator, model, batch(step)))
        scheduler.step()
    assert optimizer.optimizer.base.param_groups[0]["lr"] == 0.1 * 0.5**3
    weights = values(model)
    model = net()
    reference = lookbehind_sam(sgd(model))
    plain = torch.optim.lr_scheduler.ExponentialLR(reference, 0.5)
    for step in range(3):
        reference.step(closure_for(model, batch(step)))
        plain.step()
    assert same(values(model), weights)


@pytest.mark.parametrize("scaler", [None, SCALE])
def test_accumulation_equals_the_large_minibatch(scaler):
    scaler = scaler and torch.amp.GradScaler("cpu", init_scale=scaler)
    clipped = {"clip": lb.clip_norm(0.1)}
    accelerator, model, optimizer = prepared(lambda base: lookbehind_sam(base, scaler=scaler, **clipped), scaler)
    model.eval()  # statistics of BatchNorm are those of a micro-batch
    whole = net().eval()
    reference = lookbehind_sam(sgd(whole), **clipped)
    for step in range(3):
        inputs, targets = batch(step)
        parts = [(inputs[:5], targets[:5]), (inputs[5:], targets[5:])]
        closure = lb.accumulated(lambda part: loss_of(model, part), parts, sizes=[5, 7], scaler=scaler, model=model)
        loss = accelerated_step(accelerator, optimizer, closure)
        assert float(loss) == pytest.approx(float(reference.step(closure_for(whole, (inputs, targets)))), rel=1e-12)
    assert distance(values(model), values(whole)) < 1e-12


def test_a_saved_state_goes_on_bit_for_bit(tmp_path):
    def some(steps, load=None, save=None):
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)
        accelerator, model, optimizer = prepared(lambda base: lookbehind_sam(base, scaler=scaler), scaler)
        if load:
            accelerator.load_state(load)
        for step in steps:
            accelerated_step(accelerator, optimizer, backward_of(accelerator, model, batch(step)))
        if save:
            accelerator.save_state(save)
        _ = accelerator.free_memory()
        return values(model), optimizer.optimizer.evaluations, scaler.get_scale()

    whole = some(range(6))
    some(range(4), save=str(tmp_path))
    again = some(range(4, 6), load=str(tmp_path))
    assert same(again[0], whole[0])
    assert again[1:] == whole[1:] == (18, 4 * SCALE)


# --- fp16: the scaler


@pytest.mark.parametrize("method", [lb.SAM, lookbehind_sam, lb.LookbehindASAM])
@pytest.mark.parametrize("way", ["closure", "given", "given to Accelerate's own step"])
def test_scaled_gradients_change_nothing(method, way):
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2)
    accelerator, model, optimizer = prepared(lambda base: method(base, scaler=scaler), scaler, torch.float32)
    for step in range(4):
        closure = backward_of(accelerator, model, batch(step, dtype=torch.float32))
        if way == "closure":
            accelerated_step(accelerator, optimizer, closure)
        elif way == "given":
            loss = accelerated_step(accelerator, optimizer, lb.given(closure(), closure))
            assert not loss.requires_grad
            assert all(parameter.grad is None for parameter in model.parameters())
        else:
            optimizer.step(lb.given(closure(), closure))
    assert same(values(model), plain_loop(method, dtype=torch.float32)[0])
    assert scaler.get_scale() == 4 * SCALE


@pytest.mark.parametrize("evaluation", [0, 1, 2])
def test_an_overflow_at_any_point_passes_over_the_step(evaluation):
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    accelerator, model, optimizer = prepared(lambda base: lookbehind_sam(base, scaler=scaler), scaler)
    accelerated_step(accelerator, optimizer, backward_of(accelerator, model, batch(0)))
    before, momentum = values(model), [s["momentum_buffer"].clone() for s in optimizer.state.values()]
    calls = []

    def overflowing():
        loss = backward_of(accelerator, model, batch(1))()
        calls.append(loss)
        if len(calls) == evaluation + 1:
            model[0].weight.grad[0, 0] = float("inf")
        return loss

    accelerated_step(accelerator, optimizer, overflowing)
    assert same(values(model), before)
    assert same([s["momentum_buffer"] for s in optimizer.state.values()], momentum)
    assert len(calls) == evaluation + 1
    assert scaler.get_scale() == SCALE / 2
    assert all(p.grad is None for p in model.parameters())
    # Accelerate sees the first alone
    assert optimizer.step_was_skipped == (evaluation == 0)
    assert optimizer.optimizer.last.skipped == (evaluation > 0)
    assert optimizer.optimizer.skipped == (1 if evaluation else 0)


# --- what is refused


def scaler_of(scaler):
    return torch.amp.GradScaler("cpu") if scaler else None


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (
            lookbehind_sam,
            {"gradient_accumulation_steps": 2},
            ValueError,
            r"batches would be lost. Leave it at 1 and let",
        ),
        (
            lookbehind_sam,
            {"scaler": True},
            ValueError,
            "LookbehindSAM has no GradScaler, the accelerator has one: give",
        ),
        (
            lambda base: lookbehind_sam(base, scaler=torch.amp.GradScaler("cpu")),
            {},
            ValueError,
            "LookbehindSAM has another GradScaler, the accelerator has none: give the optimizer scaler=",
        ),
        (lambda base: lb.Lookahead(base), {}, TypeError, "SGD needs one gradient per step: call accelerator.backward"),
        (lambda base: lb.Lookahead(lb.SAM(base)), {"scaler": True}, TypeError, "use SAM without Lookahead, or bf16"),
        (lambda base: lb.SAM(base, rng="replay"), {"scaler": True}, ValueError, "use rng='fresh', or bf16"),
    ],
)
def test_what_cannot_work_is_refused_at_the_first_step(make, settings, error, message):
    scaler = scaler_of(settings.pop("scaler", False))
    accelerator, model, optimizer = prepared(make, scaler, **settings)
    before = values(model)
    with pytest.raises(error, match=message):
        accelerated_step(accelerator, optimizer, backward_of(accelerator, model, batch(0)))
    assert same(values(model), before)


def test_switching_and_micro_batches_need_a_step_without_scaler():
    accelerator, model, optimizer = prepared(lookbehind_sam)
    closures = [backward_of(accelerator, model, batch(step)) for step in (0, 1)]
    accelerated_step(accelerator, optimizer, lb.switching(*closures))
    reference = net()
    lookbehind_sam(sgd(reference)).step(lb.switching(*[closure_for(reference, batch(step)) for step in (0, 1)]))
    assert same(values(model), values(reference))
    scaler = torch.amp.GradScaler("cpu")
    accelerator, model, optimizer = prepared(lambda base: lookbehind_sam(base, scaler=scaler), scaler)
    for several in (lb.switching(*closures), closures, lb.micro_batches((1, closures[0]))):
        with pytest.raises(TypeError, match=r"with a GradScaler: .* give a plain closure, or use bf16"):
            accelerated_step(accelerator, optimizer, several)


def test_an_unprepared_optimizer_is_refused():
    accelerator, model, optimizer = prepared(lookbehind_sam)
    with pytest.raises(TypeError, match=r"SharpnessAware is not prepared: call optimizer = accelerator.prepare"):
        accelerated_step(accelerator, optimizer.optimizer, backward_of(accelerator, model, batch(0)))


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("DEEPSPEED", "it steps by itself; use DistributedDataParallel"),
        ("FSDP", "or torch's fully_shard without Accelerate"),
        ("MEGATRON_LM", "it runs forward and backward by itself"),
        ("XLA", "use a GPU or the CPU"),
    ],
)
def test_strategies_that_step_by_themselves_are_refused(kind, remedy, monkeypatch):
    accelerator, model, optimizer = prepared(lookbehind_sam)
    monkeypatch.setattr(type(accelerator), "distributed_type", accelerate.DistributedType(kind))
    with pytest.raises(ValueError, match=f"with {kind} in Accelerate is not supported: .*{remedy}"):
        accelerated_step(accelerator, optimizer, backward_of(accelerator, model, batch(0)))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, "lookbehind.integrations.accelerate")
    with pytest.raises(ImportError, match=r"needs accelerate: pip install 'lookbehind\[huggingface\]'"):
        importlib.import_module("lookbehind.integrations.accelerate")


# --- the example, and two processes


@pytest.mark.parametrize("scale", [None, SCALE])
def test_the_example_learns(scale, capsys):
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = scale and torch.amp.GradScaler("cpu", init_scale=scale)
    accuracy, optimizer = runpy.run_path(str(EXAMPLE))["main"](accelerator)
    assert accuracy > 0.88
    assert optimizer.evaluations == 6 * 30 * 3
    assert "epoch 6: loss" in capsys.readouterr().out
    assert len(EXAMPLE.read_text().splitlines()) <= 50


def _one_of_two(rank: int, port: int, directory: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    accelerator = accelerate.Accelerator(cpu=True)
    model = net(batchnorm=False)
    model, optimizer = accelerator.prepare(model, lookbehind_sam(sgd(model)))
    for step in range(4):
        inputs, targets = batch(step)
        mine = [slice(6 * rank, 6 * rank + 2), slice(6 * rank + 2, 6 * rank + 6)]
        parts = [(inputs[part], targets[part]) for part in mine]
        closure = lb.accumulated(lambda part: loss_of(model, part), parts, sizes=[2, 4], model=model)
        accelerated_step(accelerator, optimizer, closure)
    torch.save(values(model), f"{directory}/{rank}.pt")
    _climb_apart(accelerator, rank, directory)
    leave()


def _climb_apart(accelerator, rank: int, directory: str) -> None:
    """The optimizer comes after the prepared model, which it has to know."""
    model = accelerator.prepare(net(batchnorm=False))
    optimizer = accelerator.prepare(lookbehind_sam(sgd(model.module), ranks="apart", model=model))
    for step in range(4):
        mine = tuple(tensor[6 * rank : 6 * rank + 6] for tensor in batch(step))
        accelerated_step(accelerator, optimizer, backward_of(accelerator, model, mine))
    torch.save(values(model), f"{directory}/apart-{rank}.pt")
    accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match=r"ranks='apart' with a GradScaler: .* use ranks='together', or bf16"):
        accelerated_step(accelerator, optimizer, backward_of(accelerator, model, mine))


def test_two_processes_equal_one(tmp_path):
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    mp.start_processes(_one_of_two, (port, str(tmp_path)), nprocs=2, start_method="forkserver")
    model = net(batchnorm=False)
    optimizer = lookbehind_sam(sgd(model))
    for step in range(4):
        optimizer.step(closure_for(model, batch(step)))
    for rank in (0, 1):
        assert distance(torch.load(tmp_path / f"{rank}.pt"), values(model)) < 1e-12
    model = net(batchnorm=False)
    optimizer = lookbehind_sam(sgd(model))
    for step in range(4):
        parts = [tuple(tensor[part] for tensor in batch(step)) for part in (slice(0, 6), slice(6, 12))]
        optimizer.step(lb.micro_batches(*[(6, closure_for(model, part)) for part in parts]))
    for rank in (0, 1):
        assert distance(torch.load(tmp_path / f"apart-{rank}.pt"), values(model)) < 1e-12
