"""The Hugging Face Trainer: what cannot work is refused, and a package that is missing or too old is named."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from huggingface_trainers import (
    WARNINGS,
    _no_state_is_left,  # noqa: F401, a fixture
    accelerate,
    language_model,
    lookbehind_sam,
    make,
    transformers,
)
from problems import same, values

import lookbehind as lb
from lookbehind.integrations.huggingface import SharpnessAwareTrainer

pytestmark = WARNINGS


class ForgetsTheOptimizer(SharpnessAwareTrainer):
    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer


class ForgetsTheLoss(SharpnessAwareTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"sharpness": lambda base: lb.SAM(base, rng="replay")}, ValueError, "rng='replay': .* use rng='fresh', or"),
        ({"sharpness": lb.Lookahead}, TypeError, "Lookahead: the Trainer evaluates .* Give a LookbehindSAM, SAM, "),
        ({"sharpness": lambda base: lb.Lookahead(lb.SAM(base))}, TypeError, "gave a Lookahead: .* without it; or"),
        ({"sharpness": lambda base: base}, TypeError, "wrap the optimizer that it is called with, sharpness=lambda"),
        (
            {"sharpness": lambda base: lb.SAM(torch.optim.SGD(base.param_groups[0]["params"], lr=0.1))},
            TypeError,
            "wrap the optimizer that it is called with, .* Another base optimizer is given to the Trainer: optim=",
        ),
        (
            {"sharpness": lambda base: lb.SAM(base, clip=lb.clip_norm(0.5))},
            ValueError,
            r"clip=clip_norm\(.*\) and max_grad_norm=1.0: .* clipped twice. Give max_grad_norm=0",
        ),
        (
            {"sharpness": lambda base: lb.SAM(base, scaler=torch.amp.GradScaler("cpu"))},
            ValueError,
            "scaler=: leave it out; the optimizer gets the Trainer's own",
        ),
        ({"sharpness": lambda base: lb.SAM(base, ranks="apart")}, ValueError, "ranks='apart': .* ranks='together'"),
        (
            {"more": {"optimizers": (torch.optim.SGD(language_model().parameters(), lr=0.1), None)}},
            ValueError,
            r"parameters that the model has not: make it from model.parameters\(\)",
        ),
        ({"kind": ForgetsTheOptimizer}, RuntimeError, r"is SGD, not .*: call super\(\).create_optimizer\(\)"),
        ({"kind": ForgetsTheLoss}, RuntimeError, r"1 micro-batches and 0 losses .* call super\(\)\.get_batch_samples"),
    ],
)
def test_what_cannot_work_is_refused_before_a_step_is_taken(tmp_path, settings, error, message):
    trainer = make(tmp_path, **settings)
    with pytest.raises(error, match=message):
        trainer.train()
    assert same(values(trainer.model), values(language_model()))


def with_flag(flag):
    class Flagged(SharpnessAwareTrainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            flag(self)

    return Flagged


def sharded(trainer):
    kind = type("Sharded", (type(trainer.model),), {"is_distributed_loading_by_transformers": True})
    trainer.model.__class__ = kind


def parallel(trainer):
    config = trainer.accelerator.state.parallelism_config = accelerate.ParallelismConfig()
    if not hasattr(config, "sp_backend"):  # which old versions lack, and transformers reads
        config.sp_backend = None


def xla(trainer):
    trainer.accelerator.state.distributed_type = "XLA"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"sharpness": 0.05},
            TypeError,
            "sharpness=0.05: give a function of the base optimizer, sharpness=lambda base",
        ),
        ({"optim": "galore_adamw_layerwise"}, ValueError, "optim='galore_adamw_layerwise' is not .*; use another"),
        ({"optim": "adalomo"}, ValueError, r"optim='adalomo' is not supported: it changes the weights during backward"),
        (
            {"kind": with_flag(lambda trainer: setattr(trainer, "is_deepspeed_enabled", True))},
            ValueError,
            "with DeepSpeed is not supported: it steps by itself; use DistributedDataParallel",
        ),
        (
            {"kind": with_flag(lambda trainer: setattr(trainer, "is_fsdp_enabled", True))},
            ValueError,
            "with FSDP is not supported: use DistributedDataParallel .* with torch's fully_shard",
        ),
        ({"kind": with_flag(sharded)}, ValueError, "a model sharded when it was loaded is not supported: use Distrib"),
        ({"kind": with_flag(parallel)}, ValueError, "with parallelism_config is not supported: use DistributedData"),
        ({"kind": with_flag(xla)}, ValueError, "with a TPU is not supported: use DistributedDataParallel"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        make(tmp_path, **settings)


def test_the_plain_trainer_refuses_our_optimizers(tmp_path):
    model = language_model()
    optimizer = lookbehind_sam(torch.optim.SGD(model.named_parameters(), lr=0.1))
    plain = make(tmp_path, None, transformers.Trainer, model=model, more={"optimizers": (optimizer, None)})
    with pytest.raises(TypeError, match=r"step\(\) without a closure"):
        plain.train()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "lookbehind.integrations.huggingface")
    with pytest.raises(ImportError, match=r"transformers and accelerate: pip install 'lookbehind\[huggingface\]'"):
        importlib.import_module("lookbehind.integrations.huggingface")


def test_a_trainer_without_the_places_to_hook_in_is_refused(monkeypatch):
    monkeypatch.delattr(transformers.Trainer, "_clip_grad_norm")
    monkeypatch.delitem(sys.modules, "lookbehind.integrations.huggingface")
    with pytest.raises(ImportError, match=r"too old: pip install -U 'lookbehind\[huggingface\]'"):
        importlib.import_module("lookbehind.integrations.huggingface")
