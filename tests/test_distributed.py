"""Sharded parameters (DTensor, as FSDP2 makes them): two processes equal one."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from problems import METHODS, batch, closure_for, distance, net, sgd, values


def _compare(rank: int, file: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for method, make in METHODS.items():
        sharded, single = net(batchnorm=False), net(batchnorm=False)
        for part in (sharded[0], sharded[3], sharded):
            fully_shard(part, mesh=mesh)
        optimizer, reference = make(sgd(sharded)), make(sgd(single))
        for step in range(4):
            inputs, targets = batch(step)
            mine = slice(6 * rank, 6 * rank + 6)
            optimizer.step(closure_for(sharded, (inputs[mine], targets[mine])))
            reference.step(closure_for(single, (inputs, targets)))
            sharded.zero_grad()
            single.zero_grad()
        whole = [p.full_tensor().detach() for p in sharded.parameters()]
        assert distance(whole, values(single)) < 1e-14, method
        if optimizer.last is not None:
            assert abs(optimizer.last.cosine - reference.last.cosine) < 1e-12, method
    dist.destroy_process_group()


def test_two_processes_with_sharded_parameters_equal_one(tmp_path):
    mp.spawn(_compare, (str(tmp_path / "init"),), nprocs=2)
