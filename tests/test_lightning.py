"""PyTorch Lightning: every way of training equals the plain loop, and what cannot work says what to do."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from problems import CLIMBING, METHODS, batch, distance, loss_of, net, same, sgd, train, values
from torch.amp import GradScaler
from torch.utils.data import DataLoader

import lookbehind as lb
from lookbehind.integrations import lightning as integration
from lookbehind.integrations.lightning import SharpnessAwareModule, SharpnessAwarePrecision, StepMonitor

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*Trying to infer the `batch_size`",
    "ignore:.*LeafSpec:FutureWarning",
)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
EXAMPLE = Path(__file__).parent.parent / "examples" / "lightning_training.py"
sam = METHODS["sam"]


class Net(SharpnessAwareModule):
    """A module as a user writes it, which remembers what its callbacks would see."""

    def __init__(self, make=sam, scheduler=None, **options):
        super().__init__()
        self.net = net(**options)
        self.make = make
        self.scheduler = scheduler
        self.outputs = []

    def training_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch)
        self.log("loss", loss)
        return {"loss": loss, "index": batch_idx}

    def on_train_batch_end(self, outputs, batch, batch_idx):  # without super(), as most people write it
        self.outputs.append(float(outputs["loss"]))

    def configure_optimizers(self):
        optimizer = self.make(sgd(self.net))
        return [optimizer], [{"scheduler": self.scheduler(optimizer), "interval": "step"}] if self.scheduler else []


def loader(count, dtype=torch.float64):
    return DataLoader([batch(number, dtype=dtype) for number in range(count)], batch_size=None)


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    usual = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "enable_model_summary": False, **quiet}
    return pl.Trainer(**{**usual, **options})


def fitted(module, count=4, dtype=torch.float64, **options):
    runner = trainer(**options)
    runner.fit(module, loader(count, dtype))
    return runner


def accumulating(model, numbers, parts, dtype=torch.float64, scaler=None):
    """A closure over the batches of these numbers, as Lightning weighs them: each by 1 / accumulate_grad_batches."""

    def loss(number):
        context = torch.autocast("cpu", torch.float16, cache_enabled=False) if scaler else nullcontext()
        with context:
            return loss_of(model, batch(number, dtype=dtype)) * (len(numbers) / parts)

    return lb.accumulated(loss, numbers, scaler=scaler)


# --- what works


@pytest.mark.parametrize("method", CLIMBING)
def test_a_run_equals_the_plain_loop(method):
    module, model = Net(METHODS[method]), net()
    runner = fitted(module)
    optimizer = METHODS[method](sgd(model))
    losses = train(optimizer, model, range(4))
    assert same(values(module), values(model))
    assert same(list(module.net.buffers()), list(model.buffers()))
    assert module.outputs == [float(loss) for loss in losses]  # of the unperturbed weights
    assert float(runner.callback_metrics["loss"]) == module.outputs[-1]
    assert (runner.global_step, runner.optimizers[0].evaluations) == (4, optimizer.evaluations)


@pytest.mark.parametrize("method", ["sam", "lookbehind-asam", "adaptive", "lookahead", "lookahead-lookbehind"])
def test_accumulation_evaluates_all_batches_at_every_point(method):
    module, model = Net(METHODS[method]), net()
    runner = fitted(module, 5, accumulate_grad_batches=2)
    optimizer = METHODS[method](sgd(model))
    losses = []
    for numbers in ((0, 1), (2, 3), (4,)):  # the last step has one batch, of which Lightning takes half
        losses.append(float(optimizer.step(accumulating(model, numbers, 2))))
        model.zero_grad()
    assert same(values(module), values(model))
    assert same(list(module.net.buffers()), list(model.buffers()))
    assert (runner.global_step, runner.optimizers[0].evaluations) == (3, optimizer.evaluations)
    outputs = module.outputs
    assert [outputs[0] + outputs[1], outputs[2] + outputs[3], outputs[4]] == losses
    if method != "lookahead":
        assert runner.optimizers[0].last.loss == losses[-1]


@pytest.mark.parametrize("parts", [1, 2])
def test_dropout_masks_are_replayed(parts):
    def make(base):
        return lb.LookbehindSAM(base, rho=0.1, k=2, rng="replay")

    class Seeds(pl.Callback):  # after the data loader has drawn its own seed
        def on_train_epoch_start(self, runner, module):
            torch.manual_seed(1)

    module, model = Net(make, dropout=0.5), net(dropout=0.5)
    fitted(module, 4, accumulate_grad_batches=parts, callbacks=[Seeds()])
    optimizer = make(sgd(model))
    torch.manual_seed(1)
    for start in range(0, 4, parts):
        optimizer.step(accumulating(model, range(start, start + parts), parts))
    assert same(values(module), values(model))


def test_bf16_mixed_equals_the_plain_loop():
    module, model = Net(METHODS["lookbehind"], dtype=torch.float32), net(torch.float32)
    fitted(module, dtype=torch.float32, precision="bf16-mixed")
    optimizer = METHODS["lookbehind"](sgd(model))
    for number in range(4):

        def closure(number=number):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = loss_of(model, batch(number, dtype=torch.float32))
            loss.backward()
            return loss

        optimizer.step(closure)
    assert same(values(module), values(model))


class Scaled(Net):
    def configure_optimizers(self):
        return lb.LookbehindSAM(sgd(self.net), rho=0.1, k=2, scaler=self.grad_scaler, clip=lb.clip_norm(0.5))


def fp16(scale=2.0**10):
    return [SharpnessAwarePrecision("16-mixed", "cpu", GradScaler("cpu", init_scale=scale, growth_interval=3))]


@pytest.mark.parametrize("parts", [1, 2])
def test_fp16_equals_the_plain_loop_with_overflows(parts):
    module, model = Scaled(dtype=torch.float32), net(torch.float32)
    plugins = fp16(2.0**22)
    runner = fitted(module, 16, torch.float32, plugins=plugins, accumulate_grad_batches=parts)
    scaler = GradScaler("cpu", init_scale=2.0**22, growth_interval=3)
    optimizer = lb.LookbehindSAM(sgd(model), rho=0.1, k=2, scaler=scaler, clip=lb.clip_norm(0.5))
    for start in range(0, 16, parts):
        optimizer.step(accumulating(model, range(start, start + parts), parts, torch.float32, scaler))
    assert 0 < optimizer.skipped < 8
    assert runner.optimizers[0].skipped == optimizer.skipped
    assert plugins[0].scaler.state_dict() == scaler.state_dict()
    assert same(values(module), values(model))


def test_gradient_clipping_is_that_of_a_closure_which_clips():
    module, model = Net(METHODS["multistep-mean"]), net()
    fitted(module, gradient_clip_val=0.3)
    optimizer = METHODS["multistep-mean"](sgd(model))
    for number in range(4):

        def closure(number=number):
            optimizer.zero_grad()
            loss = loss_of(model, batch(number))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            return loss

        optimizer.step(closure)
    assert same(values(module), values(model))


@pytest.mark.parametrize("kind", ["lookahead-lookbehind", "accumulation", "fp16"])
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(kind, tmp_path):
    def run(epochs, directory, resumed_from=None):
        dtype, options = torch.float64, {"accumulate_grad_batches": 2 if kind == "accumulation" else 1}
        module = Net(METHODS["lookahead-lookbehind"], lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4))
        if kind == "fp16":
            dtype, options = torch.float32, {"plugins": fp16(2.0**22)}
            module = Scaled(dtype=dtype)
        saving = ModelCheckpoint(tmp_path / directory, save_last=True)
        runner = trainer(max_epochs=epochs, enable_checkpointing=True, callbacks=[saving], **options)
        runner.fit(module, loader(5, dtype), ckpt_path=resumed_from)
        return module, runner

    whole, whole_runner = run(3, "whole")
    run(1, "part")
    resumed, runner = run(3, "part", tmp_path / "part" / "last.ckpt")
    assert same(values(whole), values(resumed))
    assert runner.global_step == whole_runner.global_step == (9 if kind == "accumulation" else 15)
    first, second = whole_runner.optimizers[0], runner.optimizers[0]
    assert first.param_groups[0]["lr"] == second.param_groups[0]["lr"]
    assert (first.evaluations, first.skipped) == (second.evaluations, second.skipped)
    if kind == "fp16":
        assert first.skipped > 1
        assert first.scaler.state_dict() == second.scaler.state_dict()
    else:
        assert second.param_groups[0]["lr"] < 0.1


def test_a_checkpoint_between_two_steps_warns_of_lost_gradients(tmp_path):
    class Saves(pl.Callback):
        def on_train_batch_end(self, runner, module, outputs, batch, batch_idx):
            if batch_idx == 2:
                runner.save_checkpoint(tmp_path / "between.ckpt")

    fitted(Net(), accumulate_grad_batches=2, callbacks=[Saves()])
    runner = trainer(accumulate_grad_batches=2)
    with (
        pytest.warns(UserWarning, match="1 of 2 batches of this step are missing.*Save after a step"),
        pytest.warns(UserWarning, match="resuming from a checkpoint that ended before the epoch"),
    ):
        runner.fit(Net(), loader(4), ckpt_path=tmp_path / "between.ckpt")
    assert runner.global_step == 2


class Keeps(pl.loggers.logger.DummyLogger):
    """A logger that keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def log_metrics(self, metrics, step=None):
        self.kept[step] = metrics


def test_the_monitor_logs_what_a_step_saw():
    logger, model = Keeps(), net()
    fitted(Net(METHODS["per-tensor"]), 8, callbacks=[StepMonitor()], logger=logger, log_every_n_steps=2)
    optimizer = METHODS["per-tensor"](sgd(model))
    for number in range(8):
        train(optimizer, model, range(number, number + 1))
        seen = logger.kept.pop(number, None)
        assert (seen is None) == (number % 2 == 0)
        if seen is not None:
            losses, alphas = optimizer.last.losses, optimizer.last.alpha
            assert seen["lookbehind/evaluations"] == optimizer.evaluations == 4 * (number + 1)
            assert seen["lookbehind/skipped"] == 0
            assert seen["lookbehind/loss"] == pytest.approx(losses[0], rel=1e-6)  # loggers take float32
            assert seen["lookbehind/sharpness"] == pytest.approx(losses[-1] - losses[0], rel=1e-6)
            assert seen["lookbehind/alpha"] == pytest.approx(sum(alphas) / len(alphas), rel=1e-6)
    assert not logger.kept


def test_manual_optimization_equals_the_plain_loop():
    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()

            def closure():
                optimizer.zero_grad()
                loss = loss_of(self.net, batch)
                self.log("loss", loss)
                self.manual_backward(loss)
                return loss

            return optimizer.step(closure)

    module, model = Manual(METHODS["lookbehind"]), net()
    runner = fitted(module)
    losses = train(METHODS["lookbehind"](sgd(model)), model, range(4))
    assert same(values(module), values(model))
    assert runner.global_step == 4
    assert float(runner.callback_metrics["loss"]) == float(losses[-1])


@pytest.mark.parametrize("parts", [1, 3])
def test_other_optimizers_train_as_in_a_plain_module(parts):
    class Plain(pl.LightningModule):
        __init__, training_step, configure_optimizers = Net.__init__, Net.training_step, Net.configure_optimizers

    ours, lightnings = Net(lambda base: base), Plain(lambda base: base)
    for module in (ours, lightnings):
        fitted(module, accumulate_grad_batches=parts)
    assert same(values(ours), values(lightnings))
