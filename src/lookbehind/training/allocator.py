"""The C library's allocator, for processes that only train."""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's numbers for mallopt, and what they are set to: a block below 32 MB comes from memory that the process has
# (not every glibc takes a larger limit), and 2 GB of what is free stay with it
_OPTIONS = {"mmap_threshold": (-3, 1 << 25), "trim_threshold": (-1, 2_000_000_000)}


def keep_memory() -> bool:
    """Let this process keep the memory that tensors gave back; False where that is not ours to say, or not possible.

    A network's activations are freed and wanted again in every pass. glibc returns large blocks to the system each
    time, and the system fills new ones with zeros, page by page: some thousand page faults per pass of a small
    network, a tenth of its time or more. What the environment sets (``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``)
    is left as it is, and another C library than glibc too.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    asked = os.environ.get("GLIBC_TUNABLES", "") + " ".join(name.lower() for name in os.environ)
    ours = [pair for name, pair in _OPTIONS.items() if f"malloc.{name}" not in asked and f"malloc_{name}_" not in asked]
    return all([library.mallopt(*pair) for pair in ours]) and len(ours) == len(_OPTIONS)  # noqa: C419
