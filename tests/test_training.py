"""The training loop against loops written by hand; its schedules, counts and records."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import lookbehind
from lookbehind.data.batches import Batches, seed_for
from lookbehind.data.vision import load
from lookbehind.models import build
from lookbehind.training import records
from lookbehind.training.loop import Training
from lookbehind.training.methods import METHODS, phases
from lookbehind.training.run import Run
from lookbehind.training.schedules import Course
from lookbehind.training.train import Storage, train

QUICK = {"epochs": 2, "batch_size": 100}  # three steps per epoch


@pytest.fixture(scope="module")
def digits():
    return load("digits", seed=0)


def by_hand(run, data, make, parts=1):
    """A run's weights by a plain loop: ``make`` gives the optimizer around SGD."""
    torch.manual_seed(seed_for(run.seed, "weights"))
    model = build("convnet", classes=10, channels=1).to(memory_format=torch.channels_last)
    base = torch.optim.SGD(model.named_parameters(), lr=0.05, momentum=0.9)
    optimizer = make(base, model)
    batches = Batches(data.train, data.mean, data.std, run.batch_size, run.seed)
    total = run.epochs * len(batches)
    step = 0
    for epoch in range(run.epochs):
        for x, y in batches.epoch(epoch):
            base.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / total)) / 2

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            if parts > 1:
                pieces = zip(x.split(50), y.split(50), strict=True)
                optimizer.step(lookbehind.micro_batches(*((50, lambda x=x, y=y: closure(x, y)) for x, y in pieces)))
            else:
                optimizer.step(closure)
            step += 1
    return model.state_dict()


MADE_BY_HAND = {
    "sgd": lambda base, model: base,
    "lookahead-sgd": lambda base, model: lookbehind.Lookahead(base, k=3, alpha=0.5),
    "sam": lambda base, model: lookbehind.SAM(base, rho=0.05, model=model, batchnorm="first"),
    "asam": lambda base, model: lookbehind.ASAM(base, rho=0.5, eta=0.01, model=model, batchnorm="first"),
    "multistep-sam-mean": lambda base, model: lookbehind.MultistepSAM(
        base, rho=0.05, k=3, average=True, model=model, batchnorm="first"
    ),
    "multistep-asam": lambda base, model: lookbehind.MultistepASAM(
        base, rho=0.5, eta=0.01, k=3, model=model, batchnorm="first"
    ),
    "lookbehind-sam": lambda base, model: lookbehind.LookbehindSAM(
        base, rho=0.05, k=3, alpha=0.5, model=model, batchnorm="first"
    ),
    "lookbehind-m-asam": lambda base, model: lookbehind.LookbehindASAM(
        base, rho=0.5, k=3, alpha=0.5, model=model, batchnorm="first"
    ),
}


@pytest.mark.parametrize("method", MADE_BY_HAND)
def test_the_loop_is_the_one_that_a_person_would_write(method, digits, tmp_path):
    run = Run(method=method, k=3, micro_batch=50, **QUICK)
    train(run, Storage(out=tmp_path))
    weights = torch.load(tmp_path / "runs" / run.id / "weights.pt", weights_only=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        expected = by_hand(run, digits, MADE_BY_HAND[method], parts=2 if "-m-" in method else 1)
    torch.set_num_threads(threads)
    assert expected.keys() == weights.keys()
    for name, value in expected.items():
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_counted_as_they_are_computed(name, digits, monkeypatch, tmp_path):
    """In units of a minibatch: a micro-batch counts as its share."""
    run = Run(method=name, k=3, micro_batch=50, epochs=1, batch_size=100)
    computed = []
    monkeypatch.setattr(torch.Tensor, "backward", counted(torch.Tensor.backward, computed))
    end = train(run, Storage(out=tmp_path))[-1]
    micro = 2 if METHODS[name].micro else 1
    assert len(computed) / micro == end["gradient_evaluations"] == 3 * METHODS[name].gradients(3)


def counted(backward, calls):
    def replacement(self, *args, **kwargs):
        calls.append(1)
        return backward(self, *args, **kwargs)

    return replacement


# --- schedules


def course(run, steps_per_epoch=7):
    return Course(run, steps_per_epoch)


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (
            {"schedule": "cosine", "lr_changes": "epoch"},
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=12),
        ),
        (
            {"schedule": "multistep", "milestones": (2, 5, 9), "gamma": 0.2},
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5, 9], gamma=0.2),
        ),
        ({"schedule": "multistep"}, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6, 9])),
        ({"schedule": "step", "step_size": 5}, lambda o: torch.optim.lr_scheduler.StepLR(o, 5)),
        ({"schedule": "step"}, lambda o: torch.optim.lr_scheduler.StepLR(o, 4)),
        ({"schedule": "constant"}, lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
    ],
)
def test_learning_rates_are_those_of_torch(settings, reference):
    here = course(Run(epochs=12, lr=0.3, **settings))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = reference(optimizer)
    for epoch in range(12):
        for step in range(7):
            assert here.lr(7 * epoch + step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_a_cosine_by_steps_and_a_warm_up():
    here = course(Run(epochs=4, lr=1.0, warmup=2))
    cosine = [(1 + math.cos(math.pi * step / 28)) / 2 for step in range(28)]
    expected = [c * min(1, (step + 1) / 14) for step, c in enumerate(cosine)]
    assert [here.lr(step) for step in range(28)] == pytest.approx(expected, rel=1e-12)


def test_a_control_has_the_learning_rate_and_the_radius_of_the_whole_climb():
    run = Run(method="sam-matched", k=5, alpha=0.4, rho=0.1, lr=0.3, epochs=1, schedule="constant")
    assert course(run).lr(0) == pytest.approx(0.3 * 0.4 * 5)
    assert run.methods[0].rho(run) == pytest.approx(0.1 * 3)
    long = replace(run, method="asam-long-step", asam_rho=0.7)
    assert course(long).lr(0) == pytest.approx(0.6)
    assert long.methods[0].rho(long) == 0.7


@pytest.mark.parametrize(
    ("method", "gradients", "steps"),
    [
        ("sgd", 100, 100),
        ("sam", 101, 50),
        ("lookbehind-sam", 100, 16),
        ("sam+lookbehind-sam@2", 100, 14 + 12),
        ("lookbehind-sam+sgd@10", 100, 16),  # what is left would pay for SGD, but its epoch is not reached
    ],
)
def test_a_gradient_budget_is_spent_and_not_exceeded(method, gradients, steps):
    here = course(Run(method=method, gradients=gradients, k=5))
    assert here.steps == steps
    assert here.length == steps / 7


def test_a_budget_that_pays_for_no_step_is_refused():
    with pytest.raises(ValueError, match="gradients=5: not enough for one step of lookbehind-sam"):
        course(Run(method="lookbehind-sam", gradients=5)).steps  # noqa: B018


# --- switching


def test_a_switch_keeps_the_state_of_the_base_optimizer(digits, tmp_path):
    """SGD switched to SGD inside nothing else: the same as SGD all the way, so nothing was reset."""
    torch.manual_seed(0)
    plain = Training(Run(method="sgd", epochs=2, batch_size=100), digits)
    switched = Training(Run(method="sgd+lookahead-sgd@1", alpha=1.0, epochs=2, batch_size=100), digits)
    for training in (plain, switched):
        for _ in range(2):
            training.train_epoch(lambda: True)
    assert [p.method.name for p in phases("sgd+lookahead-sgd@1")] == ["sgd", "lookahead-sgd"]
    assert isinstance(switched.optimizer, lookbehind.Lookahead)
    for a, b in zip(plain.model.parameters(), switched.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)  # w + 1 (f - w) is f up to rounding


def test_a_switch_happens_at_its_epoch_and_back(digits):
    training = Training(Run(method="sam+lookbehind-sam@1+sam@2", k=3, epochs=3, batch_size=100), digits)
    seen = []
    for _ in range(3):
        training.train_epoch(lambda: True)
        seen.append((training.method.name, training.evaluations, training.epoch_record()["alpha"]))
    assert seen == [("sam", 6, None), ("lookbehind-sam", 18, 0.5), ("sam", 24, None)]


@pytest.mark.parametrize(("method", "widen"), [("sam+sam@1+repeat-sam@2", 3.0), ("asam+lookbehind-asam@1", 0.5)])
def test_a_climb_is_widened_from_the_first_switch_on(method, widen, digits):
    """The same steps as those of optimizers with another rho, which take over the base: to the same bits."""
    run = Run(method=method, widen=widen, rho=0.1, asam_rho=0.4, k=2, alpha=0.5, epochs=3, batch_size=100)
    widened, by_hand = Training(run, digits), Training(replace(run, widen=1.0), digits)
    for phase in run.phases:
        factor = widen if phase.start else 1.0
        by_hand.run = replace(by_hand.run, rho=0.1 * factor, asam_rho=0.4 * factor)
        by_hand.optimizer = by_hand._optimizer()
        until = next((later.start for later in run.phases if later.start > phase.start), 3)
        while by_hand.epoch < until:
            by_hand.train_epoch(lambda: True)
            widened.train_epoch(lambda: True)
        assert widened.method is phase.method
        assert widened.evaluations == by_hand.evaluations
        for a, b in zip(widened.model.parameters(), by_hand.model.parameters(), strict=True):
            assert torch.equal(a, b)
    assert widened.optimizer.rho == (0.1 if run.methods[0].ascent == "sam" else 0.4) * widen


def test_a_method_that_follows_itself_goes_on(digits):
    """Also Lookahead in the middle of a period, of four steps where an epoch has three."""
    once, twice = (
        Training(Run(method=method, k=4, alpha=0.3, epochs=2, batch_size=100), digits)
        for method in ("lookahead-sgd", "lookahead-sgd+lookahead-sgd@1")
    )
    for _ in range(2):
        assert once.train_epoch(lambda: True)
        assert twice.train_epoch(lambda: True)
    for a, b in zip(once.model.parameters(), twice.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("method", ["sam", "sam+sgd@1", "lookbehind-sam-switching+sam@1"])
def test_a_checkpoint_that_names_its_method_goes_on(method, digits):
    """As they were written before: without the phase. A step of switching goes on into the next epoch."""
    run = Run(method=method, k=2, epochs=3, batch_size=100)
    whole, stopped, again = (Training(run, digits) for _ in range(3))
    while not whole.finished:
        whole.train_epoch(lambda: True)
    for _ in range(2):
        stopped.train_epoch(lambda: False)
    state = stopped.state()
    again.load({"method": stopped.method.name, **{key: state[key] for key in state if key != "phase"}})
    assert again.method == stopped.method
    while not again.finished:
        again.train_epoch(lambda: True)
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_leaving_lookahead_takes_its_slow_weights(digits):
    training = Training(Run(method="lookahead-sgd+sgd@1", k=5, alpha=0.1, epochs=2, batch_size=100), digits)
    training.train_epoch(lambda: True)
    with training.slow_weights():
        slow = [p.detach().clone() for p in training.model.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(slow, training.model.parameters(), strict=True))
    training._settle()
    assert all(torch.equal(a, b) for a, b in zip(slow, training.model.parameters(), strict=True))


# --- what is recorded


def test_an_epochs_record_has_what_was_seen(digits, tmp_path):
    run = Run(method="lookbehind-sam", alpha="adaptive", k=2, validation=50, **QUICK)
    told = train(run, Storage(out=tmp_path))
    lines = (tmp_path / "runs" / run.id / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == told
    first, second, end = told
    assert [first["epoch"], second["epoch"], end["event"]] == [1, 2, "end"]
    assert [first["gradient_evaluations"], second["gradient_evaluations"]] == [9, 18]
    assert 0.5 < first["alpha"] <= 1
    assert end["alpha"] == pytest.approx((first["alpha"] + second["alpha"]) / 2)
    assert second["test_accuracy"] == end["test_accuracy"]
    assert end["best_test_accuracy"] == max(first["test_accuracy"], second["test_accuracy"])
    assert 0 <= second["validation_accuracy"] <= 100
    assert second["lr"] == pytest.approx(0.05 * (1 + math.cos(math.pi * 5 / 6)) / 2)
    assert second["seconds"] > first["seconds"] > 0


def test_the_running_loss_is_that_of_the_unperturbed_weights(digits):
    """One step in the epoch: its running loss is the loss of the first weights on those images, in training mode."""
    training = Training(Run(method="lookbehind-asam", k=3, epochs=1, batch_size=300, label_smoothing=0.1), digits)
    x, y = next(training.parts.train.epoch(0))
    logits = training.model.train()(x)
    loss = F.cross_entropy(logits, y, label_smoothing=0.1).item()
    smooth = (-F.log_softmax(logits.double(), 1)).mean(1)  # timm's form: spread over all classes
    expected = (0.9 * F.cross_entropy(logits.double(), y, reduction="none") + 0.1 * smooth).mean().item()
    accuracy = 100 * (logits.argmax(1) == y).double().mean().item()
    training = Training(training.run, digits)
    training.train_epoch(lambda: True)
    record = training.epoch_record()
    assert record["loss"] == pytest.approx(loss, rel=1e-6)
    assert record["loss"] == pytest.approx(expected, rel=1e-5)
    assert record["train_accuracy"] == pytest.approx(accuracy)


def test_measuring_now_and_then_still_measures_in_the_end(tmp_path):
    told = train(Run(epochs=5, batch_size=150, evaluate_every=2), Storage(out=tmp_path))
    assert [r["test_accuracy"] is None for r in told[:-1]] == [True, False, True, False, False]


@pytest.mark.parametrize("method", ["sgd", "lookbehind-sam", "lookahead-sam"])
def test_a_run_that_diverges_says_so_and_ends(method, tmp_path):
    run = Run(method=method, lr=1e38, schedule="constant", epochs=9, batch_size=100)
    told = train(run, Storage(out=tmp_path))
    end = told[-1]
    assert end["event"] == "end"
    assert end["diverged"] is True
    assert end["test_accuracy"] is None
    assert len(told) < 10
    epochs = [record["epoch"] for record in told[:-1]]
    assert epochs == list(range(1, len(epochs) + 1))
    assert train(run, Storage(out=tmp_path)) == told  # not tried again


def test_weights_that_break_in_the_very_last_step_are_no_result(tmp_path):
    """The loss before the step is finite; accuracy of logits that are not numbers would be that of guessing."""
    first, end = train(Run(lr=1e30, epochs=1, batch_size=300), Storage(out=tmp_path))
    assert first["loss"] is not None
    assert (first["test_accuracy"], end["diverged"]) == (None, True)
    assert [end[k] for k in ("test_accuracy", "best_test_accuracy", "train_loss", "recalibrated_test_accuracy")] == [
        None
    ] * 4


def test_the_gradients_of_a_failed_step_count(tmp_path, monkeypatch):
    """The first base step breaks the weights; the next evaluation, the first of the second step, finds out."""
    end = train(Run(method="sam", lr=1e38, epochs=1, batch_size=100, schedule="constant"), Storage(out=tmp_path))[-1]
    assert (end["steps"], end["gradient_evaluations"], end["diverged"]) == (2, 3, True)


def test_a_mean_alpha_counts_every_step_alike(tmp_path):
    run = Run(method="lookbehind-sam", alpha="adaptive", k=2, gradients=15, batch_size=100)  # 3 + 2 steps
    first, second, end = train(run, Storage(out=tmp_path))
    assert end["alpha"] == pytest.approx((3 * first["alpha"] + 2 * second["alpha"]) / 5)


def test_statistics_are_estimated_in_random_order(digits):
    """Sorted by class, a minibatch would have the variance within one class only."""
    training = Training(Run(epochs=1, batch_size=100), digits)
    labels = torch.cat([y for _, y in training.parts.train.plain(shuffled=True)])
    stored = torch.cat([y for _, y in training.parts.train.plain()])
    assert not torch.equal(labels, stored)
    assert torch.equal(labels.sort().values, stored.sort().values)
    assert torch.equal(labels, torch.cat([y for _, y in training.parts.train.plain(shuffled=True)]))


def test_a_second_lookahead_begins_a_period_of_its_own(digits):
    training = Training(Run(method="lookahead-sgd+lookahead-sam@1", k=4, epochs=2, batch_size=100), digits)
    seen = []
    for _ in range(2):
        training.train_epoch(lambda: seen.append(training.optimizer.phase) or True)
        seen.append(training.optimizer.phase)
    assert seen == [1, 2, 3, 1, 2, 3]


def test_too_many_images_are_named(tmp_path):
    with pytest.raises(ValueError, match="train_images=400: there are only 300 training images"):
        train(Run(train_images=400), Storage(out=tmp_path))
    with pytest.raises(ValueError, match="validation=200: none of 200 would be left"):
        train(Run(train_images=200, validation=200), Storage(out=tmp_path))


def test_bf16_learns_about_as_well(tmp_path):
    full, half = (train(Run(precision=p, epochs=4), Storage(out=tmp_path))[-2]["loss"] for p in ("fp32", "bf16"))
    assert 1.0 < full < 2.1  # from 2.3
    assert half == pytest.approx(full, rel=0.05)
    assert half != full


def test_adam_takes_a_smaller_rate_and_learns(tmp_path):
    run = Run(method="lookbehind-sam", base="adamw", epochs=4, k=2)
    assert run.filled.lr == 1e-3
    assert Run(method="adam").filled.base == "adam"
    told = train(run, Storage(out=tmp_path))
    assert told[-2]["loss"] < told[0]["loss"] - 0.2


def test_the_caller_keeps_threads_and_random_numbers(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    train(Run(threads=2, **QUICK), Storage(out=tmp_path))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_tensorboard_has_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Run(**QUICK)
    told = train(run, Storage(out=tmp_path, tensorboard=True))
    events = EventAccumulator(str(tmp_path / "runs" / run.id / "events")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("test_accuracy")]
    assert found == [(r["epoch"], pytest.approx(r["test_accuracy"])) for r in told[:-1]]


# --- journals


def test_a_line_that_was_cut_off_is_left_out_and_damage_is_named(tmp_path):
    path = tmp_path / "records.jsonl"
    first = {"event": "epoch", "epoch": 1, "step": 3, "test_accuracy": None}
    path.write_text(f'{json.dumps(first)}\n{{"event": "ep')
    assert records.read(path) == [first]
    for damage in (b'{"event": "epo', b"5", b"{}", b"\xff\xfe", b'{"event": "end"}', b"[1]"):
        path.write_bytes(json.dumps(first).encode() + b"\n" + damage + b"\n")
        with pytest.raises(ValueError, match=r"records.jsonl, line 2 is not a record"):
            records.read(path)


def test_what_is_not_finite_becomes_null(tmp_path):
    journal = records.Journal(tmp_path / "records.jsonl")
    journal.append({"loss": math.inf, "accuracy": 1.5, "alpha": math.nan})
    assert (tmp_path / "records.jsonl").read_text() == '{"loss": null, "accuracy": 1.5, "alpha": null}\n'
