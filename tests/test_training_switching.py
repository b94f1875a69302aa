"""A new minibatch per ascent step, in the training loop: which minibatches, which learning rates, what it costs."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from lookbehind import LookbehindSAM, switching
from lookbehind.data.vision import load
from lookbehind.models import build
from lookbehind.training.loop import Training
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, train

RUN = {"method": "lookbehind-sam-switching", "train_images": 150, "batch_size": 30, "lr": 0.05, "rho": 0.1}


def by_hand(run: Run, k: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The loop that a person would write: minibatches in a row, k of them per step, one scheduler step for each."""
    filled = run.filled
    training = Training(run, load("digits", seed=run.seed))  # for its minibatches and first weights
    model = build("convnet", classes=10, channels=1)
    model.load_state_dict(training.model.state_dict())
    model = model.to(memory_format=torch.channels_last)
    base = torch.optim.SGD(model.named_parameters(), lr=filled.lr, momentum=0.9, weight_decay=filled.weight_decay)
    optimizer = LookbehindSAM(base, rho=0.1, k=k, alpha=0.5, model=model, batchnorm="first")
    minibatches = [batch for epoch in range(filled.epochs) for batch in training.parts.train.epoch(epoch)]
    scheduler = torch.optim.lr_scheduler.LambdaLR(base, lambda n: (1 + math.cos(math.pi * n / len(minibatches))) / 2)
    rates = []
    for first in range(0, len(minibatches) - k + 1, k):

        def closure(number: int) -> torch.Tensor:
            optimizer.zero_grad()
            inputs, labels = minibatches[number]
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        rates.append(base.param_groups[0]["lr"])
        optimizer.step(switching(*((lambda n=first + i: closure(n)) for i in range(k))))
        for _ in range(k):
            scheduler.step()
    return model.state_dict(), rates


@pytest.mark.parametrize(("k", "epochs"), [(2, 3), (3, 2), (5, 2), (4, 3)])
def test_the_loop_is_the_one_that_a_person_would_write(k, epochs):
    """Epochs of 5 minibatches: with k = 2, 3 and 4 some are left over and carry on."""
    run = Run(**RUN, k=k, alpha=0.5, epochs=epochs)
    training, rates = Training(run, load("digits", seed=0)), []
    while not training.finished:
        assert training.train_epoch(lambda: (rates.append(training.base.param_groups[0]["lr"]), True)[1])
        rates.append(training.base.param_groups[0]["lr"])
        training.epoch_record()
    expected, wanted = by_hand(run, k)
    assert rates == pytest.approx(wanted, rel=1e-12)
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    steps = 5 * epochs // k
    assert training.step == steps * k
    assert training.evaluations == 2 * training.step  # as SAM's, per minibatch


@pytest.mark.parametrize("k", [2, 3, 4])
def test_every_epoch_has_its_record(k, tmp_path):
    records = train(Run(**RUN, k=k, epochs=4), Storage(out=tmp_path))
    assert [record["epoch"] for record in records[:-1]] == [1, 2, 3, 4]
    assert records[-1]["gradient_evaluations"] == 2 * (20 // k * k)


@pytest.mark.parametrize(
    "method",
    ["lookbehind-sam-switching", "lookbehind-sam-switching+sam@1", "sgd+lookbehind-asam-switching@2"],
)
def test_a_run_that_is_stopped_after_every_step_ends_as_one_that_is_not(method, tmp_path):
    run = Run(**{**RUN, "method": method}, k=3, epochs=3)
    whole = train(run, Storage(out=tmp_path / "one"))
    records = []
    while not records or records[-1]["event"] != "end":
        records = train(run, Storage(out=tmp_path / "two"), stop=lambda: True)
    for one, two in zip(whole, records, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}


def test_an_epoch_that_is_too_short_for_a_step_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"k=6 with lookbehind-sam-switching: .* an epoch has 5"):
        train(Run(**RUN, k=6, epochs=1), Storage(out=tmp_path))


def test_with_k_1_it_is_sam(tmp_path):
    one = train(Run(**RUN, k=1, alpha=1.0, epochs=2), Storage(out=tmp_path))[-1]
    sam = train(Run(**{**RUN, "method": "sam"}, epochs=2), Storage(out=tmp_path))[-1]
    assert one["test_loss"] == sam["test_loss"]
    assert one["gradient_evaluations"] == sam["gradient_evaluations"]
