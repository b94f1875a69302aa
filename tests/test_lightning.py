"""PyTorch Lightning: every way of training equals the plain loop, in one process and in two."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.tuner import Tuner
from lightning_tasks import (
    LOOKBEHIND,
    NESTED,
    WARNINGS,
    Net,
    Plain,
    Scaled,
    Task,
    fitted,
    loader,
    plain_loop,
    scaler,
    trainer,
)
from problems import CLIMBING, METHODS, OLD_TORCH, batch, distance, loss_of, net, same, sgd, values
from torch.utils.data import DataLoader, DistributedSampler

import lookbehind as lb
from lookbehind.integrations.lightning import SharpnessAwareModule, SharpnessAwarePrecision, StepMonitor

pytestmark = WARNINGS
ROOT = Path(__file__).parent.parent
EXAMPLES = [(x, y) for number in range(4) for x, y in zip(*batch(number), strict=True)]


class NetOnTop(SharpnessAwareModule, Task, pl.LightningModule):
    """Before a class of the user: its hooks go on to that one."""


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("method", [*CLIMBING, "lookahead"])
def test_a_run_equals_the_plain_loop(method, parts):
    module = Net(METHODS[method])
    runner = fitted(module, 5, accumulate_grad_batches=parts)
    model, optimizer, losses = plain_loop(METHODS[method], 5, parts)
    assert same(values(module), values(model))
    assert same(list(module.net.buffers()), list(model.buffers()))
    assert (runner.global_step, runner.optimizers[0].evaluations) == (len(losses), optimizer.evaluations)
    outputs = [sum(module.outputs[start : start + parts]) for start in range(0, 5, parts)]
    assert outputs == losses  # at the unperturbed weights
    assert float(runner.callback_metrics["loss"]) == pytest.approx(losses[-1] * parts, rel=1e-6)  # kept in float32
    assert optimizer.last is None or runner.optimizers[0].last.losses == optimizer.last.losses


def test_hooks_of_other_base_classes_are_called():
    module = NetOnTop(LOOKBEHIND)
    fitted(module, accumulate_grad_batches=2)
    model, _, losses = plain_loop(LOOKBEHIND, parts=2)
    assert same(values(module), values(model))
    assert [sum(module.outputs[:2]), sum(module.outputs[2:])] == losses


@pytest.mark.parametrize("parts", [1, 2])
def test_dropout_masks_are_replayed(parts):
    class Seeds(pl.Callback):  # after the data loader has drawn its own seed
        def on_train_epoch_start(self, runner, module):
            torch.manual_seed(1)

    def make(base):
        torch.manual_seed(1)
        return lb.LookbehindSAM(base, rho=0.1, k=2, rng="replay")

    module = Net(make, dropout=0.5)
    fitted(module, accumulate_grad_batches=parts, callbacks=[Seeds()])
    assert same(values(module), values(plain_loop(make, parts=parts, dropout=0.5)[0]))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_bf16_mixed_and_clipping_equal_the_plain_loop(precision):
    make = METHODS["multistep-mean"]
    options = {"cast": torch.bfloat16 if precision == "bf16-mixed" else None, "dtype": torch.float32}
    unclipped, clipped = plain_loop(make, **options)[0], plain_loop(make, clip=0.3, **options)[0]
    for clip, model in ((None, unclipped), (0.3, clipped)):
        module = Net(make, dtype=torch.float32)
        fitted(module, dtype=torch.float32, precision=precision, gradient_clip_val=clip)
        assert same(values(module), values(model))
    assert not same(values(clipped), values(unclipped))


def test_clipping_with_a_fused_base_equals_one_that_is_not_fused():
    """Lightning refuses to clip for optimizers that unscale by themselves, and would take a fused base for one."""
    found = []
    for fused in (False, True):
        module = Net(
            lambda base, fused=fused: lb.SAM(torch.optim.AdamW(base.param_groups, lr=0.01, fused=fused)),
            dtype=torch.float32,
        )
        fitted(module, dtype=torch.float32, precision="bf16-mixed", gradient_clip_val=0.3)
        found.append(values(module))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parts", [1, 2])
def test_fp16_equals_the_plain_loop_with_overflows(parts):
    module, own = Scaled(dtype=torch.float32), scaler()
    plugin = SharpnessAwarePrecision("16-mixed", "cpu", scaler())
    runner = fitted(module, 16, torch.float32, plugins=[plugin], accumulate_grad_batches=parts)
    make = lambda base: lb.LookbehindSAM(base, rho=0.1, k=2, scaler=own, clip=lb.clip_norm(0.5))  # noqa: E731
    model, optimizer, _ = plain_loop(make, 16, parts, scaler=own, cast=torch.float16, dtype=torch.float32)
    assert 0 < optimizer.skipped < 8
    assert runner.optimizers[0].skipped == optimizer.skipped
    assert plugin.scaler.state_dict() == own.state_dict()
    assert same(values(module), values(model))


@pytest.mark.parametrize("kind", ["plain", "accumulation", "fp16"])
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(kind, tmp_path):
    def run(epochs, directory, resumed_from=None):
        dtype, options = torch.float64, {"accumulate_grad_batches": 2 if kind == "accumulation" else 1}
        module = Net(NESTED, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4))
        if kind == "fp16":
            dtype, options = torch.float32, {"plugins": [SharpnessAwarePrecision("16-mixed", "cpu", scaler())]}
            module = Scaled(dtype=dtype)
        saving = ModelCheckpoint(tmp_path / directory, save_last=True)
        runner = trainer(max_epochs=epochs, enable_checkpointing=True, callbacks=[saving], **options)
        runner.fit(module, loader(5, dtype), ckpt_path=resumed_from)
        optimizer = runner.optimizers[0]
        numbers = (runner.global_step, optimizer.evaluations, optimizer.skipped, optimizer.param_groups[0]["lr"])
        return values(module), [*numbers, module.grad_scaler and module.grad_scaler.state_dict()]

    whole, numbers = run(3, "whole")
    run(1, "part")
    resumed, same_numbers = run(3, "resumed", tmp_path / "part" / "last.ckpt")
    assert same(whole, resumed)
    assert numbers == same_numbers
    steps, _, skipped, rate, _ = numbers
    expected = {"plain": (15, 1e-4), "accumulation": (9, 1e-3), "fp16": (15, 0.1)}[kind]
    assert (steps, rate) == (expected[0], pytest.approx(expected[1]))
    assert (skipped > 1) == (kind == "fp16")


def test_a_checkpoint_between_two_steps_warns_of_lost_gradients(tmp_path):
    class Saves(pl.Callback):
        def on_train_batch_end(self, runner, module, outputs, batch, batch_idx):
            if batch_idx == 2:
                runner.save_checkpoint(tmp_path / "between.ckpt")

    fitted(Net(), accumulate_grad_batches=2, callbacks=[Saves()])
    runner = trainer(accumulate_grad_batches=2)
    with pytest.warns(UserWarning, match="1 of 2 batches of this step are missing.*Save right after a step"):
        runner.fit(Net(), loader(4), ckpt_path=tmp_path / "between.ckpt")
    assert runner.global_step == 2


def test_the_monitor_logs_what_a_step_saw():
    class Keeps(pl.loggers.logger.DummyLogger):
        kept = {}  # noqa: RUF012

        def log_metrics(self, metrics, step=None):
            self.kept[step] = metrics

    make = METHODS["per-tensor"]
    fitted(Net(make), 8, callbacks=[StepMonitor()], logger=Keeps(), log_every_n_steps=4, accumulate_grad_batches=2)
    optimizer = plain_loop(make, 8, 2)[1]
    losses, alphas = optimizer.last.losses, optimizer.last.alpha
    expected = {"evaluations": 16, "skipped": 0, "loss": losses[0], "climb": losses[-1] - losses[0]}
    expected["alpha"] = sum(alphas) / len(alphas)
    (seen,) = Keeps.kept.values()
    for name, value in expected.items():
        assert seen["lookbehind/" + name] == pytest.approx(value, rel=1e-5), name  # Lightning keeps float32


def test_manual_optimization_equals_the_plain_loop():
    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            def closure():
                loss = loss_of(self.net, batch)
                self.log("loss", loss, batch_size=12)
                self.manual_backward(loss)
                return loss

            return {"loss": self.optimizers().step(closure)}

    module = Manual(LOOKBEHIND)
    runner = fitted(module)
    model, _, losses = plain_loop(LOOKBEHIND)
    assert same(values(module), values(model))
    assert runner.global_step == 4
    assert module.outputs == losses
    assert float(runner.callback_metrics["loss"]) == pytest.approx(losses[-1], rel=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
def test_other_optimizers_train_as_in_a_plain_module(parts):
    ours, lightnings = Net(lambda base: base), Plain(lambda base: base)
    for module in (ours, lightnings):
        fitted(module, accumulate_grad_batches=parts)
    assert same(values(ours), values(lightnings))
    assert ours.outputs == lightnings.outputs


def test_weight_averaging_passes_over_the_data_without_steps():
    class Records(pl.Callback):
        def __init__(self):
            self.seen = []

        def on_train_epoch_start(self, runner, module):
            self.seen.append(values(module))

    records, averaging = Records(), StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=1)
    module = Net(LOOKBEHIND)
    runner = fitted(module, 4, max_epochs=4, callbacks=[records, averaging])
    assert runner.optimizers[0].steps == 16  # the fifth pass is for BatchNorm
    mean = [torch.stack(tensors).mean(0) for tensors in zip(*records.seen[1:4], strict=True)]
    assert distance(values(module), mean) < 1e-14


def test_the_search_for_a_learning_rate_sees_unperturbed_losses(tmp_path):
    class Tuned(Net):
        lr = 0.1

        def on_train_batch_start(self, batch, batch_idx):
            SharpnessAwareModule.on_train_batch_start(self, batch, batch_idx)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            SharpnessAwareModule.on_train_batch_end(self, outputs, batch, batch_idx)

    runner = trainer(default_root_dir=tmp_path)
    found = Tuner(runner).lr_find(Tuned(LOOKBEHIND), loader(8), num_training=8, early_stop_threshold=None)
    first = plain_loop(LOOKBEHIND, 1)[2][0]
    assert found.results["loss"][0] == pytest.approx(first / 1.98, rel=1e-6)  # as Lightning smooths it
    assert len(found.results["loss"]) == 8


# --- several processes

STRATEGIES = ("ddp",) if OLD_TORCH else ("ddp", "fsdp2")  # FSDP2 on the CPU needs torch 2.7


def _in_processes(out: str) -> None:
    """Run by every rank: the weights after a run, for each way of training."""

    class Sharded(Net):
        def configure_model(self):
            if self.device_mesh is not None:
                torch.distributed.fsdp.fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def configure_optimizers(self):
            if self.make != "apart":
                return self.make(sgd(self.net))
            return lb.LookbehindSAM(sgd(self.net), rho=0.1, k=3, alpha=0.5, ranks="apart", model=self.trainer.model)

    def run(strategy, parts=1, make=LOOKBEHIND, epochs=1, save_to=None, resume_from=None):
        module = Sharded(make, batchnorm=False)
        strategy = ModelParallelStrategy(2, 1) if strategy == "fsdp2" else strategy
        options = {"use_distributed_sampler": False, "accumulate_grad_batches": parts, "max_epochs": epochs}
        runner = trainer(strategy=strategy, devices=2, **options)
        sampler = DistributedSampler(EXAMPLES, 2, int(os.environ.get("LOCAL_RANK", 0)), shuffle=False)
        runner.fit(module, DataLoader(EXAMPLES, batch_size=6, sampler=sampler), ckpt_path=resume_from)
        if save_to:
            runner.save_checkpoint(save_to)
        return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in values(module)]

    found = {}
    for parts in (1, 2):
        for strategy in STRATEGIES:
            found[f"{strategy} {parts}"] = run(strategy, parts)
        found[f"apart {parts}"] = run("ddp", parts, "apart")
    for strategy in STRATEGIES:
        found[f"{strategy} whole"] = run(strategy, make=NESTED, epochs=2)
        run(strategy, make=NESTED, save_to=f"{out}/{strategy}")
        found[f"{strategy} resumed"] = run(strategy, make=NESTED, epochs=2, resume_from=f"{out}/{strategy}")
    torch.save(found, f"{out}/rank{os.environ['LOCAL_RANK']}")


def climbed_apart(parts):
    """A model trained by m-SAM, with the ranks' halves of the batches as micro-batches."""
    model = net(batchnorm=False)
    optimizer = LOOKBEHIND(sgd(model))
    for start in range(0, 4, parts):
        halves = [[[x[half::2] for x in batch(start + i)] for i in range(parts)] for half in (0, 1)]
        each = [(1, lb.accumulated(lambda data: loss_of(model, data), half)) for half in halves]
        optimizer.step(lb.micro_batches(*each))
    return model


def test_two_processes_equal_one_with_the_whole_batch(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, str(tmp_path)]
    ended = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    ranks = [torch.load(tmp_path / rank) for rank in ("rank0", "rank1")]
    for parts in (1, 2):
        whole = values(plain_loop(LOOKBEHIND, parts=parts, batchnorm=False)[0])
        apart = values(climbed_apart(parts))
        for found in ranks:
            for strategy in STRATEGIES:
                assert distance(found[f"{strategy} {parts}"], whole) < 1e-14
            assert distance(found[f"apart {parts}"], apart) < 1e-14
            assert distance(found[f"apart {parts}"], whole) > 1e-3
    for found in ranks:
        for strategy in STRATEGIES:
            assert same(found[f"{strategy} whole"], found[f"{strategy} resumed"])
        assert distance(found["ddp whole"], found["ddp 1"]) > 1e-3


# --- the example


def test_the_example_equals_the_plain_loop():
    example = runpy.run_path(str(ROOT / "examples" / "lightning_training.py"))
    torch.manual_seed(0)
    module = example["Classifier"]()
    torch.manual_seed(0)
    model = example["Classifier"]()
    trainer(max_epochs=2, accumulate_grad_batches=2).fit(module, example["batches"]())
    (optimizer,), (scheduler,) = model.configure_optimizers()

    def loss(data):
        return torch.nn.functional.cross_entropy(model.net(data[0]), data[1])

    for _ in range(2):
        data = list(example["batches"]())
        for pair in zip(data[::2], data[1::2], strict=True):
            last = optimizer.step(lb.accumulated(loss, pair))
        scheduler.step()
    assert same(values(module), values(model))
    assert same(list(module.buffers()), list(model.buffers()))
    assert float(last) < 0.3  # from 0.7


if __name__ == "__main__":
    _in_processes(sys.argv[1])
