"""Gradient clipping: on the gradient that the base optimizer steps with, or on every gradient that is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lookbehind.optim.checks import positive
from lookbehind.optim.weights import norms, on, real, total_norm


@dataclass(frozen=True)
class clip_norm:  # noqa: N801, used like a function
    """``g <- g min(1, c / (|g| + 1e-6))``, the norm over all parameters, as ``torch.nn.utils.clip_grad_norm_`` does it.

    Args:
        max_norm: ``c``.
        ascent: clip every gradient that is evaluated. SAM's and ASAM's climb does not notice (it follows the direction
            of the gradient alone), but a mean over several points does. By default the gradient of each base step is
            clipped, whatever it is made of.

    Examples:
        >>> LookbehindSAM(base, clip=clip_norm(1.0))
    """

    max_norm: float
    ascent: bool = False

    def __post_init__(self) -> None:
        positive("max_norm", self.max_norm)

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Clip in place."""
        if not gradients:
            return
        coefficient = (self.max_norm / (total_norm(norms(gradients), gradients) + 1e-6)).clamp(max=1.0)
        for gradient in map(real, gradients):
            gradient.mul_(on(gradient.device, coefficient))


@dataclass(frozen=True)
class clip_value:  # noqa: N801, used like a function
    """Every entry of the gradient into ``[-limit, limit]``, as ``torch.nn.utils.clip_grad_value_`` does it.

    Args:
        limit: the largest size of an entry.
        ascent: clip every gradient that is evaluated; then the climb follows the clipped gradients too.
    """

    limit: float
    ascent: bool = False

    def __post_init__(self) -> None:
        positive("limit", self.limit)

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Clip in place."""
        if gradients:
            parts = [real(gradient) for gradient in gradients]
            torch._foreach_clamp_min_(parts, -self.limit)
            torch._foreach_clamp_max_(parts, self.limit)


Clip = clip_norm | clip_value


def check_clip(clip: object) -> None:
    """An error if it is no way of clipping."""
    if clip is not None and not isinstance(clip, clip_norm | clip_value):
        raise TypeError(f"clip={clip!r}: give clip=lookbehind.clip_norm(1.0) or clip=lookbehind.clip_value(0.5)")
