"""The Hessian of a loss: its largest eigenvalues and its trace, by Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lookbehind.measures.unchanged import (
    Loss,
    differentiable,
    finite,
    minibatches_of,
    same_random_numbers,
    scalar,
    unchanged,
)
from lookbehind.optim.checks import count, one_of


@dataclass(frozen=True)
class Curvature:
    """What the Hessian looks like."""

    eigenvalues: tuple[float, ...]
    """The largest, in falling order."""
    trace: float
    trace_error: float | None
    """Standard error of the trace over its random probes; None for a single one."""


def curvature(
    model: nn.Module,
    loss: Loss,
    batches: Callable[[], Iterable[Any]],
    *,
    eigenvalues: int = 1,
    iterations: int = 30,
    probes: int = 30,
    seed: int = 0,
    mode: str = "eval",
) -> Curvature:
    """Largest eigenvalues (Lanczos) and trace (Hutchinson) of the Hessian of the mean loss over the minibatches.

    ``H v`` is the gradient of ``g . v``. Lanczos with full re-orthogonalisation gives the eigenvalues of a tridiagonal
    matrix, of which the extreme ones converge first; ``tr H = E[v . H v]`` for random signs ``v``.

    Args:
        model: it is the same afterwards.
        loss: the mean loss of a model on a minibatch.
        batches: gives the minibatches, anew at every call; a product needs a pass over all of them.
        eigenvalues: how many.
        iterations: of Lanczos, at least ``eigenvalues``; each costs a product.
        probes: of the trace; each costs a product.
        seed: of the first vector and the probes.
        mode: ``"eval"`` normalises with the running statistics, ``"train"`` with those of the minibatch.

    Examples:
        >>> curvature(model, loss, lambda: loader, eigenvalues=3).eigenvalues
    """
    one_of("mode", mode, ("eval", "train"))
    count("eigenvalues", eigenvalues)
    count("iterations", iterations, at_least=eigenvalues)
    count("probes", probes)
    with unchanged(model):
        model.train(mode == "train")
        product = _Product(model, loss, batches)
        generator = torch.Generator().manual_seed(seed)
        largest = _lanczos(product, eigenvalues, iterations, generator)
        traces = [float(torch.dot(v, product(v))) for v in (_signs(product, generator) for _ in range(probes))]
    error = stdev(traces) / len(traces) ** 0.5 if len(traces) > 1 else None
    return Curvature(largest, fmean(traces), error)


class _Product:
    """``v -> H v`` for flat vectors."""

    def __init__(self, model: nn.Module, loss: Loss, batches: Callable[[], Iterable[Any]]) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("no parameter has requires_grad=True: there is no Hessian")
        self.model, self.loss, self.batches = model, loss, batches
        self.size = sum(p.numel() for p in self.parameters)

    def __call__(self, vector: Tensor) -> Tensor:
        pieces = vector.split([p.numel() for p in self.parameters])
        shaped = [piece.view_as(p) for piece, p in zip(pieces, self.parameters, strict=True)]
        result, minibatches = torch.zeros_like(vector), 0
        for batch in minibatches_of(self.batches):
            # one Hessian, also with dropout; and fused attention has no second derivative
            with torch.enable_grad(), same_random_numbers(minibatches, self.parameters), sdpa_kernel(SDPBackend.MATH):
                value = differentiable(scalar(self.loss(self.model, batch)))
                finite(value.detach(), "at the weights")
                gradients = torch.autograd.grad(value, self.parameters, create_graph=True, materialize_grads=True)
                along = sum((g * v).sum() for g, v in zip(gradients, shaped, strict=True) if g.requires_grad)
                if isinstance(along, Tensor):  # else the gradient does not depend on the weights: no curvature
                    products = torch.autograd.grad(along, self.parameters, materialize_grads=True)
                    result += torch.cat([h.flatten() for h in products])
            minibatches += 1
        return result / minibatches

    def like(self, numbers: Tensor) -> Tensor:
        """Numbers in the type and on the device of the parameters."""
        return numbers.to(self.parameters[0])


def _signs(product: _Product, generator: torch.Generator) -> Tensor:
    return product.like(torch.randint(0, 2, (product.size,), generator=generator) * 2.0 - 1)


def _lanczos(product: _Product, wanted: int, iterations: int, generator: torch.Generator) -> tuple[float, ...]:
    if wanted > product.size:
        raise ValueError(f"eigenvalues={wanted}: there are only {product.size} parameters")
    basis: list[Tensor] = []

    def rest(vector: Tensor) -> Tensor:
        """What is new in a vector; twice, for rounding would bring back what was found already."""
        for _ in range(2 if basis else 0):
            matrix = torch.stack(basis)
            vector = vector - matrix.T @ (matrix @ vector)
        return vector

    def fresh() -> Tensor:
        vector = rest(product.like(torch.randn(product.size, generator=generator)))
        length: Tensor = vector.norm()
        return vector / length

    basis.append(fresh())
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(iterations, product.size)):
        image = product(basis[-1])
        diagonal.append(float(torch.dot(image, basis[-1])))
        if len(basis) == product.size:
            break
        image = rest(image)
        length = float(image.norm())
        # an eigenvalue that comes again is not reached from here: start once more, beside all that is known
        ended = length <= 1e-6 * max(map(abs, diagonal), default=1.0)
        beside.append(0.0 if ended else length)
        basis.append(fresh() if ended else image / length)
    size = len(diagonal)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for i, value in enumerate(beside[: size - 1]):
        matrix[i, i + 1] = matrix[i + 1, i] = value
    found = torch.linalg.eigvalsh(matrix).flip(0).tolist()
    return tuple(found[:wanted])
