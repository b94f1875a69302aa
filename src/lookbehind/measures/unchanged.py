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
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(
                f"there is a NaN in the weights, or an infinite one, in {name}: give a network that did not diverge"
            )
    buffers = [(m, name, b) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    tensors: list[Tensor] = [*parameters, *(buffer for _, _, buffer in buffers)]
    kept = [tensor.detach().clone() for tensor in tensors]
    gradients = [p.grad for p in parameters]
    try:
        with same_modes(model):
            yield kept[: len(parameters)]
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer  # a forward pass may have put another one in its place
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


@contextmanager
def same_modes(model: nn.Module) -> Iterator[None]:
    """Inside this ``with`` modules may be set to training or evaluation; then each is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def same_random_numbers(number: int, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside this ``with`` dropout has the masks that belong to this number, whenever and how often it is asked.

    Afterwards the generators of the CPU and of the tensors' devices go on as if nothing had been drawn.
    """
    elsewhere = sorted({t.device for t in tensors if t.device.type not in ("cpu", "meta")}, key=str)
    with torch.random.fork_rng(elsewhere, device_type=elsewhere[0].type if elsewhere else "cuda"):
        torch.manual_seed(number)
        yield


def minibatches_of(batches: Any) -> Iterator[Any]:
    """The minibatches that a function gives, anew at every call; an error if there are none."""
    if not callable(batches):
        raise TypeError(
            f"a {type(batches).__name__} in place of a function that gives minibatches: write lambda: loader, for they "
            "are gone through more than once"
        )
    return some(batches())


def scalar(value: Any) -> Tensor:
    """The value, if it is a loss: a scalar."""
    if not isinstance(value, Tensor) or value.dim() != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss is not a scalar but {shape}: return the mean over the minibatch")
    return value


def differentiable(value: Tensor) -> Tensor:
    """The loss, if it has a gradient."""
    if not value.requires_grad:
        raise ValueError("the loss has no gradient: return it as it is computed, without detach() or item()")
    return value


def finite(value: Tensor, where: str, remedy: str = "is there a NaN in the data?") -> float:
    """A loss as a number; an error if it is not finite."""
    number = float(value)
    if not torch.isfinite(value.detach()).item():
        raise ValueError(f"the loss {where} is {number}: {remedy}")
    return number


def several(name: str, values: Any) -> tuple[Any, ...]:
    """One or more values; an error for a bare number."""
    if isinstance(values, (int, float)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r}: give several in a tuple, such as {name}=({values!r},)")
    found = tuple(values)
    if not found:
        raise ValueError(f"{name}=(): give at least one")
    return found


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
    wide = torch.float32 if any(t.device.type == "mps" for t in tensors) else torch.float64  # which mps lacks
    parts = torch._foreach_norm([t.detach() for t in tensors], 2, wide)
    whole: Tensor = torch.linalg.vector_norm(torch.stack([part.to(parts[0].device) for part in parts]))
    return whole
