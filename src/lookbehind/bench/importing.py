"""The time to import this package beyond that of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

from lookbehind.bench.timing import Measured

CODE = "import torch, time; began = time.perf_counter(); import lookbehind; print(time.perf_counter() - began)"


def importing(repetitions: int) -> Measured:
    """In fresh processes, after torch was imported; milliseconds.

    With compiled bytecode, as pip leaves a package that it installs: a first import, which is not counted, writes it,
    also where PYTHONDONTWRITEBYTECODE forbids that to every other process.
    """
    command = [sys.executable, "-c", CODE]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = [
        float(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout)
        for _ in range(1 + repetitions)
    ]
    return Measured("import lookbehind, after torch", "", 1e3 * median(times[1:]), at_most=50, unit="ms")
