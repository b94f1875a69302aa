"""The same random numbers again: dropout masks that are equal in all evaluations of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Replay:
    """Remembers where the random numbers of torch stood when a minibatch was first evaluated.

    Python's and NumPy's generators are left alone.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._devices = sorted({t.device for t in tensors if t.device.type not in ("cpu", "meta")}, key=str)
        self._starts: dict[tuple[int, int], list[Tensor]] = {}

    @contextmanager
    def __call__(self, minibatch: tuple[int, int]) -> Iterator[None]:
        """The first time: note the state. Again: go back to it, and afterwards on from where the first time ended."""
        now = self._states()
        if minibatch not in self._starts:
            self._starts[minibatch] = now
            yield
            return
        self._set(self._starts[minibatch])
        try:
            yield
        finally:
            self._set(now)  # never leave the generators rewound

    def _states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return states + [torch.get_device_module(d).get_rng_state(d) for d in self._devices]

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices, states[1:], strict=True):
            torch.get_device_module(device).set_rng_state(state, device)
