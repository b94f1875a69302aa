"""PyTorch Lightning: what cannot work says what to do, and a package that is missing is asked for."""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import pytest
import torchmetrics
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning_tasks import SAM, WARNINGS, Net, Plain, Scaled, fitted, plain_loop, scaler
from problems import loss_of, same, values

import lookbehind as lb
from lookbehind.integrations import lightning as integration
from lookbehind.integrations.lightning import SharpnessAwarePrecision

pytestmark = WARNINGS


class Clips(Scaled):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        pass


class Looks(pl.Callback):
    def on_before_optimizer_step(self, runner, module, optimizer):
        pass


class Iterates(Net):
    def training_step(self, dataloader_iter):
        return loss_of(self.net, next(dataloader_iter)[0])


class Forgets(Net):
    def configure_callbacks(self):
        return []


class Skips(Net):
    def training_step(self, batch, batch_idx):
        return loss_of(self.net, batch) if self.climbing else None


class SkipsPerturbed(Net):
    def training_step(self, batch, batch_idx):
        return None if self.climbing else loss_of(self.net, batch)


class Counts(Net):
    careful = False

    def __init__(self):
        super().__init__()
        self.mean = torchmetrics.MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch)
        if not (self.careful and self.climbing):
            self.mean(loss)
        return {"loss": loss}


class CountsWithCare(Counts):
    careful = True


class OwnStep(Precision):
    def optimizer_step(self, optimizer, model, closure, **kwargs):
        closure()
        return optimizer.step()


def averaging():
    assert hasattr(DDPStrategy(), "_model_averager")  # where Lightning keeps it
    strategy = SingleDeviceStrategy("cpu")
    strategy._model_averager = object()
    return strategy


def ours():
    return [SharpnessAwarePrecision("16-mixed", "cpu", scaler(2.0))]


REFUSED = {
    "Lightning's fp16": (
        Net,
        lambda: {"plugins": [MixedPrecision("16-mixed", "cpu", scaler())]},
        ValueError,
        r"SAM with precision='16-mixed'.*plugins=\[SharpnessAwarePrecision\('16-mixed', 'cpu'\)\].*self.grad_scaler",
    ),
    "a scaler of its own": (
        lambda: Net(lambda base: lb.SAM(base, scaler=scaler())),
        lambda: {"plugins": ours()},
        ValueError,
        "SAM has another GradScaler .*give it scaler=self.grad_scaler",
    ),
    "no scaler": (Net, lambda: {"plugins": ours()}, ValueError, "SAM has no GradScaler .*scaler=self.grad_scaler"),
    "clipping in fp16": (
        Scaled,
        lambda: {"plugins": ours(), "gradient_clip_val": 1.0},
        ValueError,
        r"gradient_clip_val or .* clip=lookbehind.clip_norm\(1.0\)",
    ),
    "own clipping in fp16": (
        Clips,
        lambda: {"plugins": ours()},
        ValueError,
        "or configure_gradient_clipping with Sharp",
    ),
    "gradients seen in fp16": (
        Scaled,
        lambda: {"plugins": ours(), "callbacks": [Looks()]},
        ValueError,
        "Looks.on_before_optimizer_step .*optimizer.last.gradient_norms",
    ),
    "own step": (Net, lambda: {"plugins": [OwnStep()]}, ValueError, "OwnStep: it may step without .*'bf16-mixed'"),
    "averaging": (Net, lambda: {"strategy": averaging()}, ValueError, r"model_averaging_period=.*Leave it out"),
    "iterator": (
        Iterates,
        dict,
        ValueError,
        r"SAM with training_step\(dataloader_iter\).*Write training_step\(self, batch",
    ),
    "no batches": (
        Forgets,
        dict,
        RuntimeError,
        r"Forgets does not keep the batches.*super\(\).configure_callbacks\(\)",
    ),
    "no loss": (Skips, dict, TypeError, "training_step returned None.*Leave the batch out"),
    "no perturbed loss": (SkipsPerturbed, dict, TypeError, "training_step returned None.*Leave the batch out"),
    "metrics": (Counts, dict, RuntimeError, "a metric was updated at perturbed weights.*`if not self.climbing:`"),
    "plain module accumulates": (
        Plain,
        lambda: {"accumulate_grad_batches": 2},
        RuntimeError,
        "has a gradient before the step.*For gradient accumulation",
    ),
    "plain module in fp16": (
        Plain,
        lambda: {"plugins": [MixedPrecision("16-mixed", "cpu", scaler(2.0))]},
        TypeError,
        r"step\(\) without a closure",
    ),
}


@pytest.mark.filterwarnings("ignore:.*dataloader_iter", "ignore:.*returned `None`")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_says_what_to_do(case):
    make, options, error, message = REFUSED[case]
    module = make()
    before = values(module)
    with pytest.raises(error, match=message):
        fitted(module, **options())
    assert same(values(module), before)


def test_an_unknown_strategy_is_refused(monkeypatch):
    monkeypatch.setattr(integration, "_STRATEGIES", (DDPStrategy,))
    with pytest.raises(ValueError, match=r"SAM with SingleDeviceStrategy: it may not evaluate a closure. Use .*'ddp'"):
        fitted(Net())


def test_metrics_may_count_unperturbed_predictions():
    module = CountsWithCare()
    fitted(module)
    losses = plain_loop(SAM)[2]
    assert module.mean.update_count == 4
    assert float(module.mean.compute()) == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_lightning_is_found_under_either_name_or_asked_for(monkeypatch):
    assert integration._lightning() is pl
    monkeypatch.setitem(sys.modules, "pytorch_lightning", "the other name")
    assert integration._lightning() is pl
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.delitem(sys.modules, name)
    assert integration._lightning() == "the other name"
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"pip install 'lookbehind\[lightning\]'"):
        integration._lightning()
