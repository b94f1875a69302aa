"""A small problem of several tasks, and its loss and gradients in a plain form."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

N = 3  # classes per task
TASKS = 4


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, N * TASKS)).double()


def minibatches(count: int = 5, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(size, 5, generator=generator, dtype=torch.float64),
            torch.randint(N, (size,), generator=generator) + N * (number // 2),
        )
        for number in range(count)
    ]


def plain_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Example by example."""
    losses = []
    for x, label in zip(inputs, labels.tolist(), strict=True):
        first = label // N * N
        losses.append(cross_entropy(model(x)[None, first : first + N], torch.tensor([label - first])))
    return torch.stack(losses).mean()


def at(model: nn.Module, weights: list[Tensor], inputs: Tensor, labels: Tensor, graph: bool = False) -> list[Tensor]:
    """The gradient of the plain loss at some weights, through which one may differentiate."""
    names = [name for name, _ in model.named_parameters()]
    by_name = dict(zip(names, weights, strict=True))
    return list(torch.autograd.grad(at_loss(model, by_name, inputs, labels), weights, create_graph=graph))


def at_loss(model: nn.Module, by_name: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    return plain_loss(lambda x: torch.func.functional_call(model, by_name, (x,)), inputs, labels)


def size(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients]).norm()


def leaves(weights: list[Tensor]) -> list[Tensor]:
    return [w.detach().clone().requires_grad_() for w in weights]


def clipped(gradients: list[Tensor], limit: float) -> list[Tensor]:
    return [g * min(1.0, limit / (float(size(gradients)) + 1e-6)) for g in gradients]
