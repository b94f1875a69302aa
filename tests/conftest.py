import os

import torch

torch.set_num_threads(1)  # tests run in parallel processes

# A file is run by one process, since some have fixtures that take long; so the longest come first.
LONGEST = ("paper", "torchrun", "pool", "cluster", "lightning", "failures", "resume", "exact", "huggingface", "fsdp")


def pytest_xdist_auto_num_workers(config):
    return (os.cpu_count() or 1) + 1  # many tests wait for processes that they have started


def pytest_collection_modifyitems(items):
    def rank(item):
        name = item.path.stem.removeprefix("test_")
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=rank)
