"""Two processes that stay, so that tests of several ranks need not start new ones each time."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from forked import CONTEXT

SECONDS = 60  # a hang is a failure


def _serve(rank: int, world: int, file: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    while (work := pipe.recv()) is not None:
        function, arguments = work
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def leave() -> None:
    """End a process of a group that DDP has used, at its own end.

    Taking gloo's group apart can hang (torch 2.13): we hold the GIL and wait for its thread, which still has a tensor
    of the last reduction to free, for which it waits for the GIL.
    """
    dist.barrier()  # nobody waits for us any more
    os._exit(0)


class Ranks:
    """Runs a function ``f(rank, ...)`` of a test module on every rank and gives what they return."""

    def __init__(self, world: int, file: str) -> None:
        pipes = [CONTEXT.Pipe() for _ in range(world)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            CONTEXT.Process(target=_serve, args=(rank, world, file, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function, arguments))
        results = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(SECONDS):
                self.stop()
                raise TimeoutError(f"rank {rank} did not answer within {SECONDS} s: do the ranks wait for each other?")
            results.append(pipe.recv())
        for good, result in results:
            assert good, result
        return [result for _, result in results]

    def stop(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(5)
            process.kill()
