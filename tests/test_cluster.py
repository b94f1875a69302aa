"""A sweep on a real Ray cluster of two nodes, one of which is killed on the way."""

from __future__ import annotations

import json
import logging
import threading
import time

import pytest

from lookbehind.experiments.paper.plan import Reproduction, unfinished
from lookbehind.experiments.paper.reproduce import reproduce
from lookbehind.experiments.pool import Ended
from lookbehind.training.measuring import Measures
from lookbehind.training.run import Run
from lookbehind.training.train import Storage, train

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster():
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install 'lookbehind[cluster]'")
    import ray

    with pytest.MonkeyPatch.context() as environment:
        # Ray's workers let other processes go first: beside other tests they would get a thirtieth of a core
        environment.setenv("RAY_worker_niceness", "0")
        made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        lost = made.add_node(num_cpus=1)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
    yield made, lost
    ray.shutdown()
    made.shutdown()


def records_of(storage, run):
    lines = (storage.directory(run) / "records.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def test_a_lost_machine_a_failing_run_and_a_whole_sweep(cluster, tmp_path):
    """All in one, for starting Ray takes long."""
    from lookbehind.experiments.cluster import run_all_on_ray

    made, lost = cluster
    storage = Storage(out=tmp_path / "cluster")
    runs = [Run(method="lookbehind-sam", epochs=12, batch_size=100, seed=seed) for seed in range(2)]
    broken = Run(method="sgd", train_images=100_000, epochs=1)  # there are only 300
    told = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("cluster/runs/lookbehind*/checkpoint-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        made.remove_node(lost, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    nothing = Measures()
    run_all_on_ray([(run, nothing) for run in [broken, *runs]], storage, told.append, made.address)
    killer.join()
    ended = {one.run.id: one for one in told if isinstance(one, Ended)}
    assert "there are only 300 training images" in ended[broken.id].error
    for run in runs:
        assert ended[run.id].error is None
        assert ended[run.id].finished
    expected = Storage(out=tmp_path / "here")
    for run in runs:
        train(run, expected)
        assert records_of(storage, run) == records_of(expected, run)
    # and the same for an experiment, on the node that is left
    wanted = Reproduction(experiments=("table5",), scale="smoke", ray="auto", storage=Storage(out=tmp_path / "paper"))
    pages = reproduce(wanted)
    assert (pages["table5"] / "report.html").exists()
    assert unfinished(wanted) == []
