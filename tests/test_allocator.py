"""A process that trains keeps its memory: no page faults for tensors of the same size again and again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")

# pages of the usual size, whatever the machine prefers: 41 is PR_SET_THP_DISABLE
LOOP = """
import ctypes, resource, torch
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
{begin}
from lookbehind.models.convnet import StridedConvNet
torch.set_num_threads(1)
network, images = StridedConvNet(100), torch.randn(20, 3, 32, 32)
def passes(count):
    for _ in range(count):
        network.zero_grad()
        network(images).square().sum().backward()
passes(4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
passes(10)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""
KEEP = "from lookbehind.training.allocator import keep_memory; kept = keep_memory()"


def faults(begin: str, **environment: str) -> int:
    found = subprocess.run(
        [sys.executable, "-c", LOOP.format(begin=begin)],
        env={**{k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)


@pytest.mark.parametrize(
    "begin",
    [
        "import os; from lookbehind.experiments.pool import _begin; _begin(None, None, dict(os.environ))",
        "from lookbehind import cli; cli.parsed = lambda words: lambda *_: 0; cli.main()",
    ],
    ids=["worker process", "command line"],
)
def test_memory_that_was_given_back_is_used_again(begin):
    assert faults(begin) < 100


@pytest.mark.parametrize(
    "own",
    [{"MALLOC_MMAP_THRESHOLD_": "65536"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}],
    ids=["variables", "tunables"],
)
def test_what_the_environment_sets_stays(own):
    """Every tensor above 64 KB has fresh pages then, as without any setting at all."""
    assert faults(f"{KEEP}; assert not kept", **own) > 1000
