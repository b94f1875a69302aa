"""How much of a lifelong training's time is spent in forward and backward passes: the rest is ours.

    python benchmarks/lifelong.py

On images of CIFAR's shape with the paper's network and batch size 10; images are random, which changes no time. The
share is of the whole loop: minibatches, augmentation, memory, heads, optimizer; the evaluation after a task is not
part of it. Wanted: 85 % or more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from lookbehind.data.vision import Images, VisionData
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.models.convnet import StridedConvNet
from lookbehind.training.allocator import keep_memory

METHODS = (
    "sgd",
    "er+sgd",
    "er+sam",
    "er+asam",
    "er+multistep-sam:k=2",
    "er+lookbehind-sam:k=2",
    "er+lookbehind-sam:k=5",
    "lookahead-c-maml:k=2",
    "lookbehind-c-maml:k=2,alpha=1",
    "lookbehind-c-maml:k=2,alpha=1,outer=meta",
)
STEPS, REPETITIONS = 30, 5
PER_CLASS = 500


class Inside:
    """Adds up the time within some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - began

        return timed


def made_up() -> VisionData:
    """Images of CIFAR's shape."""
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> Images:
        labels = torch.arange(100).repeat(count)
        return Images(torch.randint(256, (len(labels), 3, 32, 32), generator=generator).to(torch.uint8), labels)

    return VisionData(part(PER_CLASS), part(2), 100, (0.5,) * 3, (0.25,) * 3)


def share(method: str, data: VisionData, inside: Inside) -> tuple[float, float]:
    """Of the time of some steps the part within forward and backward, and the milliseconds of a step."""
    run = LifelongSettings(data="split-cifar100", tasks=1, epochs=1).run(method, 0)
    training, taken = run.begin(data), 0

    def more() -> bool:
        nonlocal taken
        taken += 1
        return taken % STEPS != 0

    training.train_epoch(more)  # a memory that is not empty, buffers that are there
    inside.seconds, began = 0.0, perf_counter()
    training.train_epoch(more)
    assert taken == 2 * STEPS
    whole = perf_counter() - began
    return inside.seconds / whole, 1e3 * whole / STEPS


def main() -> None:
    """Measure all methods in turn, several times, and print the medians."""
    torch.set_num_threads(1)
    keep_memory()  # as processes that train do
    inside = Inside()
    StridedConvNet.forward = inside(StridedConvNet.forward)  # type: ignore[method-assign]
    torch.Tensor.backward = inside(torch.Tensor.backward)  # type: ignore[method-assign]
    torch.autograd.grad = inside(torch.autograd.grad)  # of C-MAML, products with the Hessian among them
    data = made_up()
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for _ in range(REPETITIONS):
        for method in METHODS:
            found[method].append(share(method, data, inside))
    medians = {m: {"inside": median([s for s, _ in v]), "ms": median([t for _, t in v])} for m, v in found.items()}
    print(f"median of {REPETITIONS} interleaved repetitions of {STEPS} steps, one thread")
    for method, one in medians.items():
        print(f"{method:40} {100 * one['inside']:5.1f} % inside forward and backward, {one['ms']:7.1f} ms per step")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
