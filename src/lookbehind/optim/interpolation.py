"""How far the slow weights follow the fast ones: ``slow <- slow + alpha (fast - slow)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lookbehind.optim.checks import fraction, one_of
from lookbehind.optim.weights import Room, Vector, dot, on, total, widened


class Interpolation(Protocol):
    """Gives alpha: a number for all, or one 0-dimensional tensor per parameter."""

    @property
    def needs_first(self) -> bool:
        """Must the fast weights after the first base step be kept?"""
        ...

    def __call__(
        self, slow: Sequence[Tensor], first: Vector, fast: Vector, owners: Sequence[Tensor], room: Room
    ) -> float | Sequence[Tensor]:
        """Alpha from the weights before the step, after its first and after its last base step.

        ``slow`` may wait on the CPU, each tensor coming to its device when it is read: read each once if you can.
        ``first`` may be overwritten, where it is not ``fast`` itself; ``room`` gives scratch memory like a tensor.
        """
        ...


@dataclass(frozen=True)
class constant:  # noqa: N801, a value with arguments, used like a function
    """The same alpha always; 1 is no interpolation (the fast weights are kept), 0 leaves the weights."""

    alpha: float

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)
        object.__setattr__(self, "alpha", float(self.alpha))

    @property
    def needs_first(self) -> bool:
        """No: only the ends count."""
        return False

    def __call__(
        self, slow: Sequence[Tensor], first: Vector, fast: Vector, owners: Sequence[Tensor], room: Room
    ) -> float:
        """The constant."""
        return self.alpha


none = constant(1.0)


@dataclass(frozen=True)
class adaptive:  # noqa: N801, a value with arguments, used like a function
    """``alpha = (c + 1) / 2`` with ``c = cos(first - slow, fast - slow)``: go all the way while the way is straight.

    ``first`` are the fast weights after the first base step. One cosine over the whole vector, or one per tensor.
    """

    per_tensor: bool = False

    @property
    def needs_first(self) -> bool:
        """Yes: the first step is compared with the whole move."""
        return True

    def __call__(
        self, slow: Sequence[Tensor], first: Vector, fast: Vector, owners: Sequence[Tensor], room: Room
    ) -> list[Tensor]:
        """One tensor per parameter; the same one for all, unless per tensor."""
        # not by zip, which holds one slow tensor while the next comes to its device
        products = [_products(slow[i], first[i], fast[i], room) for i in range(len(fast))]
        if self.per_tensor:
            parts = [
                [total([value], [owner]) for value in three] for three, owner in zip(products, owners, strict=True)
            ]
            return [_alpha(*three) for three in parts]
        both, first_square, whole_square = (total(list(values), owners) for values in zip(*products, strict=True))
        alpha = _alpha(both, first_square, whole_square)
        return [on(tensor.device, alpha) for tensor in fast]


def _products(slow: Tensor, first: Tensor, fast: Tensor, room: Room) -> tuple[Tensor, Tensor, Tensor]:
    origin, end = widened(slow), widened(fast)
    whole = torch.sub(end, origin, out=room(end))
    if first is fast:
        square = dot(whole, whole)
        return square, square, square
    begin = first.sub_(slow) if origin is slow else widened(first) - origin
    return dot(begin, whole), dot(begin, begin), dot(whole, whole)


def _alpha(both: Tensor, first_square: Tensor, whole_square: Tensor) -> Tensor:
    length = first_square.sqrt() * whole_square.sqrt()
    # where nothing moved the cosine has no meaning; any alpha gives the same weights
    cosine = torch.where(length > 0, both / length, 0.0)
    return ((cosine + 1) / 2).clamp(0, 1)


def following(alpha: float | str) -> Interpolation:
    """The interpolation for an ``alpha`` as people give it: a number, ``"adaptive"`` or ``"adaptive-per-tensor"``."""
    if isinstance(alpha, str):
        one_of("alpha", alpha, ("adaptive", "adaptive-per-tensor"), "or give a number from 0 to 1")
        return adaptive(per_tensor=alpha == "adaptive-per-tensor")
    return constant(fraction("alpha", alpha, ', "adaptive" or "adaptive-per-tensor"'))
