"""Losses and gradients that are not finite."""

from __future__ import annotations

import math

from torch import Tensor

from lookbehind.optim.passes import Loss
from lookbehind.optim.weights import on


class NonFiniteError(ArithmeticError):
    """A loss or a gradient was NaN or infinite. The weights are as they were before the step."""


def check_finite(loss: Loss | None, norm: Tensor, scaled_norm: Tensor, where: str, shown: Loss | None = None) -> None:
    """Raise if the loss, the gradient's norm or the ascent's ``|T g|`` is not finite: one host read.

    ``shown`` is the loss for the message, where it does not decide.
    """
    # x - x is 0 where x is finite and NaN elsewhere: fewer small operations than torch.isfinite, which cost more than
    # they seem to between passes that have emptied the caches
    difference = norm - norm
    if scaled_norm is not norm:
        difference = difference + on(norm.device, scaled_norm - scaled_norm)
    if isinstance(loss, Tensor):
        difference = difference + on(norm.device, loss - loss)
    if float(difference) != 0 or not (loss is None or isinstance(loss, Tensor) or math.isfinite(loss)):
        shown = loss if shown is None else shown
        seen = "" if shown is None else f"loss {float(shown):g}, "
        raise NonFiniteError(
            f"{where}: {seen}gradient norm {float(norm):g}. The weights are as before the step. Lower the learning "
            'rate or rho, look at this minibatch, or choose nonfinite="skip" to go on without such steps'
        )
