"""m-sharpness: how much the loss rises at the worst point of a neighbourhood, minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.measures.unchanged import (
    Loss,
    differentiable,
    finite,
    norm,
    same_random_numbers,
    scalar,
    several,
    some,
    unchanged,
)
from lookbehind.optim.ascent import TINY, Leaf, Rule, asam, sam
from lookbehind.optim.checks import count, one_of, positive

RADII = (0.05, *(step / 2 for step in range(1, 11)))
"""The paper's, for SAM's neighbourhood: 0.05, 0.5, 1, ..., 5; ASAM's is without the first."""


@dataclass(frozen=True)
class Sharpness:
    """The rise of the loss at each radius, and what it has to be seen beside."""

    radii: tuple[float, ...]
    values: tuple[float, ...]
    """Mean over the minibatches of ``L(w + e) - L(w)``."""
    loss: float
    """Mean over the minibatches of ``L(w)``."""
    weight_norm: float
    """``|w|``: a network with BatchNorm is the same function when its weights are scaled, a radius is not."""
    minibatches: int

    @property
    def relative_radii(self) -> tuple[float, ...]:
        """The radii as fractions of ``|w|``."""
        return tuple(radius / self.weight_norm for radius in self.radii)


def m_sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    radii: Sequence[float] = RADII,
    *,
    neighbourhood: str | Rule = "sam",
    steps: int = 1,
    mode: str = "eval",
) -> Sharpness:
    """The m-sharpness at several radii, by one pass over the data.

    ``(1 / n) sum_M [ max_{|e / T| <= r} L_M(w + e) - L_M(w) ]`` over the ``n`` minibatches ``M``, whose size is the
    ``m``; the maximum is approached by ``steps`` ascent steps, ``e = (r / steps) T^2 g / |T g|`` each. With one step a
    single gradient per minibatch serves all radii.

    Args:
        model: it is the same afterwards, also after an interrupt.
        loss: the mean loss of a model on a minibatch.
        batches: minibatches of size ``m``, as ``loss`` takes them.
        radii: above 0.
        neighbourhood: ``"sam"`` (``T = 1``), ``"asam"`` (``T = |w|`` for parameters named "weight", 1 for others), or a
            rule of ``lookbehind.optim.ascent``.
        steps: ascent steps.
        mode: ``"eval"`` normalises with the running statistics, ``"train"`` with those of the minibatch.

    Examples:
        >>> loss = lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        >>> m_sharpness(model, loss, loader, radii=(0.05, 0.5)).values
    """
    rule = _rule(neighbourhood)
    one_of("mode", mode, ("eval", "train"))
    count("steps", steps)
    radii = tuple(positive("radius", radius) for radius in several("radii", radii))
    with unchanged(model) as slow:
        model.train(mode == "train")
        walker = _Walker(model, loss, rule, slow)
        rises, clean = torch.zeros(len(radii), dtype=torch.float64), 0.0
        minibatches = 0
        for batch in some(batches):
            walker.number = minibatches
            before, found = walker.rises(batch, radii, steps)
            clean += before
            rises += found
            minibatches += 1
        size = float(norm(slow))
    return Sharpness(radii, tuple((rises / minibatches).tolist()), clean / minibatches, size, minibatches)


class _Walker:
    """Moves the weights of a model up and back, for one minibatch after the other."""

    def __init__(self, model: nn.Module, loss: Loss, rule: Rule, slow: list[Tensor]) -> None:
        named = [(name, p, w) for (name, p), w in zip(model.named_parameters(), slow, strict=True) if p.requires_grad]
        if not named:
            raise ValueError("no parameter has requires_grad=True: there is no direction to climb")
        self.model, self.loss, self.rule = model, loss, rule
        self.leaves = [Leaf(p, name, 1.0) for name, p, _ in named]
        self.parameters: list[Tensor] = [p for _, p, _ in named]
        self.slow = [w for _, _, w in named]
        self.number = 0  # of the minibatch: all its losses have the same dropout masks

    def rises(self, batch: Any, radii: Sequence[float], steps: int) -> tuple[float, Tensor]:
        """The loss at the weights themselves, and how much it rises at each radius."""
        clean, first = self._gradient(batch)
        before = finite(clean, "at the weights themselves")
        direction = self._direction(first, self.slow)
        losses = []
        for radius in radii:
            self._move(self.slow, direction, radius / steps)
            for _ in range(steps - 1):
                _, gradients = self._gradient(batch)
                here = [p.detach().clone() for p in self.parameters]
                self._move(here, self._direction(gradients, here), radius / steps)
            with torch.no_grad(), same_random_numbers(self.number, self.parameters):
                losses.append(scalar(self.loss(self.model, batch)))
        self._move(self.slow, None, 0.0)
        remedy = "give smaller radii"
        after = [finite(value, f"at radius {radius}", remedy) for value, radius in zip(losses, radii, strict=True)]
        return before, torch.tensor(after, dtype=torch.float64) - before

    def _gradient(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad(), same_random_numbers(self.number, self.parameters):
            value = differentiable(scalar(self.loss(self.model, batch)))
            found = torch.autograd.grad(value, self.parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]
        return value.detach(), gradients

    @torch.no_grad()
    def _direction(self, gradients: list[Tensor], point: list[Tensor]) -> list[Tensor]:
        """``T^2 g / |T g|``."""
        scalings = [
            self.rule(leaf, slow, here, torch.empty_like)
            for leaf, slow, here in zip(self.leaves, self.slow, point, strict=True)
        ]
        scaled = [g if t is None else t * g for g, t in zip(gradients, scalings, strict=True)]
        length = norm(scaled) + TINY
        twice = [g if t is None else t * g for g, t in zip(scaled, scalings, strict=True)]
        return [g / length.to(g.device) for g in twice]

    @torch.no_grad()
    def _move(self, start: list[Tensor], direction: list[Tensor] | None, distance: float) -> None:
        """``start + distance * direction``."""
        torch._foreach_copy_(self.parameters, start)
        if direction is not None:
            torch._foreach_add_(self.parameters, direction, alpha=distance)


def _rule(neighbourhood: str | Rule) -> Rule:
    if isinstance(neighbourhood, str):
        one_of("neighbourhood", neighbourhood, ("sam", "asam"))
        return asam(eta=0.0) if neighbourhood == "asam" else sam
    return neighbourhood
