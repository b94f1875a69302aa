"""Slices through the loss: along random directions of the size of the filters, and from one solution to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.measures.batchnorm import recalibrated
from lookbehind.measures.unchanged import Loss, minibatches_of, scalar, unchanged

Batches = Callable[[], Iterable[Any]]
Direction = list[Tensor]


def filter_normalised(model: nn.Module, generator: torch.Generator) -> Direction:
    """A random direction whose every filter is as long as the model's (Li et al., 2018); biases and norms stay.

    ``d_f <- d_f |w_f| / |d_f|`` for each filter ``f``, a row of a weight of two or more dimensions; zero for tensors of
    fewer, which are biases and the weights of normalisation layers.
    """
    direction = []
    for parameter in model.parameters():
        weight = parameter.detach()
        if weight.dim() < 2:
            direction.append(torch.zeros_like(weight))
            continue
        drawn = torch.randn(weight.shape, generator=generator).to(weight).flatten(1)
        lengths = weight.flatten(1).norm(dim=1, keepdim=True)
        direction.append((drawn * lengths / drawn.norm(dim=1, keepdim=True).clamp_min(1e-12)).view_as(weight))
    return direction


def towards(model: nn.Module, other: Mapping[str, Tensor]) -> Direction:
    """The direction from a model's weights to those of another solution: at distance 1 the other one is reached."""
    found = []
    for name, parameter in model.named_parameters():
        if name not in other or other[name].shape != parameter.shape:
            raise ValueError(
                f"the other solution has no {name} of shape {tuple(parameter.shape)}: is it another network?"
            )
        if not bool(torch.isfinite(other[name]).all()):
            raise ValueError(f"the other solution is not finite in {name}: give one that did not diverge")
        found.append(other[name].to(parameter) - parameter.detach())
    return found


def line(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    direction: Direction,
    places: Sequence[float],
    statistics: Batches | None = None,
) -> list[float]:
    """The mean loss over the minibatches at ``w + t d`` for each ``t``; infinite where it is not a number.

    Examples:
        >>> line(model, loss, lambda: loader, filter_normalised(model, generator), [-1, -0.5, 0, 0.5, 1])
        >>> line(model, loss, lambda: loader, towards(model, other.state_dict()), [0, 0.5, 1], lambda: loader)
    """
    return [row[0] for row in plane(model, loss, batches, (direction, direction), places, [0.0], statistics)]


def plane(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    directions: tuple[Direction, Direction],
    across: Sequence[float],
    along: Sequence[float],
    statistics: Batches | None = None,
) -> list[list[float]]:
    """The mean loss at ``w + a d_1 + b d_2``: a row for each ``a`` of ``across``, in it a value for each ``b``.

    Evaluation mode; the model is the same afterwards. With ``statistics``, which gives training minibatches (inputs,
    labels), BatchNorm statistics are estimated again at every place. On the way to another solution they must be:
    those of the first network do not fit the second.
    """
    if not across or not along:
        raise ValueError("no places to measure at: give at least one distance in each direction")
    with unchanged(model) as slow, torch.no_grad():
        parameters: list[Tensor] = list(model.parameters())
        model.eval()

        def at(a: float, b: float) -> float:
            torch._foreach_copy_(parameters, slow)
            torch._foreach_add_(parameters, directions[0], alpha=a)
            torch._foreach_add_(parameters, directions[1], alpha=b)
            with recalibrated(model, minibatches_of(statistics) if statistics is not None else None):
                values = torch.stack([scalar(loss(model, batch)) for batch in minibatches_of(batches)])
            return float(torch.nan_to_num(values.double().mean(), nan=float("inf"), posinf=float("inf")))

        return [[at(a, b) for b in along] for a in across]
