"""Loss, accuracy and re-estimated BatchNorm statistics against plain forms; the model is as before afterwards."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from lookbehind.measures.accuracy import score
from lookbehind.measures.batchnorm import recalibrated


def net():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)]
    model = nn.Sequential(*layers)
    model.train()
    for _ in range(3):
        model(torch.randn(16, 4))
    return model


def data(count=50):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def split(x, y, size):
    return list(zip(x.split(size), y.split(size), strict=True))


def snapshot(model):
    return copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]


def unchanged(model, before):
    state, modes = snapshot(model)
    return modes == before[1] and all(torch.equal(state[name], before[0][name]) for name in state)


def test_loss_and_accuracy_are_means_over_images_whatever_the_batches():
    model, (x, y) = net(), data()
    model[3].eval()  # a mode of its own must survive
    before = snapshot(model)
    reference = copy.deepcopy(model).eval().double()
    probabilities = torch.softmax(reference(x.double()), 1).detach()
    loss = sum(-math.log(probabilities[i, y[i]]) for i in range(50)) / 50
    accuracy = 100 * sum(int(probabilities[i].argmax() == y[i]) for i in range(50)) / 50
    for size in (7, 50):
        found = score(model, split(x, y, size))
        assert found.loss == pytest.approx(loss, rel=1e-6)
        assert found.accuracy == pytest.approx(accuracy)
    assert unchanged(model, before)
    with pytest.raises(ValueError, match="no images to measure on"):
        score(model, [])


def test_statistics_are_the_cumulative_average_as_torch_has_it():
    model, (x, y) = net(), data()
    before = snapshot(model)
    expected = copy.deepcopy(model)
    expected[3].p = 0.0
    update_bn([part for part, _ in split(x, y, 10)], expected)
    with recalibrated(model, split(x, y, 10)) as same:
        assert same is model
        torch.testing.assert_close(model[1].running_mean, expected[1].running_mean)
        torch.testing.assert_close(model[1].running_var, expected[1].running_var)
        assert not torch.equal(model[1].running_mean, before[0]["1.running_mean"])
        assert [m.training for m in model.modules()] == before[1]
    assert unchanged(model, before)
    assert model[1].momentum == 0.1


def test_the_old_statistics_return_also_after_an_error():
    model, (x, y) = net(), data()
    before = snapshot(model)

    def broken():
        yield x[:10], y[:10]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"), recalibrated(model, broken()):
        raise AssertionError("not reached")
    assert unchanged(model, before)
    with pytest.raises(KeyError), recalibrated(model, split(x, y, 10)):
        raise KeyError
    assert unchanged(model, before)


def test_without_batchnorm_nothing_is_run():
    model = nn.Linear(4, 3)
    with recalibrated(model, iter([])) as same:
        assert same is model
