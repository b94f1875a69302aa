"""Finished runs with made-up numbers."""

from __future__ import annotations

from lookbehind.experiments.paper.findings import Outcome
from lookbehind.lifelong import metrics
from lookbehind.training.run import with_overrides


def outcome(task, candidate, seed, epochs=(), **end):
    run = with_overrides(task.settings, candidate, seed)
    record = {"event": "end", "diverged": False, "gradient_evaluations": 100, **end}
    return run.id, Outcome(run, [*epochs, record], {})


def lifelong_outcome(task, candidate, seed, matrix, **end):
    """Of a lifelong training with this matrix of accuracies."""
    run = task.settings.run(candidate, seed)
    record = {
        "event": "end", "diverged": False, "gradient_evaluations": 100, "matrix": matrix, "validation_accuracy": 50.0,
        "test_accuracy": metrics.average_accuracy(matrix), "best_test_accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix), "backward_transfer": metrics.backward_transfer(matrix),
        "learning_accuracy": metrics.learning_accuracy(matrix), **end,
    }  # fmt: skip
    return run.id, Outcome(run, [record], {})
