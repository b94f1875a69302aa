"""A memory of fixed size for examples of all tasks so far."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lookbehind.data.augment import picked
from lookbehind.optim.checks import count, one_of

LAWS = ("uniform", "la-maml")
Examples = tuple[Tensor, Tensor]


class Reservoir:
    """Keeps ``capacity`` of the examples that came by, each with the same probability (Vitter's algorithm R).

    The n-th example draws a number ``p``; where ``p < capacity`` it takes the place of the example there. ``uniform``
    draws from ``0 ... n - 1``, which gives each of ``n`` examples the probability ``capacity / n``. La-MAML's code
    draws from ``0 ... n``, so that an example comes in a little less often and the first ones are favoured.

    Args:
        capacity: how many examples; 0 keeps none.
        law: "uniform" or "la-maml".
    """

    def __init__(self, capacity: int, law: str = "uniform") -> None:
        self.capacity = count("capacity", capacity, at_least=0)
        one_of("law", law, LAWS)
        self.law = law
        self.seen = 0
        self._inputs: Tensor | None = None
        self._labels: Tensor | None = None

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def add(self, inputs: Tensor, labels: Tensor, generator: random.Random) -> None:
        """Offer a batch of examples, in its order."""
        if not self.capacity:
            return
        if self._inputs is None or self._labels is None:
            room = inputs.new_zeros((self.capacity, *inputs.shape[1:]))
            # in the layout of the batches, so that a draw from it is a batch as the others are
            self._inputs = room.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else room
            self._labels = labels.new_zeros(self.capacity)
        places: dict[int, int] = {}  # a later example of the batch wins
        for i in range(len(labels)):
            place = self._place(generator)
            if place is not None:
                places[place] = i
        if places:
            to = torch.tensor(list(places), device=inputs.device)
            taken = torch.tensor(list(places.values()), device=inputs.device)
            self._inputs[to] = inputs[taken]
            self._labels[to] = labels[taken]

    def _place(self, generator: random.Random) -> int | None:
        """Where the next example goes."""
        self.seen += 1
        if self.seen <= self.capacity:
            return self.seen - 1
        place = generator.randrange(self.seen if self.law == "uniform" else self.seen + 1)
        return place if place < self.capacity else None

    def sample(self, size: int, generator: random.Random) -> Examples | None:
        """Up to ``size`` examples, drawn one by one and put back; None if there are none."""
        size = min(size, len(self))
        if not size or self._inputs is None or self._labels is None:
            return None
        index = torch.tensor([generator.randrange(len(self)) for _ in range(size)], device=self._labels.device)
        return picked(self._inputs, index), self._labels.index_select(0, index)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; the draws are the caller's."""
        return {"seen": self.seen, "inputs": self._inputs, "labels": self._labels}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.seen, self._inputs, self._labels = state["seen"], state["inputs"], state["labels"]


def joined(parts: Iterable[Examples | None]) -> Examples:
    """Several batches as one, in the layout of the first."""
    inputs, labels = zip(*(part for part in parts if part is not None), strict=True)
    return torch.cat(inputs), torch.cat(labels)
