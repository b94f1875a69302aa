"""Modules of PyTorch Lightning, trainers that fit them, and the plain loop that they equal."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import lightning.pytorch as pl
import pytest
import torch
from problems import METHODS, batch, loss_of, net, sgd
from torch.amp import GradScaler
from torch.utils.data import DataLoader

import lookbehind as lb
from lookbehind.integrations.lightning import SharpnessAwareModule

WARNINGS = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:The dirpath has changed",
    "ignore:.*resuming from a checkpoint that ended before the epoch",
)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SAM, LOOKBEHIND, NESTED = METHODS["sam"], METHODS["lookbehind"], METHODS["lookahead-lookbehind"]


class Task:
    """What a user writes; it remembers what callbacks see. Hooks do not call super(), as is usual."""

    def __init__(self, make=SAM, scheduler=None, **options):
        super().__init__()
        self.net, self.make, self.scheduler, self.outputs = net(**options), make, scheduler, []

    def training_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=12)
        return {"loss": loss, "index": batch_idx}

    def on_train_batch_start(self, batch, batch_idx):
        pass

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outputs.append(float(outputs["loss"]))

    def configure_optimizers(self):
        optimizer = self.make(sgd(self.net))
        return [optimizer], [{"scheduler": self.scheduler(optimizer), "interval": "step"}] if self.scheduler else []


class Net(Task, SharpnessAwareModule):
    pass


class Plain(Task, pl.LightningModule):
    pass


class Scaled(Net):
    def configure_optimizers(self):
        return lb.LookbehindSAM(sgd(self.net), rho=0.1, k=2, scaler=self.grad_scaler, clip=lb.clip_norm(0.5))


def scaler(scale=2.0**22):  # overflows at first
    return GradScaler("cpu", init_scale=scale, growth_interval=3)


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "devices": 1, "enable_model_summary": False} | quiet | options
    )


def loader(count, dtype=torch.float64):
    return DataLoader([batch(number, dtype=dtype) for number in range(count)], batch_size=None)


def fitted(module, count=4, dtype=torch.float64, **options):
    runner = trainer(**options)
    runner.fit(module, loader(count, dtype))
    return runner


def plain_loop(make, count=4, parts=1, *, scaler=None, cast=None, dtype=torch.float64, clip=None, **options):
    """Model, optimizer and losses; batches weigh 1 / parts, as in Lightning, also where a step has fewer."""
    model = net(dtype, **options)
    optimizer = make(sgd(model))

    def loss(number):
        with torch.autocast("cpu", cast, cache_enabled=False) if cast else nullcontext():
            return loss_of(model, batch(number, dtype=dtype))

    def step(numbers):
        evaluate = lb.accumulated(lambda number: loss(number) * (len(numbers) / parts), numbers, scaler=scaler)

        def closure():
            result = evaluate()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            return result

        result = optimizer.step(closure)
        model.zero_grad()
        return float(result)

    return model, optimizer, [step(range(start, min(start + parts, count))) for start in range(0, count, parts)]
