"""Many runs on the machines of a Ray cluster: same ids, same records, and a lost machine's runs begin where they were.

All machines must see the same ``out`` and ``data_dir``, on a shared file system: a run that is started again on another
machine goes on from its checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lookbehind.experiments.pool import INTERVAL, Ended, Notice, Tell, train_and_measure
from lookbehind.training.measuring import Measures
from lookbehind.training.run import Run
from lookbehind.training.train import Progress, Storage


def run_all_on_ray(
    runs: Sequence[tuple[Run, Measures]], storage: Storage, tell: Tell, address: str, patience: int = 10
) -> None:
    """Train and measure all runs, as many at a time as the cluster has cores for.

    Args:
        runs: each with what is to be measured of it.
        storage: on a file system that all machines share.
        tell: called in this process with what the runs report.
        address: of the cluster, ``auto`` for the one on this machine, or ``host:port``.
        patience: how often a run is started again when its machine is lost.

    A run that fails does not stop the others.
    """
    try:
        import ray
        from ray.util.queue import Empty, Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError:
        raise ImportError("--ray needs Ray: pip install 'lookbehind[cluster]'") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    storage = replace(storage, out=Path(storage.out).resolve(), data_dir=Path(storage.data_dir).resolve())
    # on this machine: it must not be lost with another
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
    try:
        begun = {
            ray.remote(_work)
            .options(num_cpus=run.threads, max_retries=patience)
            .remote(run, storage, measures, queue): run
            for run, measures in runs
        }
        waiting = list(begun)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=INTERVAL)
            while True:
                try:
                    tell(queue.get_nowait())
                except Empty:
                    break
            for one in done:
                try:
                    tell(ray.get(one))
                except ray.exceptions.RayError as error:
                    words = (
                        f"{type(error).__name__}: lost with its machine more than {patience} times, or could not start"
                    )
                    tell(Ended(begun[one], [], words))
    finally:
        queue.shutdown(force=True)
        if own:
            ray.shutdown()


def _work(run: Run, storage: Storage, measures: Measures, queue: Any) -> Ended:
    def tell(told: Any) -> None:
        # of the steps only the ends of epochs: they all pass through one process
        if isinstance(told, Notice) or not isinstance(told, Progress) or told.record is not None:
            queue.put(told)

    return train_and_measure(run, storage, measures, tell, lambda: False)
