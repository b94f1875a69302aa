"""What the last step saw. Values stay on the device until somebody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lookbehind.optim.passes import Loss


def _read(value: Tensor | float | None) -> float | None:
    return None if value is None else float(value)


@dataclass(repr=False)
class Diagnostics:
    """Diagnostics of one step; reading a property waits for the device.

    With micro-batches every value is the mean over the chains, weighted by micro-batch size.
    """

    ascents: int
    """Ascent steps taken; 0 for a plain step of the base optimizer."""
    evaluations: int = 0
    """Gradients computed, one that was ``given`` included."""
    skipped: bool = False
    """Was the step skipped because of a non-finite loss or gradient?"""
    _losses: list[Loss | None] = field(default_factory=list, repr=False)
    _norms: list[Tensor] = field(default_factory=list, repr=False)
    _cosine: Tensor | None = field(default=None, repr=False)
    _alpha: float | Sequence[Tensor] | None = field(default=None, repr=False)

    def record(self, point: int, share: float, loss: Loss | None, norm: Tensor) -> None:
        """Note the evaluation at a point of a chain."""
        if share != 1.0:
            loss, norm = None if loss is None else loss * share, norm * share
        if point == len(self._norms):
            self._losses.append(loss)
            self._norms.append(norm)
            return
        known = self._losses[point]
        if loss is not None:
            self._losses[point] = loss if known is None else known + loss
        self._norms[point] = self._norms[point] + norm

    def record_cosine(self, share: float, cosine: Tensor) -> None:
        """Note the cosine of one chain."""
        self._cosine = cosine * share if self._cosine is None else self._cosine + cosine * share

    def record_alpha(self, alpha: float | Sequence[Tensor] | None) -> None:
        """Note how far the slow weights went."""
        self._alpha = alpha

    @property
    def clean_loss(self) -> Loss | None:
        """The loss at the weights before the step, unread: a tensor if the closure returned one."""
        return self._losses[0] if self._losses else None

    @property
    def loss(self) -> float | None:
        """The loss at the weights before the step."""
        return _read(self.clean_loss)

    @property
    def losses(self) -> tuple[float | None, ...]:
        """The loss at each point of the climb, the first at the weights before the step."""
        return tuple(_read(loss) for loss in self._losses)

    @property
    def gradient_norms(self) -> tuple[float, ...]:
        """The norm of the gradient (over all parameters) at each point of the climb."""
        return tuple(float(norm) for norm in self._norms)

    @property
    def cosine(self) -> float | None:
        """Between the last gradient and the whole climb or the first gradient: None unless the option ``cosine`` asks.

        Not the cosine that gives an adaptive alpha: that one compares moves of the fast weights.
        """
        return _read(self._cosine)

    @property
    def alpha(self) -> float | tuple[float, ...] | None:
        """The fraction of the way that the slow weights went; one per tensor for "adaptive-per-tensor"."""
        if self._alpha is None or isinstance(self._alpha, float):
            return self._alpha
        if all(alpha is self._alpha[0] for alpha in self._alpha):
            return float(self._alpha[0])
        return tuple(float(alpha) for alpha in self._alpha)

    def __repr__(self) -> str:
        return f"Diagnostics({', '.join(f'{name}={value}' for name, value in self.to_dict().items())})"

    def to_dict(self) -> dict[str, Any]:
        """All of it, read, as plain types for a log."""
        names = ("loss", "losses", "gradient_norms", "alpha", "cosine", "evaluations", "ascents", "skipped")
        return {name: getattr(self, name) for name in names}
