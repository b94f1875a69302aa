"""Sharpness at eleven radii in one pass, against one radius at a time, and the floor of their ratio."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.bench.timing import Effort, Measured, Work, in_rounds, mark, ratio, ratios
from lookbehind.measures.sharpness import RADII, m_sharpness
from lookbehind.models import build

Batch = tuple[Tensor, Tensor]


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    mark()
    return F.cross_entropy(model(batch[0]), batch[1])


def sharpness(effort: Effort, batch: int = 128) -> list[Measured]:
    """The floor is ``(R + b) / (R (1 + b))``, with R radii and b the cost of forward and backward over forward."""
    torch.manual_seed(0)
    inputs = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    batches = [(inputs, torch.randint(10, (batch,)))] * 2

    times = in_rounds(lambda: _works(batches), effort)
    b, radii = median(ratios(times, "forward and backward", "forward")), len(RADII)
    floor = (radii + b) / (radii * (1 + b))
    what = f"sharpness at {radii} radii / one radius at a time"
    return [
        ratio(times, "together", "one by one", what, "resnet", at_most=1.05 * floor),
        Measured("its floor, from the cost of the passes alone", "resnet", floor),
    ]


def _works(batches: list[Batch]) -> dict[str, Work]:
    """On a new network."""
    model = build("resnet8-narrow", classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward() -> None:
        with torch.no_grad():
            for one in batches:
                _loss(model.eval(), one)

    def forward_backward() -> None:
        for one in batches:
            torch.autograd.grad(_loss(model.eval(), one), list(model.parameters()))

    return {
        "together": lambda: m_sharpness(model, _loss, batches, RADII),
        "one by one": lambda: [m_sharpness(model, _loss, batches, (radius,)) for radius in RADII],
        "forward": forward,
        "forward and backward": forward_backward,
    }
