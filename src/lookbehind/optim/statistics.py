"""Running statistics of normalisation layers: kept, put back, held still during a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Statistics:
    """A copy of the running statistics of every normalisation layer in a model.

    Any buffer named ``running_*`` or ``num_batches_tracked`` counts, whatever the class. Values are saved and put
    back; no flag of a module is touched, so that nothing is compiled twice and nesting is safe.
    """

    def __init__(self, model: nn.Module) -> None:
        self._saved: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        seen: set[int] = set()
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and _is_statistic(name) and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._saved.append((module, name, buffer, buffer.detach().clone()))

    @torch.no_grad()
    def restore(self) -> None:
        """Put the values back, also where a module put another tensor in the buffer's place."""
        for module, name, buffer, value in self._saved:
            buffer.copy_(value)
            module._buffers[name] = buffer


def _is_statistic(name: str) -> bool:
    return name.startswith("running_") or name == "num_batches_tracked"


@contextmanager
def held_statistics(model: nn.Module | None) -> Iterator[None]:
    """Run forward passes without changing the running statistics of a model's normalisation layers.

    Examples:
        >>> with held_statistics(model):
        ...     loss = loss_function(model(inputs), targets)
    """
    saved = Statistics(model) if model is not None else None
    try:
        yield
    finally:
        if saved is not None:
            saved.restore()
