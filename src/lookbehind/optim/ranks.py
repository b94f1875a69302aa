"""Several processes, each with a part of the minibatch: decide alike, and climb together or each alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lookbehind.optim.weights import is_sharded


def several_ranks() -> bool:
    """Does this process train together with others?"""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def check_ranks(ranks: str, model: object, parameters: Sequence[Tensor]) -> None:
    """Ranks that climb apart need DistributedDataParallel, whose gradients can be kept apart."""
    if ranks == "together":
        return
    if any(is_sharded(parameter) for parameter in parameters):
        raise ValueError(
            "ranks='apart' with sharded parameters (FSDP2): no rank has all the weights, so none can climb alone; "
            "use ranks='together'"
        )
    if isinstance(model, DistributedDataParallel) and model.static_graph:
        raise ValueError(
            "ranks='apart' with DistributedDataParallel(static_graph=True): it cannot keep gradients apart; leave it "
            "out"
        )
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            "ranks='apart': give model=, the DistributedDataParallel model: its gradients are kept apart while a rank "
            "climbs, and averaged for the descent"
        )


def forget_gathered_weights(model: nn.Module | None) -> None:
    """Let FSDP2 gather the weights anew at the next forward pass.

    Modules that keep them after the backward pass (``set_reshard_after_backward(False)``) would go on with the weights
    of another point.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if model is None or fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


def evaluated_apart(model: nn.Module | None, *, apart: bool) -> AbstractContextManager[Any]:
    """Inside this ``with`` a backward pass leaves each rank its own gradient, where ranks climb apart."""
    return model.no_sync() if apart and isinstance(model, DistributedDataParallel) else nullcontext()


def average_over_ranks(parameters: Sequence[Tensor], model: nn.Module | None, told: Tensor) -> Tensor:
    """``p.grad <- mean over the ranks``: one all-reduce for each type of gradient.

    A rank without a gradient for some parameter counts as zero there; where no rank has one, it stays None. ``told`` is
    a number that travels with them; its mean is returned.
    """
    group = getattr(model, "process_group", None)
    world = torch.distributed.get_world_size(group)
    by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        like = parameter if parameter.grad is None else parameter.grad
        by_kind.setdefault((like.dtype, like.device), []).append(parameter)
    for (dtype, device), members in by_kind.items():
        having = torch.tensor([p.grad is not None for p in members], dtype=dtype, device=device)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in members]
        flat = torch.cat([*(part.reshape(-1) for part in parts), having, told.reshape(1).to(having)])
        flat.div_(world)  # before they are added up, which could overflow in half precision
        torch.distributed.all_reduce(flat, group=group)
        *means, anywhere, heard = flat.split([*(p.numel() for p in members), len(members), 1])
        for i, (parameter, mean) in enumerate(zip(members, means, strict=True)):
            if parameter.grad is not None:
                parameter.grad.copy_(mean.view_as(parameter))
            elif bool(anywhere[i]):
                parameter.grad = mean.view_as(parameter).clone()
    answer: Tensor = heard[0].real if heard.is_complex() else heard[0]
    return answer
