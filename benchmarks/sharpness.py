"""Sharpness at eleven radii in one pass, against one radius at a time, and the floor of their ratio.

python benchmarks/sharpness.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.measures.sharpness import RADII, m_sharpness
from lookbehind.models import build

Batch = tuple[Tensor, Tensor]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def main() -> None:
    torch.manual_seed(0)
    model = build("resnet8-narrow", classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = torch.randn(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    batches = [(inputs, torch.randint(10, (128,)))] * 2

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                loss(model.eval(), batch)

    def forward_backward() -> None:
        for batch in batches:
            torch.autograd.grad(loss(model.eval(), batch), list(model.parameters()))

    works: dict[str, Callable[[], object]] = {
        "all radii in one pass": lambda: m_sharpness(model, loss, batches, RADII),
        "one radius at a time": lambda: [m_sharpness(model, loss, batches, (radius,)) for radius in RADII],
        "forward": forward,
        "forward and backward": forward_backward,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(7):  # interleaved, so that a busy machine hits all alike
        for name, work in works.items():
            times[name].append(seconds(work))
    found = {name: median(values) for name, values in times.items()}
    b, radii = found["forward and backward"] / found["forward"], len(RADII)
    ratio, floor = found["all radii in one pass"] / found["one radius at a time"], (radii + b) / (radii * (1 + b))
    print(json.dumps({"ratio": ratio, "floor": floor, "ratio / floor": ratio / floor, "b": b, "median of": 7}))


if __name__ == "__main__":
    main()
