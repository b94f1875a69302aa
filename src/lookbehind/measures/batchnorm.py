"""Running statistics of BatchNorm, estimated anew for the weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lookbehind.measures.unchanged import same_modes, some
from lookbehind.optim.statistics import held_statistics


def layers_with_statistics(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a model that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@contextmanager
def recalibrated(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]] | None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[nn.Module]:
    """Inside this ``with`` the statistics are the cumulative average over the minibatches; then the old ones return.

    Give minibatches in random order: sorted by class they would have too little variance. Each counts the same:
    ``mean = (1 / n) sum_b mean_b``, as ``momentum=None`` defines it. No gradients; other layers are in evaluation mode
    meanwhile. Without minibatches (None) nothing changes.

    Examples:
        >>> with recalibrated(model, training_batches):
        ...     accuracy = score(model, test_batches).accuracy
    """
    layers = layers_with_statistics(model)
    with held_statistics(model):
        if layers and batches is not None:
            _estimate(model, layers, batches, autocast)
        yield model


@torch.no_grad()
def _estimate(
    model: nn.Module,
    layers: list[_BatchNorm],
    batches: Iterable[tuple[Tensor, Tensor]],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> None:
    momenta = [layer.momentum for layer in layers]
    try:
        with same_modes(model):
            model.eval()
            for layer in layers:
                layer.reset_running_stats()
                layer.momentum = None  # cumulative average
                layer.training = True
            for inputs, _ in some(batches):
                with autocast():
                    model(inputs)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
