"""Loss and accuracy of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.measures.unchanged import same_modes


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy, and the share of right answers in percent."""

    loss: float
    accuracy: float


@torch.no_grad()
def score(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Score:
    """Measure in evaluation mode; the model's mode is as before afterwards.

    ``loss = sum_i -log p(label_i) / N``, in float64 over the minibatches, without label smoothing.

    Examples:
        >>> score(model, [(images, labels)]).accuracy
    """
    loss, right, count = 0.0, 0, 0
    sums: list[tuple[Tensor, Tensor]] = []
    with same_modes(model):
        model.eval()
        for inputs, labels in batches:
            with autocast():
                logits = model(inputs)
            total = F.cross_entropy(logits.float(), labels, reduction="sum")
            # the largest of logits that are not numbers is no answer
            right_here = (logits.argmax(1) == labels) & ~logits.isnan().any(1)
            sums.append((total, right_here.sum()))  # read at the end: nothing waits for the device
            count += len(labels)
    for total, correct in sums:
        loss += float(total)
        right += int(correct)
    if not count:
        raise ValueError("no images to measure on: give at least one minibatch")
    return Score(loss / count, 100 * right / count)
