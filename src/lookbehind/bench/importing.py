"""The time to import this package beyond that of torch."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from lookbehind.bench.timing import Measured

CODE = "import torch, time; began = time.perf_counter(); import lookbehind; print(time.perf_counter() - began)"


def importing(repetitions: int) -> Measured:
    """In fresh processes, after torch was imported; milliseconds."""
    command = [sys.executable, "-c", CODE]
    times = [
        float(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for _ in range(repetitions)
    ]
    return Measured("import lookbehind, after torch", "", 1e3 * median(times), at_most=50, unit="ms")
