"""Losses and gradients that are not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lookbehind.optim.passes import Loss
from lookbehind.optim.weights import on


class NonFiniteError(ArithmeticError):
    """A loss or a gradient was NaN or infinite. The weights are as they were before the step."""


def check_finite(loss: Loss | None, norm: Tensor, scaled_norm: Tensor, where: str, shown: Loss | None = None) -> None:
    """Raise if the loss, the gradient's norm or the ascent's ``|T g|`` is not finite: one host read.

    ``shown`` is the loss for the message, where it does not decide.
    """
    flags = torch.isfinite(norm)
    if scaled_norm is not norm:
        flags = flags & on(flags.device, torch.isfinite(scaled_norm))
    if isinstance(loss, Tensor):
        flags = flags & on(flags.device, torch.isfinite(loss))
    elif loss is not None and not math.isfinite(loss):
        flags = torch.zeros_like(flags)
    if not bool(flags):
        shown = loss if shown is None else shown
        seen = "" if shown is None else f"loss {float(shown):g}, "
        raise NonFiniteError(
            f"{where}: {seen}gradient norm {float(norm):g}. The weights are as before the step. Lower the learning "
            'rate or rho, look at this minibatch, or choose nonfinite="skip" to go on without such steps'
        )
