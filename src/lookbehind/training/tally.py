"""Sums over an epoch, kept on the device until they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lookbehind.training.parallel import Team
from lookbehind.training.records import Record


class Tally:
    """Loss and accuracy of the training images as they come by, at the unperturbed weights; and the mean alpha."""

    def __init__(self, device: str) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, right answers
        self._images = 0
        self._alpha_sum, self._alpha_count = 0.0, 0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Note a minibatch."""
        right = (logits.detach().argmax(1) == labels).sum()
        self._sums += torch.stack([loss.detach().double() * len(labels), right.double()])
        self._images += len(labels)

    def add_loss(self, loss: Tensor, count: int) -> None:
        """Note a mean loss over so many answers (tokens), right or not."""
        self._sums[0] += loss.detach().double() * count
        self._images += count

    def add_alpha(self, alpha: float | tuple[float, ...]) -> None:
        """Note how far the slow weights went; of one alpha per tensor, the mean."""
        values = alpha if isinstance(alpha, tuple) else (alpha,)
        self._alpha_sum += sum(values) / len(values)
        self._alpha_count += 1

    def of_all(self, team: Team) -> Tally:
        """The sums over all processes; every one of them takes part."""
        if team.world == 1:
            return self
        whole = Tally(str(self._sums.device))
        counted = torch.tensor([float(self._images)], dtype=torch.float64, device=self._sums.device)
        numbers = team.summed(torch.cat([self._sums, counted]))
        whole._sums, whole._images = numbers[:2], round(float(numbers[2]))
        whole._alpha_sum, whole._alpha_count = self._alpha_sum, self._alpha_count  # the same for all
        return whole

    @property
    def loss(self) -> float:
        """Mean loss."""
        return float(self._sums[0]) / max(self._images, 1)

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * float(self._sums[1]) / max(self._images, 1)

    @property
    def alpha(self) -> float | None:
        """Mean alpha, where the method has one."""
        return self._alpha_sum / self._alpha_count if self._alpha_count else None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"sums": self._sums.clone(), "images": self._images, "alpha": (self._alpha_sum, self._alpha_count)}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._sums.copy_(state["sums"])
        self._images = state["images"]
        self._alpha_sum, self._alpha_count = state["alpha"]


def mean_alpha(epochs: list[Record]) -> float | None:
    """Over the steps of all epochs; the last may be a part of one."""
    starts = [0, *(record["step"] for record in epochs)]
    weighted = [
        (r["alpha"], r["step"] - start) for r, start in zip(epochs, starts, strict=False) if r["alpha"] is not None
    ]
    steps = sum(count for _, count in weighted)
    return sum(alpha * count for alpha, count in weighted) / steps if steps else None
