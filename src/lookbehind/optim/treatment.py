"""What is done to gradients between the user's ``backward()`` and their use: unscaled, averaged, checked, clipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.optim.clipping import Clip
from lookbehind.optim.passes import Loss
from lookbehind.optim.precision import NonFiniteError, check_finite
from lookbehind.optim.ranks import (
    average_over_ranks,
    evaluated_apart,
    forget_gathered_weights,
    several_ranks,
)
from lookbehind.optim.scaling import Overflowed, Scaling
from lookbehind.optim.weights import norms, total_norm


@dataclass(kw_only=True)
class Treatment:
    """Of the gradients of one step.

    Only quantities that all ranks share decide whether a step is taken: ranks that decided by themselves would wait for
    each other for ever. So with several ranks the loss, which is each rank's own, has no say; and ranks that climb
    apart decide by the gradient averaged for the descent, in which a NaN of any of them shows.
    """

    parameters: Sequence[Tensor]
    model: nn.Module | None
    check: bool  # for losses and gradients that are not finite
    apart: bool
    clip: Clip | None
    scaling: Scaling | None
    _overflowed: Tensor | None = None
    _unclipped: Tensor | None = None  # the norm before the clipping

    def evaluated(self) -> AbstractContextManager[Any]:
        """Around the user's forward and backward pass."""
        forget_gathered_weights(self.model)
        return evaluated_apart(self.model, apart=self.apart)

    def received(self, *, given: bool) -> None:
        """After an evaluation: unscale, and clip if the ascent is to follow clipped gradients."""
        if self.scaling is not None:
            self.scaling.unscale(self.parameters, given=given)
        if self.clip is not None and self.clip.ascent:
            gradients = self._gradients()
            if self.check or self.scaling is not None:  # entries cut to a limit would hide that they were infinite
                self._unclipped = total_norm(norms(gradients), gradients)
            self.clip(gradients)

    def checked(self, loss: Loss | None, norm: Tensor, scaled_norm: Tensor, where: str) -> None:
        """Raise if what was evaluated is not finite."""
        if self._unclipped is not None:
            # 0 times infinity is NaN: what clipping has hidden still shows
            norm, self._unclipped = norm + 0 * self._unclipped, None
        if not self.apart:
            self._check(None if several_ranks() else loss, loss, norm, scaled_norm, where)
        elif self.scaling is not None:  # the others are told with the next average
            overflowed = (~torch.isfinite(norm)).to(norm.dtype)
            self._overflowed = overflowed if self._overflowed is None else self._overflowed + overflowed

    def handed_on(self) -> None:
        """Before a step of the base optimizer."""
        if self.apart:
            heard = average_over_ranks(self.parameters, self.model, self._mine())
            if self.check or self.scaling is not None:
                gradients = self._gradients()
                norm = total_norm(norms(gradients), gradients)
                norm = torch.where(heard > 0, torch.full_like(norm, float("inf")), norm)  # an overflow on some rank
                self._check(None, None, norm, norm, "the gradient of the descent, averaged over the ranks")
        if self.clip is not None and not self.clip.ascent:
            self.clip(self._gradients())

    def _check(self, loss: Loss | None, shown: Loss | None, norm: Tensor, scaled: Tensor, where: str) -> None:
        if self.scaling is None and not self.check:
            return
        # overflows are looked for in any case: else the scaler would be of no use
        deciding = loss if self.check else None
        try:
            check_finite(deciding, norm, scaled, where, shown)
        except NonFiniteError as error:
            # a loss that is not finite is no overflow: a lower scale would not mend it
            if self.scaling is None or (deciding is not None and not math.isfinite(deciding)):
                raise
            self.scaling.tell_overflow(norm.device)
            raise Overflowed(str(error)) from None

    def _mine(self) -> Tensor:
        """How many of this rank's own gradients have overflowed so far."""
        return torch.zeros(()) if self._overflowed is None else self._overflowed

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]
