"""What training loops share: the steps of an epoch, the precision of a pass, the random numbers of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import perf_counter
from typing import Any, Protocol, TypeVar

import torch

from lookbehind.optim.precision import NonFiniteError

Batch = TypeVar("Batch")
Some = TypeVar("Some", contravariant=True)


class Stepping(Protocol[Some]):
    """A training that takes steps of one or several minibatches."""

    seconds: float
    """Spent in steps."""

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to."""

    @property
    def finished(self) -> bool:
        """Is there no further step?"""

    @property
    def minibatches(self) -> int:
        """That the next step takes."""

    def take_step(self, batches: Sequence[Some]) -> None:
        """One step."""

    def note_failed_step(self, batches: Sequence[Some]) -> None:
        """A step's loss or gradient was not finite."""


def through_the_epoch(training: Stepping[Batch], batches: Iterator[Batch], after_step: Callable[[], bool]) -> bool:
    """Take steps to the end of the epoch, or to one that fails; False if ``after_step`` asked to stop before.

    A step that takes several minibatches may end in the next epoch: what is left over at the end of an epoch carries
    on.
    """
    epoch = training.epoch
    while not training.finished:
        taken = list(islice(batches, training.minibatches))
        began = perf_counter()
        try:
            training.take_step(taken)
        except NonFiniteError:
            training.note_failed_step(taken)
            return True
        finally:
            training.seconds += perf_counter() - began
        if training.epoch > epoch or training.finished:
            return True
        if not after_step():
            return False
    return True


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """The precision of a forward pass: fp32, bf16 or fp16."""
    if precision == "fp32":
        return nullcontext()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(torch.device(device).type, dtype=dtype)


def random_state() -> dict[str, Any]:
    """Where the random numbers of torch are, for a checkpoint."""
    return {
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on from ``random_state``."""
    torch.set_rng_state(state["rng"].cpu())
    if state["cuda_rng"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda_rng"]])
