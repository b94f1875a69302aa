"""One output layer for all tasks, of which every example uses its own task's part: the task is known (multi-head)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def own_head(logits: Tensor, labels: Tensor, classes_per_task: int) -> tuple[Tensor, Tensor]:
    """Of every example the logits of its own task, and its label among them.

    An example of class ``c`` is of task ``c // n`` with ``n`` classes per task, so its logits are those from
    ``n (c // n)`` on. Leaving the others out is the same as setting them to minus infinity.
    """
    first = labels - labels % classes_per_task
    index = first[:, None] + torch.arange(classes_per_task, device=labels.device)
    return logits.gather(1, index), labels - first


class OneHead(nn.Module):
    """The network as a classifier for one task.

    Args:
        network: with an output for every class of every task.
        first: the task's first class.
        classes: of the task.
    """

    def __init__(self, network: nn.Module, first: int, classes: int) -> None:
        super().__init__()
        self.network, self.first, self.classes = network, first, classes

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the task's classes."""
        logits: Tensor = self.network(inputs)
        return logits[:, self.first : self.first + self.classes]
