"""Several processes that train one network: started by torchrun, each with its part of every minibatch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

T = TypeVar("T")
State = dict[str, Any]


def started_by_torchrun() -> bool:
    """Did torchrun start this process?"""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def _check_torch(model: nn.Module) -> None:
    on_cpu = any(p.device.type == "cpu" for p in model.parameters())
    if on_cpu and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise ValueError(
            f"parallel='fsdp' on the CPU needs torch 2.7 or newer, and this is {torch.__version__}: give --parallel ddp"
        )


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """Join the other processes of torchrun; alone where there are none."""
    if not started_by_torchrun():
        yield Team()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield team()
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Team:
    """The processes of a training, and which of them this is."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """The one that writes files and talks to people."""
        return self.rank == 0

    def told(self, value: T) -> T:
        """What the first one has."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gathered(self, value: T) -> list[T]:
        """What each has, in the order of their ranks; known to all."""
        if self.world == 1:
            return [value]
        box: list[Any] = [None] * self.world
        dist.all_gather_object(box, value)
        return box

    def part(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, float]:
        """This rank's part of a minibatch, and what its mean loss is multiplied by.

        Gradients are averaged over the ranks, so that parts of unequal size ``n_r`` need a weight ``n_r R / n`` for the
        mean over the images.
        """
        inputs, labels = batch
        if self.world == 1:
            return inputs, labels, 1.0
        mine = inputs.tensor_split(self.world)[self.rank], labels.tensor_split(self.world)[self.rank]
        return *mine, len(mine[1]) * self.world / len(labels)

    def wrapped(self, model: nn.Module, parallel: str) -> nn.Module:
        """The model to run forward passes with; ``"fsdp"`` shards the model itself."""
        if self.world == 1:
            return model
        if parallel == "fsdp":
            _check_torch(model)
            from torch.distributed.fsdp import fully_shard  # takes a second to import

            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2 wants it so
            for part in model.children():
                if any(True for _ in part.parameters()):
                    fully_shard(part)
            fully_shard(model)
            return model
        return DistributedDataParallel(model)

    def agree_on_statistics(self, model: nn.Module) -> None:
        """Every rank has BatchNorm statistics of its own parts: those of the first are the run's."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def summed(self, numbers: Tensor) -> Tensor:
        """Over all ranks."""
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers


def team() -> Team:
    """The processes that this one has joined."""
    return Team(dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else Team()


def model_state(model: nn.Module, *, sharded: bool) -> State:
    """The whole state of a model; of shards, only the first rank gets it."""
    if not sharded:
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return get_model_state_dict(model, options=_whole())


def optimizer_state(model: nn.Module, optimizer: Optimizer, *, sharded: bool) -> State:
    """The whole state of an optimizer; of shards, only the first rank gets it."""
    if not sharded:
        return optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    return get_optimizer_state_dict(model, optimizer, options=_whole())


def load_model(model: nn.Module, state: State, *, sharded: bool) -> None:
    """Load a whole state; every rank takes its shard."""
    if not sharded:
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    set_model_state_dict(model, state, options=_whole())


def load_optimizer(model: nn.Module, optimizer: Optimizer, state: State, *, sharded: bool) -> None:
    """Load a whole state; every rank takes its shard."""
    if not sharded:
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    set_optimizer_state_dict(model, optimizer, state, options=_whole())


def _whole() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)
