"""Gradient accumulation: a minibatch larger than memory, one micro-batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.optim.passes import sizes_of
from lookbehind.optim.ranks import evaluated_apart


def accumulated(
    loss: Callable[[Any], Tensor],
    micro_batches: Sequence[Any],
    *,
    sizes: Sequence[float] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    model: nn.Module | None = None,
) -> Callable[[], Tensor]:
    """A closure over several micro-batches: ``sum_i share_i loss(micro_batch_i)`` and its gradient.

    All points of a step see the whole minibatch, as without accumulation. For a climb of its own per micro-batch
    (m-SAM) give the optimizer ``micro_batches``. For the optimizers of this package, which clear the
    gradients themselves; with another one call its ``zero_grad()`` first.

    Args:
        loss: the mean loss of one micro-batch, without ``backward()``.
        micro_batches: what it is called with.
        sizes: examples in each, for their shares; the same number in each if not given.
        scaler: the optimizer's GradScaler, if it has one.
        model: the DistributedDataParallel model, so that gradients are averaged over the ranks once and not for each
            micro-batch.

    Examples:
        >>> loss = lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        >>> optimizer.step(accumulated(loss, [batch_1, batch_2, batch_3]))
    """
    micro_batches = list(micro_batches)
    if not micro_batches:
        raise ValueError("accumulated(loss, []): give at least one micro-batch")
    known = sizes_of(sizes if sizes is not None else [1.0] * len(micro_batches))
    if len(known) != len(micro_batches):
        raise ValueError(f"sizes={list(known)}: give one for each of the {len(micro_batches)} micro-batches")
    shares = [size / sum(known) for size in known]

    def closure() -> Tensor:
        parts = []
        for number, (micro_batch, share) in enumerate(zip(micro_batches, shares, strict=True), 1):
            with evaluated_apart(model, apart=number < len(micro_batches)):
                part = loss(micro_batch) * share
                (part if scaler is None else scaler.scale(part)).backward()
            parts.append(part.detach())
        return torch.stack(parts).sum()

    closure.needs_cleared_gradients = True  # type: ignore[attr-defined]
    return closure
