"""The moving average of the weights, measured and kept in place of the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

FIRST_STEPS = 10  # the average is short at first: the weights of the beginning are soon forgotten


class Average:
    """``a <- d a + (1 - d) w`` after every step, with ``d = min(decay, (1 + n) / (10 + n))`` at the n-th step.

    Running statistics of normalisation layers are averaged alike, so that they fit the averaged weights.

    Args:
        model: whose weights are averaged.
        decay: below 1; 1 / (1 - decay) is about how many steps the average spans.

    Examples:
        >>> average = Average(model, 0.99)
        >>> average.update()  # after every step
        >>> with average.shown():
        ...     accuracy = score(model, test_batches).accuracy
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        buffers = (buffer for buffer in model.buffers() if buffer.is_floating_point())
        self._shown: list[Tensor] = [*model.parameters(), *buffers]
        self._average = [tensor.detach().clone() for tensor in self._shown]
        self._decay, self._steps, self._out = decay, 0, False

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights as they are now into the average."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (FIRST_STEPS + self._steps))
        torch._foreach_lerp_(self._average, [tensor.detach() for tensor in self._shown], 1 - decay)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside this ``with`` the model has the averaged weights; afterwards its own, bit for bit."""
        if self._out:  # already: what was changed since, such as re-estimated statistics, stays
            yield
            return
        own = [tensor.detach().clone() for tensor in self._shown]
        self._put(self._average)
        self._out = True
        try:
            yield
        finally:
            self._put(own)
            self._out = False

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._shown, values, strict=True):
            tensor.copy_(value)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"steps": self._steps, "average": [tensor.clone() for tensor in self._average]}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._steps = state["steps"]
        for tensor, value in zip(self._average, state["average"], strict=True):
            tensor.copy_(value)
