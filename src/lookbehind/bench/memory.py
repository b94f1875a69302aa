"""Parameter-sized buffers at the peak of a step, counted as storages that are alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lookbehind.bench.timing import Measured
from lookbehind.optim.methods import ASAM, SAM, LookbehindASAM, LookbehindSAM


class LiveBytes(TorchDispatchMode):
    """The largest number of bytes that were alive at once in storages that were not known before."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {StorageWeakRef(t.untyped_storage()).cdata for t in known}
        self._storages: dict[Any, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                weak = StorageWeakRef(storage)
                if weak.cdata not in self._known:
                    self._storages.setdefault(weak.cdata, (weak, storage.nbytes()))
        self._storages = {key: held for key, held in self._storages.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._storages.values()))
        return result


def buffers_used(
    make: Callable[[Optimizer], Optimizer],
    *,
    alias: bool = False,
    evaluate: Callable[[Any], Any] = lambda closure: closure,
    steps: int = 1,
) -> float:
    """Parameter-sized buffers at the peak of a step, beside parameters and gradients (plain SGD has no state).

    Args:
        make: the optimizer around a base.
        alias: hold a view of every weight, so that their storages cannot be exchanged.
        evaluate: what a step is given in place of the closure.
        steps: how many; the last ones have buffers of the first.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(48, 48, bias=False) for _ in range(24)])
    inputs = torch.randn(1, 48)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    optimizer = make(torch.optim.SGD(model.named_parameters(), lr=0.01, foreach=False))
    views = [p.detach() for p in model.parameters()] if alias else []

    def closure() -> Tensor:
        model.zero_grad()
        loss: Tensor = model(inputs).square().sum()
        loss.backward()
        return loss

    with LiveBytes([inputs, *model.parameters()]) as live:
        for _ in range(steps):
            optimizer.step(evaluate(closure))
    del views  # they had to live until here
    return float(live.peak / size - 1)


def buffers() -> list[Measured]:
    """Of the methods; above the whole number is a tensor (1/24) or two as temporaries, and activations."""
    made: dict[str, tuple[Callable[[Optimizer], Optimizer], int]] = {
        "SAM": (lambda base: SAM(base), 1),
        "ASAM": (lambda base: ASAM(base), 1),
        "Lookbehind-SAM": (lambda base: LookbehindSAM(base, k=4), 2),
        "Lookbehind-ASAM": (lambda base: LookbehindASAM(base, k=4), 2),
        "Lookbehind-SAM, adaptive alpha": (lambda base: LookbehindSAM(base, k=4, alpha="adaptive"), 3),
    }
    return [
        Measured("parameter-sized buffers at the peak", name, buffers_used(make, steps=2), at_most=count + 0.2)
        for name, (make, count) in made.items()
    ]
