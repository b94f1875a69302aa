"""What saves gradients: climbing now and then, on a part of the minibatch; and the average of the weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import lookbehind
from lookbehind.data.batches import Batches, seed_for
from lookbehind.data.vision import load
from lookbehind.measures.accuracy import score
from lookbehind.models import build
from lookbehind.training.averaging import Average
from lookbehind.training.evaluate import evaluate
from lookbehind.training.loop import Training
from lookbehind.training.run import Run, with_overrides
from lookbehind.training.schedules import Course
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage, train

QUICK = {"epochs": 2, "batch_size": 100}  # three steps per epoch
SAM = {"rho": 0.05, "batchnorm": "first"}


@pytest.fixture(scope="module")
def digits():
    return load("digits", seed=0)


def ended(run: Run, data) -> Training:
    training = Training(run, data)
    while not training.finished:
        training.train_epoch(lambda: True)
    return training


def by_hand(run: Run, data, part: float):
    """SAM (or Lookbehind) by a plain loop that climbs at every second step, the first evaluation on a part."""
    torch.manual_seed(seed_for(run.seed, "weights"))
    model = build("convnet", classes=10, channels=1).to(memory_format=torch.channels_last)
    base = torch.optim.SGD(model.named_parameters(), lr=0.05, momentum=0.9)
    make = lookbehind.LookbehindSAM if run.method == "lookbehind-sam" else lookbehind.SAM
    numbers = {"k": run.k, "alpha": run.alpha} if run.method == "lookbehind-sam" else {}
    optimizer = make(base, model=model, **SAM, **numbers)
    batches = Batches(data.train, data.mean, data.std, run.batch_size, run.seed)
    total, step, images = run.epochs * len(batches), 0, 0
    for epoch in range(run.epochs):
        for x, y in batches.epoch(epoch):
            base.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / total)) / 2
            climbs = step % run.every == 0

            def closure(x=x, y=y, climbs=climbs):
                nonlocal images
                size = round(part * len(y)) if climbs and not optimizer.climbing else len(y)
                images += size
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[:size]), y[:size])
                loss.backward()
                return loss

            if climbs:
                optimizer.step(closure)
            else:
                closure()
                base.step()
                base.zero_grad()
            step += 1
    return model.state_dict(), images / run.batch_size


@pytest.mark.parametrize("part", [1.0, 0.25])
@pytest.mark.parametrize(("method", "every"), [("sam", 1), ("sam", 2), ("lookbehind-sam", 2)])
def test_the_loop_is_the_one_that_a_person_would_write(method, every, part, digits):
    run = Run(method=method, every=every, ascent_part=part, k=3, **QUICK)
    training = ended(run, digits)
    weights, evaluations = by_hand(run, digits, part)
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert training.evaluations == pytest.approx(evaluations)
    assert Course(run.filled, 3)._price(run.methods[0], 6) == pytest.approx(evaluations)


def test_the_cost_is_told_before_and_after(digits):
    run = Run(method="lookbehind-sam", every=4, k=5, **QUICK)
    assert run.mean_gradients(run.methods[0]) == (6 + 3) / 4
    assert Run(method="sam", ascent_part=0.25).mean_gradients(run.methods[0]) == 5.25
    assert run.cost == 2 * 9 / 4
    assert ended(run, digits).end_record([])["gradient_evaluations"] == 2 * 6 + 4  # steps 0 and 4 climb
    assert Run(method="sgd", every=4).id == Run(method="sgd").id  # nothing to spare
    assert Run(method="sam", every=4).id != Run(method="sam").id
    assert Run(method="lookbehind-sam-switching", ascent_part=0.5).id == Run(method="lookbehind-sam-switching").id


@pytest.mark.parametrize(("every", "part", "steps"), [(1, 1.0, 3), (2, 1.0, 4), (3, 1.0, 5), (4, 1.0, 5), (1, 0.5, 4)])
def test_a_budget_is_not_exceeded(every, part, steps):
    # SAM: 2 gradients where it climbs, or 1 and a half, and 1 elsewhere
    course = Course(Run(method="sam", every=every, ascent_part=part, gradients=7).filled, 3)
    assert course.steps == steps
    assert course._price(course.run.methods[0], course.steps) <= course.run.gradients
    assert course._price(course.run.methods[0], course.steps + 1) > course.run.gradients


def test_wrong_numbers_are_named():
    for settings, message in (
        ({"every": 0}, "every=0"),
        ({"ascent_part": 0}, "give a part above 0"),
        ({"ascent_part": 1.5}, "ascent_part=1.5"),
        ({"average": 1.0}, "average=1.0: give a number below 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Settings(**settings)
    with pytest.raises(ValueError, match="does not read every"):
        with_overrides(Settings(), "sgd:every=2", 0)
    assert with_overrides(Settings(), "sam:every=2,average=0.9", 0).numbers == {"rho": 0.05, "every": 2, "average": 0.9}


# --- the average


def test_an_average_is_that_of_the_formula():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    average = Average(model, 0.8)
    wanted = {name: value.double().clone() for name, value in model.state_dict().items()}
    for step in range(1, 60):
        with torch.no_grad():
            for value in [*model.parameters(), model[1].running_mean, model[1].running_var]:
                value.add_(torch.randn_like(value).abs())
        average.update()
        decay = min(0.8, (1 + step) / (10 + step))
        now = model.state_dict()
        wanted = {name: decay * old + (1 - decay) * now[name].double() for name, old in wanted.items()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with average.shown():
        found = model.state_dict()
        for name in set(found) - {"1.num_batches_tracked"}:
            torch.testing.assert_close(found[name].double(), wanted[name], rtol=1e-5, atol=1e-5)
        model[1].running_mean.fill_(7.0)
        with average.shown():  # once more changes nothing
            assert model[1].running_mean.tolist() == [7.0, 7.0]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_average_is_what_is_measured_and_kept(digits, tmp_path):
    run = Run(method="sam", average=0.7, **QUICK)
    training = ended(run, digits)
    own = {name: value.clone() for name, value in training.model.state_dict().items()}
    kept, record = training.weights(), training.end_record([])
    assert all(torch.equal(value, own[name]) for name, value in training.model.state_dict().items())
    assert not torch.equal(kept["head.weight"], own["head.weight"])
    training.model.load_state_dict(kept)
    assert score(training.model, training.parts.test.plain()).accuracy == record["test_accuracy"]
    # and what a saved run is evaluated with
    storage = Storage(out=tmp_path)
    last = train(run, storage)[-1]
    again = evaluate(storage.directory(run))
    assert last["test_accuracy"] == again["test_accuracy"] == record["test_accuracy"]
    assert last["recalibrated_test_accuracy"] == again["recalibrated_test_accuracy"]
    # the training itself is the same as without it
    plain = ended(Run(method="sam", **QUICK), digits)
    assert all(torch.equal(value, own[name]) for name, value in plain.model.state_dict().items())


def test_the_average_of_lookahead_is_that_of_its_slow_weights(digits):
    """They are its result; between two interpolations the model shows the fast ones."""
    training = Training(Run(method="lookahead-sgd", k=4, alpha=0.5, average=0.7, **QUICK), digits)
    named = dict(training.model.named_parameters())
    wanted = {name: p.detach().double() for name, p in named.items()}
    slow, steps = wanted, 0

    def after_every_step(*_: object) -> None:
        nonlocal wanted, slow, steps
        steps += 1
        now = {name: p.detach().double() for name, p in named.items()}
        slow = now if steps % 4 == 0 else slow  # the model has them right after an interpolation
        decay = min(0.7, (1 + steps) / (10 + steps))
        wanted = {name: decay * old + (1 - decay) * slow[name] for name, old in wanted.items()}

    training.optimizer.register_step_post_hook(after_every_step)
    while not training.finished:
        training.train_epoch(lambda: True)
    assert steps == 6
    kept = training.weights()
    for name, value in wanted.items():
        torch.testing.assert_close(kept[name].double(), value, rtol=1e-5, atol=1e-6)


def test_an_average_goes_on_bit_for_bit(digits, tmp_path):
    run = Run(method="lookbehind-sam", k=2, average=0.9, every=2, **QUICK)
    whole = ended(run, digits)
    stopped = Training(run, digits)
    taken = iter(range(10))
    stopped.train_epoch(lambda: next(taken) < 1)
    assert 0 < stopped.step < 3
    other = Training(run, digits)
    other.load(stopped.state())
    while not other.finished:
        other.train_epoch(lambda: True)
    one, two = whole.weights(), other.weights()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert train(run, Storage(out=tmp_path))[-1]["gradient_evaluations"] == 3 * 3 + 3
