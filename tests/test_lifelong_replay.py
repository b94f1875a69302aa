"""Replay: the learner's updates against their pseudo-code, for every method and both ways of clipping."""

from __future__ import annotations

import random

import pytest
import torch
from lifelong_problem import N, at, clipped, leaves, minibatches, network, size
from torch import Tensor

from lookbehind.lifelong.learners import ReplayLearner
from lookbehind.lifelong.memory import Reservoir
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.training.methods import base_optimizer

RUN = LifelongSettings(lr=0.3, rho=0.2, asam_rho=0.4, k=3, alpha=0.4, clip=0.5, replay=4, memory=9)


def naive_replay(method: str, clip_ascent: bool) -> list[Tensor]:
    """The weights after all minibatches, from the pseudo-code: 2k gradients, lists of tensors, SGD by hand."""
    model = network()
    weights = [p.detach().clone() for p in model.parameters()]
    memory, draws = Reservoir(9), random.Random(0)
    family = "asam" if "asam" in method else "sam"
    k, rho = (1 if method in ("sam", "asam") else 3), {"sam": 0.2, "asam": 0.4}[family]

    for inputs, labels in minibatches():
        old = memory.sample(4, draws)
        x, y = (inputs, labels) if old is None else (torch.cat([inputs, old[0]]), torch.cat([labels, old[1]]))

        def gradient(point: list[Tensor], x: Tensor = x, y: Tensor = y) -> list[Tensor]:
            found = at(model, leaves(point), x, y)
            return clipped(found, 0.5) if clip_ascent else found

        def climbed(point: list[Tensor]) -> list[Tensor]:
            g = gradient(point)
            names = [name for name, _ in model.named_parameters()]
            scales = [
                w.abs() + 0.01 if family == "asam" and "weight" in name else torch.ones_like(w)
                for name, w in zip(names, point, strict=True)
            ]
            norm = size([t * d for t, d in zip(scales, g, strict=True)])
            return [w + rho * t**2 * d / norm for w, t, d in zip(point, scales, g, strict=True)]

        def stepped(weights: list[Tensor], g: list[Tensor]) -> list[Tensor]:
            g = g if clip_ascent else clipped(g, 0.5)
            return [w - 0.3 * d for w, d in zip(weights, g, strict=True)]

        if method == "sgd":
            weights = stepped(weights, gradient(weights))
        else:
            fast, point, seen = weights, weights, []
            for _ in range(k):
                point = climbed(point)
                seen.append(gradient(point))
                fast = stepped(fast, seen[-1])
            if method.startswith("lookbehind"):
                weights = [w + 0.4 * (f - w) for w, f in zip(weights, fast, strict=True)]
            elif method.endswith("mean"):
                weights = stepped(weights, [torch.stack(parts).mean(0) for parts in zip(*seen, strict=True)])
            else:
                weights = stepped(weights, seen[-1])
        memory.add(inputs, labels, draws)
    return weights


@pytest.mark.parametrize("clip_ascent", [False, True])
@pytest.mark.parametrize(
    "method",
    ["sgd", "sam", "asam", "multistep-sam", "multistep-sam-mean", "lookbehind-sam", "lookbehind-asam"],
)
def test_replay_equals_its_pseudo_code(method, clip_ascent):
    run = RUN.run(f"er+{method}:clip_ascent={str(clip_ascent).lower()}", 0)
    model, memory, draws = network(), Reservoir(9), random.Random(0)
    base = base_optimizer("sgd", model, lr=0.3, momentum=0.0, weight_decay=0.0)
    optimizer = run.optimizing.optimizer(base, model, run)
    learner = ReplayLearner(model, optimizer, memory, classes_per_task=N, replay=4)
    for inputs, labels in minibatches():
        learner.learn(inputs, labels, draws, first_epoch=False)
    assert learner.evaluations == run.gradients_per_minibatch
    for found, expected in zip(model.parameters(), naive_replay(method, clip_ascent), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_without_a_memory_nothing_is_replayed():
    model, plain = network(), network()
    for one, capacity in ((model, 0), (plain, 9)):
        base = torch.optim.SGD(one.parameters(), lr=0.3)
        learner = ReplayLearner(one, base, Reservoir(capacity), classes_per_task=N, replay=0 if capacity else 4)
        for inputs, labels in minibatches():
            learner.learn(inputs, labels, random.Random(0), first_epoch=True)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
