"""A small language model and its sentences, for the Trainer of Hugging Face."""

from __future__ import annotations

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

import lookbehind as lb  # noqa: E402
from lookbehind.integrations.huggingface import SharpnessAwareTrainer  # noqa: E402

WARNINGS = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0"),
    pytest.mark.filterwarnings("ignore::FutureWarning:accelerate"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
]
STEPS = 5


@pytest.fixture(autouse=True)
def _no_state_is_left():
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def language_model(dropout: float = 0.0):
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=6, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else the Trainer counts labels that have no prediction
    return model


def sentences(number: int = 20) -> list[dict[str, torch.Tensor]]:
    """Of six words, of which some have no label: the micro-batches differ in their number of items."""
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(0, 11, (number, 6), generator=generator)
    labels = torch.where(torch.rand(number, 6, generator=generator) < 0.3, -100, words)
    return [{"input_ids": w, "labels": label} for w, label in zip(words, labels, strict=True)]


def arguments(directory, **changed):
    usual = {
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "lr_scheduler_type": "cosine",
        "per_device_train_batch_size": 4,
        "train_sampling_strategy": "sequential",
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.TrainingArguments(str(directory), **{**usual, **changed})


def lookbehind_sam(base):
    return lb.LookbehindSAM(base, rho=0.1, k=2, alpha="adaptive")


def make(directory, sharpness=lookbehind_sam, kind=SharpnessAwareTrainer, data=None, model=None, more=None, **changed):
    own = {} if sharpness is None else {"sharpness": sharpness}
    args = arguments(directory, **changed)
    return kind(model or language_model(), args, train_dataset=data or sentences(), **own, **(more or {}))
