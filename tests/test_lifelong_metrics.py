"""How lifelong learning is judged: metrics worked by hand, each example among the classes of its own task."""

from __future__ import annotations

import pytest
import torch
from lifelong_problem import TASKS, N
from torch import nn

from lookbehind.lifelong import metrics
from lookbehind.lifelong.heads import OneHead, own_head

MATRIX = [[90.0, 5.0, 7.0], [80.0, 70.0, 6.0], [85.0, 40.0, 60.0]]


def test_metrics_of_a_matrix_worked_by_hand():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((85 + 40 + 60) / 3)
    assert metrics.forgetting_per_task(MATRIX) == [90 - 85, 70 - 40]
    assert metrics.forgetting(MATRIX) == pytest.approx(17.5)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-5 - 30 + 0) / 3)
    assert metrics.learning_accuracy(MATRIX) == pytest.approx((90 + 70 + 60) / 3)
    assert metrics.averages_so_far(MATRIX) == [90, 75, pytest.approx(185 / 3)]


def test_forgetting_is_from_the_best_time_and_transfer_from_the_first():
    matrix = [[50.0], [70.0, 60.0], [65.0, 62.0, 80.0]]
    assert metrics.forgetting_per_task(matrix) == [5.0, -2.0]  # task 1 was best after task 2
    assert metrics.forgetting(matrix) == pytest.approx(1.5)
    assert metrics.backward_transfer(matrix) == pytest.approx((15 + 2 + 0) / 3)


def test_metrics_of_tasks_that_were_seen_equal_those_of_all():
    seen = [row[: t + 1] for t, row in enumerate(MATRIX)]
    for name in ("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy"):
        assert getattr(metrics, name)(seen) == getattr(metrics, name)(MATRIX), name


def test_one_task_has_nothing_to_forget():
    assert metrics.forgetting([[80.0]]) == 0
    with pytest.raises(ValueError, match="one row per task"):
        metrics.average_accuracy([[80.0], [70.0]])


# --- heads


def test_an_example_is_judged_among_the_classes_of_its_own_task():
    logits = torch.randn(6, N * TASKS)
    labels = torch.tensor([0, 2, 4, 5, 7, 11])
    own, among = own_head(logits, labels, N)
    for i, label in enumerate(labels.tolist()):
        first = label // N * N
        assert torch.equal(own[i], logits[i, first : first + N])
        assert int(among[i]) == label - first
    masked = torch.full_like(logits, -1e11)  # as La-MAML's code does it
    index = (labels // N * N)[:, None] + torch.arange(N)
    masked.scatter_(1, index, own)
    assert torch.equal(masked.argmax(1), own.argmax(1) + labels // N * N)


def test_one_head_shows_the_tasks_classes():
    network = nn.Linear(4, N * TASKS)
    inputs = torch.randn(2, 4)
    assert torch.equal(OneHead(network, 6, N)(inputs), network(inputs)[:, 6:9])
