"""The Hugging Face Trainer: equal to a plain loop, and to itself where nothing climbs."""

from __future__ import annotations

import logging
import os
import runpy
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from huggingface_trainers import (
    STEPS,
    WARNINGS,
    _no_state_is_left,  # noqa: F401, a fixture
    arguments,
    language_model,
    lookbehind_sam,
    make,
    sentences,
    transformers,
)
from problems import distance, same, values
from ranks import leave

import lookbehind as lb
from lookbehind.integrations.huggingface import SharpnessAwareTrainer

pytestmark = WARNINGS
EXAMPLE = Path(__file__).parent.parent / "examples" / "huggingface_trainer.py"


def batch_of(data: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([one[name] for one in data]) for name in data[0]}


def trained(*args, **kwargs):
    trainer = make(*args, **kwargs)
    trainer.train()
    return trainer


def plain_loop(make_optimizer, steps: int = STEPS, max_norm: float | None = 1.0) -> tuple[list, list]:
    """What a user writes without the Trainer: the weights after each step, and the learning rates."""
    model, data = language_model(), sentences()
    decays = [n for n, p in model.named_parameters() if p.dim() > 1]
    groups = [
        {"params": [(n, p) for n, p in model.named_parameters() if n in decays], "weight_decay": 0.1},
        {"params": [(n, p) for n, p in model.named_parameters() if n not in decays], "weight_decay": 0.0},
    ]
    # its default depends on the version of torch
    fused = transformers.TrainingArguments.__dataclass_fields__["optim"].default == "adamw_torch_fused"
    base = torch.optim.AdamW(groups, lr=0.01, fused=fused)
    optimizer = make_optimizer(base)
    optimizer.clip = None if max_norm is None else lb.clip_norm(max_norm)
    scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, 0, STEPS)
    weights, rates = [], []
    for step in range(steps):
        batch = batch_of(data[4 * step : 4 * step + 4])

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(**batch, num_items_in_batch=batch["labels"][:, 1:].ne(-100).sum()).loss
            loss.backward()
            return loss

        optimizer.step(closure)
        rates.append(scheduler.get_last_lr()[0])
        scheduler.step()
        weights.append(values(model))
    return weights, rates


METHODS = {
    "sam": lambda base: lb.SAM(base, rho=0.1),
    "asam, which asks for names": lambda base: lb.ASAM(base, rho=0.5),
    "lookbehind": lookbehind_sam,
    "a mean with the clean gradient": lambda base: lb.MultistepSAM(base, rho=0.1, k=2, average="with-clean"),
    "plain steps between": lambda base: lb.LookbehindSAM(base, rho=0.1, k=2, schedule=lb.Schedule(every=2)),
}


@pytest.mark.parametrize("method", METHODS)
def test_it_equals_the_plain_loop_bit_for_bit(method, tmp_path):
    """AdamW in its two groups, a schedule, and a norm that is clipped in every step."""
    weights, rates = plain_loop(METHODS[method], max_norm=0.1)
    trainer = trained(tmp_path, METHODS[method], max_grad_norm=0.1)
    assert same(values(trainer.model), weights[-1])
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["learning_rate"] for entry in logged] == rates
    assert all(entry["grad_norm"] > 0.1 for entry in logged)  # before clipping


def test_clipping_is_of_the_descent_and_can_be_left_away(tmp_path):
    clipped, _ = plain_loop(lookbehind_sam, max_norm=0.1)
    free, _ = plain_loop(lookbehind_sam, max_norm=None)
    assert distance(clipped[-1], free[-1]) > 1e-4
    assert same(values(trained(tmp_path, max_grad_norm=0).model), free[-1])


def test_evaluations_and_alpha_are_logged(tmp_path):
    per_tensor = lambda base: lb.LookbehindSAM(base, rho=0.1, k=2, alpha="adaptive-per-tensor")  # noqa: E731
    trainer = trained(tmp_path, per_tensor, logging_steps=2, eval_strategy="no")
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["evaluations"] for entry in logged] == [6, 12]
    assert [entry["skipped"] for entry in logged] == [0, 0]
    assert all(0 < entry["alpha"] < 1 for entry in logged)
    alphas = trainer.sharpness_aware.last.alpha
    trainer.log({"loss": 0.0})
    assert len(alphas) > 5
    assert trainer.state.log_history[-1]["alpha"] == pytest.approx(sum(alphas) / len(alphas))
    sam = trained(tmp_path, METHODS["sam"], max_steps=1)
    assert "alpha" not in sam.state.log_history[0]
    assert sam.state.log_history[0]["evaluations"] == 2


def test_the_losses_are_those_at_the_weights(tmp_path):
    plain = trained(tmp_path, None, transformers.Trainer, max_steps=1)
    climbing = trained(tmp_path, max_steps=1)
    assert climbing.state.log_history[0]["loss"] == plain.state.log_history[0]["loss"]
    last = climbing.sharpness_aware.last
    assert last.loss == pytest.approx(plain.state.log_history[0]["loss"])
    assert last.losses[2] > last.losses[1] > last.losses[0]
    assert climbing.state.total_flos == 3 * plain.state.total_flos


# --- where nothing climbs, it is the Trainer itself


class Stream(torch.utils.data.IterableDataset):
    """Ends in the middle of a minibatch, which the Trainer then fills from the next epoch."""

    def __iter__(self):
        yield from sentences()


class Mean(transformers.Trainer):
    """A loss that is a mean, which the Trainer divides by the number of micro-batches."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return torch.nn.functional.cross_entropy(model(**inputs).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class ClimbingMean(SharpnessAwareTrainer, Mean):
    pass


def doubled(outputs, labels, num_items_in_batch):
    return 2 * torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


CASES = {
    "accumulation with a rest": {"gradient_accumulation_steps": 3, "max_steps": 4},
    "a stream": {"gradient_accumulation_steps": 2, "data": Stream(), "max_steps": 4},
    "a stream and a loss of one's own": {
        "kind": (Mean, ClimbingMean),
        "data": Stream(),
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
    },
    "a loss of one's own": {"kind": (Mean, ClimbingMean), "gradient_accumulation_steps": 2},
    "label smoothing": {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2},
    "a loss function": {"more": {"compute_loss_func": doubled}, "gradient_accumulation_steps": 2},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bfloat16": {"bf16": True},
    "sgd": {"optim": "sgd"},
}


@pytest.mark.parametrize("case", CASES)
def test_without_a_radius_it_is_the_trainer_bit_for_bit(case, tmp_path):
    settings = dict(CASES[case])
    plain_kind, kind = settings.pop("kind", (transformers.Trainer, SharpnessAwareTrainer))
    plain = trained(tmp_path, None, plain_kind, max_grad_norm=0, **settings)
    trainer = trained(tmp_path, lambda base: lb.SAM(base, rho=0.0), kind, max_grad_norm=0, **settings)
    assert same(values(trainer.model), values(plain.model))
    assert not same(values(trainer.model), values(language_model()))
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (trainer, plain)]
    assert losses[0] == losses[1]


def test_accumulation_equals_the_large_minibatch(tmp_path):
    """Every point of the climb sees all micro-batches, of different numbers of labels."""
    settings = {"optim": "sgd", "learning_rate": 0.5, "max_steps": 2}
    whole = trained(tmp_path, per_device_train_batch_size=8, **settings)
    parts = trained(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, **settings)
    assert parts.sharpness_aware.evaluations == whole.sharpness_aware.evaluations == 6
    moved = distance(values(whole.model), values(language_model()))
    assert distance(values(whole.model), values(parts.model)) < 1e-6 * moved + 1e-7
    assert parts.sharpness_aware.last.losses == pytest.approx(whole.sharpness_aware.last.losses, rel=1e-6)


# --- stopping, going on, evaluating


def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    """From the middle of an epoch, with dropout, a schedule and accumulation."""
    settings = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2, "max_steps": 5}
    settings |= {"train_sampling_strategy": "random"}
    whole = trained(tmp_path / "a", model=language_model(dropout=0.3), **settings)
    again = make(tmp_path / "b", model=language_model(dropout=0.3), **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert same(values(again.model), values(whole.model))
    assert again.sharpness_aware.evaluations == whole.sharpness_aware.evaluations == 15
    strip = lambda t: [{k: v for k, v in e.items() if "runtime" not in k and "second" not in k} for e in t]  # noqa: E731
    assert strip(again.state.log_history)[2:5] == strip(whole.state.log_history)[2:5]


def test_another_method_does_not_resume(tmp_path):
    trained(tmp_path, save_strategy="steps", save_steps=2, max_steps=2)
    other = make(tmp_path, METHODS["sam"])
    with pytest.raises(ValueError, match="saved by another method: descent was each, here it is last"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_evaluation_and_the_best_model_have_unperturbed_weights(tmp_path):
    trainer = make(
        tmp_path, more={"eval_dataset": sentences()[:4]}, eval_strategy="steps", eval_steps=1, save_steps=1,
        save_strategy="steps", load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=False,
    )  # fmt: skip
    trainer.train()
    weights, _ = plain_loop(lookbehind_sam)
    model, losses = language_model(), []
    for point in weights:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), point, strict=True):
                parameter.copy_(value)
            losses.append(float(model.eval()(**batch_of(sentences()[:4])).loss))
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-6)
    best = losses.index(min(losses))
    assert best < STEPS - 1, "the last is the best: this tests nothing"
    assert same(values(trainer.model), weights[best])


def test_a_second_call_of_train_goes_on(tmp_path):
    trainer = trained(tmp_path, max_steps=2)
    optimizer = trainer.sharpness_aware
    trainer.train()
    assert trainer.sharpness_aware is optimizer
    assert optimizer.evaluations == 12


def test_it_joins_with_other_trainers(tmp_path):
    class Mine(SharpnessAwareTrainer, transformers.Seq2SeqTrainer):
        pass

    args = transformers.Seq2SeqTrainingArguments(**arguments(tmp_path).to_dict() | {"predict_with_generate": False})
    trainer = Mine(language_model(), args, train_dataset=sentences(), sharpness=lookbehind_sam)
    trainer.train()
    assert same(values(trainer.model), plain_loop(lookbehind_sam)[0][-1])


def test_the_example_learns(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    trainer = main(str(tmp_path))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] > 1.5
    assert losses[-1] < 0.6
    assert trainer.state.log_history[-2]["evaluations"] == 3 * 60
    assert len(EXAMPLE.read_text().splitlines()) <= 50


# --- fp16: the scaler, which the Trainer does not make on the CPU


def scaled(directory, scaler, **changed):
    """A Trainer as with fp16=True on a GPU, but for the autocast."""
    trainer = make(directory, **changed)
    trainer.accelerator.scaler = scaler
    return trainer


@pytest.mark.parametrize("max_grad_norm", [0, 0.1])
def test_scaled_gradients_change_nothing(tmp_path, max_grad_norm):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    trainer = scaled(tmp_path, scaler, max_grad_norm=max_grad_norm)
    trainer.train()
    assert trainer.sharpness_aware.scaler is scaler
    assert scaler.get_scale() == 2.0**14
    assert same(values(trainer.model), values(trained(tmp_path, max_grad_norm=max_grad_norm).model))


@pytest.mark.parametrize("evaluation", [0, 2])
def test_an_overflow_at_any_point_passes_over_the_step(tmp_path, evaluation):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    trainer = scaled(tmp_path, scaler, max_steps=2)
    calls = []

    def overflowing(gradient):
        calls.append(values(trainer.model))
        return gradient * float("inf") if len(calls) == evaluation + 4 else gradient  # in the second step

    trainer.model.transformer.wte.weight.register_hook(overflowing)
    trainer.train()
    assert same(values(trainer.model), calls[3])
    assert scaler.get_scale() == 2.0**11
    assert trainer.state.log_history[1]["skipped"] == (1 if evaluation else 0)
    assert trainer.sharpness_aware.evaluations == (6 if evaluation else 3)


# --- several processes


def _one_of_two(rank: int, port: int, directory: str) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    settings = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    trainer = trained(directory, optim="sgd", ddp_backend="gloo", **settings)
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    torch.save(values(trainer.model), f"{directory}/{rank}.pt")
    leave()


def test_two_processes_equal_one(tmp_path):
    single = trained(tmp_path, optim="sgd")
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    mp.start_processes(_one_of_two, (port, str(tmp_path)), nprocs=2, start_method="forkserver")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert same(first, second)
    assert distance(first, values(single.model)) < 1e-6
