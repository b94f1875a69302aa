"""What a matrix of accuracies says: ``matrix[t][i]`` is the accuracy on task ``i`` after task ``t`` was learned."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

Matrix = Sequence[Sequence[float]]
"""Rows may end at their own task: what comes after it has not been learned."""


def average_accuracy(matrix: Matrix) -> float:
    """``1/T sum_i a[T, i]``: over all tasks, in the end (La-MAML: retained accuracy)."""
    return fmean(_last(matrix))


def forgetting(matrix: Matrix) -> float:
    """``1/(T-1) sum_{i<T} (max_{t<T} a[t, i] - a[T, i])``: what was lost since the best time; the last task counts not.

    This is the paper's. The maximum is over ``t`` from ``i`` to ``T - 1``, for a task is not known before.
    """
    per_task = forgetting_per_task(matrix)
    return fmean(per_task) if per_task else 0.0


def forgetting_per_task(matrix: Matrix) -> list[float]:
    """``max_{t<T} a[t, i] - a[T, i]`` of every task but the last."""
    last = len(matrix) - 1
    return [max(matrix[t][i] for t in range(i, last)) - _last(matrix)[i] for i in range(last)]


def backward_transfer(matrix: Matrix) -> float:
    """``1/T sum_i (a[T, i] - a[i, i])``: over all T tasks, as in La-MAML's code; its forgetting is ``-`` this."""
    return fmean(end - matrix[i][i] for i, end in enumerate(_last(matrix)))


def learning_accuracy(matrix: Matrix) -> float:
    """``1/T sum_i a[i, i]``: of every task when it had just been learned."""
    return fmean(row[i] for i, row in enumerate(matrix))


def averages_so_far(matrix: Matrix) -> list[float]:
    """After each task, the mean accuracy over the tasks learned until then."""
    return [fmean(row[: t + 1]) for t, row in enumerate(matrix)]


def _last(matrix: Matrix) -> Sequence[float]:
    if not matrix or any(len(row) <= t for t, row in enumerate(matrix)):
        raise ValueError("matrix: give one row per task, each with the accuracies of its own and all earlier tasks")
    return matrix[-1][: len(matrix)]
