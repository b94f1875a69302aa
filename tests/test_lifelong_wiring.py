"""From a lifelong run to its learner and numbers: every setting arrives, each accuracy is of the right images."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lookbehind.data.tasks import Task, TaskStream, task_stream
from lookbehind.data.vision import Images, load
from lookbehind.lifelong import protocol
from lookbehind.lifelong.learners import MetaLearner
from lookbehind.lifelong.meta import Meta
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.measures.accuracy import Score
from lookbehind.models.convnet import StridedConvNet
from lookbehind.training.train import Storage, train

OTHER_HEADS = -1e11  # what La-MAML's code writes over the logits of the other tasks' classes


def begun(text: str, **settings):
    run = LifelongSettings(**{"tasks": 3, "width": 4, "hidden": 8} | settings).run(text, 0)
    return run.begin(load("digits", seed=0))


def normalised(images: Images, stream: TaskStream) -> Tensor:
    mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in (stream.mean, stream.std))
    return (images.pixels.float() / 255 - mean) / std


def accuracy(network: StridedConvNet, stream: TaskStream, task: Task, part: str) -> float:
    """Of a part of a task's images, the other tasks' logits masked."""
    images = getattr(task, part)
    with torch.no_grad():
        logits: Tensor = network(normalised(images, stream))
    logits[:, : task.first] = OTHER_HEADS
    logits[:, task.first + stream.classes_per_task :] = OTHER_HEADS
    return 100 * float((logits.argmax(1) == images.labels).float().mean())


@pytest.mark.parametrize("method", ["er+sgd", "er+lookahead-sgd:k=7", "lookahead-c-maml:k=2"])
def test_the_last_row_is_of_test_images_and_the_choice_of_those_held_out(method, tmp_path):
    run = LifelongSettings(tasks=3, epochs=1, width=4, hidden=8, lr=0.05).run(method, 2)
    storage = Storage(out=tmp_path)
    end = train(run, storage)[-1]
    assert method != "er+lookahead-sgd:k=7" or end["steps"] % 7  # the fast weights are elsewhere
    stream = task_stream(load("digits", seed=2), 2, 2, tasks=3)
    network = StridedConvNet(10, channels=1, size=8, width=4, hidden=8)
    network.load_state_dict(torch.load(storage.directory(run) / "weights.pt", weights_only=True))

    def found(part: str) -> list[float]:
        return [accuracy(network, stream, task, part) for task in stream.tasks]

    assert end["matrix"][-1] == pytest.approx(found("test"))
    assert end["validation_accuracy"] == pytest.approx(sum(found("validation")) / 3)
    # else the assertions above could not tell them apart
    means = {part: sum(found(part)) / 3 for part in ("train", "validation", "test")}
    assert len({round(value, 6) for value in means.values()}) == 3


def test_all_that_is_said_of_an_inner_loop_arrives():
    numbers = "k=3,rho=0.2,alpha=0.7,lr=0.2,inner_lr=0.4"
    training = begun(f"lookbehind-c-maml:{numbers},meta_loss=mean,second_order=false,outer=meta,climb=fast")
    expected = Meta(
        chunks=3, rho=0.2, climb="fast", alpha=0.7, inner_lr=0.4, loss="mean", second_order=False, outer="meta"
    )
    assert isinstance(training.learner, MetaLearner)
    assert training.learner.meta == training.run.meta == expected
    assert training.base.param_groups[0]["lr"] == 0.2
    # the inner steps are as long as the outer one if nothing is said; Lookahead does not climb, and goes all the way
    plain = LifelongSettings().run("lookahead-c-maml:k=2,lr=0.2", 0)
    assert plain.meta == Meta(chunks=2, rho=None, alpha=1.0, inner_lr=0.2)


@pytest.mark.parametrize("method", ["er+sgd", "er+sam", "lookahead-c-maml"])
def test_the_learner_has_the_runs_numbers(method):
    training = begun(method, lr=0.07, clip=1.5, replay=4, memory=17, reservoir="la-maml")
    learner, (group,) = training.learner, training.base.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.07, 0.0, 0.0)
    assert learner.replay == 4
    assert (learner.memory.capacity, learner.memory.law) == (17, "la-maml")
    assert learner.memory is training.memory
    hidden = [module.out_features for module in training.model.modules() if isinstance(module, torch.nn.Linear)]
    assert 8 in hidden
    channels = {module.out_channels for module in training.model.modules() if isinstance(module, torch.nn.Conv2d)}
    assert channels == {4}
    if isinstance(learner, MetaLearner):
        assert learner.clip.max_norm == 1.5
    assert begun("sgd").memory.capacity == 0


def test_the_gradient_is_clipped_as_the_run_says():
    """A step of SGD of norm lr * clip where the gradient is longer."""
    for method in ("sgd", "er+sam", "lookahead-c-maml"):
        training = begun(method, lr=0.5, clip=1e-3, k=1)
        before = [p.detach().clone() for p in training.model.parameters()]
        inputs, labels = next(iter(training._train[0].epoch(0, 0)))
        training.learner.learn(inputs, labels, random.Random(0), first_epoch=True)
        moved = [p.detach() - old for p, old in zip(training.model.parameters(), before, strict=True)]
        length = torch.stack([change.double().square().sum() for change in moved]).sum().sqrt()
        assert float(length) == pytest.approx(0.5e-3, rel=1e-3), method


def test_images_are_augmented_in_training_only_and_each_task_has_its_own_order(monkeypatch):
    flipping = replace(protocol.STREAMS["split-digits"], augmentation="flip")
    monkeypatch.setattr(protocol, "STREAMS", {"split-digits": flipping})
    training = begun("sgd")
    assert {batches.augmentation for batches in training._train} == {"flip"}
    assert len({batches.seed for batches in training._train}) == 3
    task, measured = training.stream.tasks[0], []
    monkeypatch.setattr(protocol, "score", lambda head, batches: measured.extend(batches) or Score(0.0, 0.0))
    training.accuracy(task, task.test)
    seen = torch.cat([inputs for inputs, _ in measured])
    torch.testing.assert_close(seen, normalised(task.test, training.stream))


@pytest.mark.parametrize(("method", "times"), [("er+sgd", 2), ("lookahead-c-maml:k=2", 1)])
def test_c_maml_remembers_in_a_tasks_first_epoch_only(method, times):
    training = begun(method, epochs=2, tasks=2)
    for _ in range(4):
        training.train_epoch(lambda: True)
        training.epoch_record()
    assert training.finished
    assert training.memory.seen == times * sum(len(task.train) for task in training.stream.tasks)


def test_what_is_told_of_an_epoch_is_of_the_weights_themselves():
    """Not of the perturbed points, at which the loss of SAM is evaluated too."""
    told = {}
    for method in ("sgd", "sam:rho=5", "lookbehind-sam:rho=5,k=3"):
        training = begun(method, lr=0.0, clip=None)
        training.train_epoch(lambda: True)
        told[method] = training.epoch_record()["loss"]
    assert len({round(loss, 5) for loss in told.values()}) == 1, told
