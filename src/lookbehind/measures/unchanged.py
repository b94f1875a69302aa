"""Measuring moves weights and runs forward passes; afterwards the model is as before, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]
"""The mean loss of a model on a minibatch: a scalar."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside this ``with`` anything may be done to a model's numbers and modes; then all is as it was.

    Gives copies of the parameters, in the order of ``model.parameters()``. Values are written back in place:
    the tensors themselves stay, for an optimizer may hold them.
    """
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters: there are no weights to measure around")
    tensors: list[Tensor] = [*parameters, *model.buffers()]
    kept = [tensor.detach().clone() for tensor in tensors]
    modes = [(module, module.training) for module in model.modules()]
    gradients = [p.grad for p in parameters]
    try:
        yield kept[: len(parameters)]
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode


def scalar(value: Any) -> Tensor:
    """The value, if it is a loss: a scalar that is finite."""
    if not isinstance(value, Tensor) or value.dim() != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss is not a scalar but {shape}: return the mean over the minibatch")
    return value


def finite(value: Tensor, where: str) -> float:
    """A loss as a number; an error if it is not finite."""
    number = float(value)
    if not torch.isfinite(value.detach()).item():
        raise ValueError(f"the loss {where} is {number}: is there a NaN in the weights or the data?")
    return number


def some(batches: Iterable[Any]) -> Iterator[Any]:
    """The minibatches; an error if there are none."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise ValueError("no minibatches to measure on: the loader is empty, or was used up before")


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers together."""
    parts = torch._foreach_norm([t.detach() for t in tensors], 2, torch.float64)
    whole: Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return whole
