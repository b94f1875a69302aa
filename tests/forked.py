"""Scripts in processes of their own, forked from a server that has imported torch, which takes seconds."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["lookbehind.experiments.pool", "lookbehind.training.run", "torch._dynamo"])


class Script:
    """Runs code with these words as ``sys.argv[1:]``; like a ``subprocess.Popen`` as far as the tests need it."""

    def __init__(self, code: str, *words: str) -> None:
        reader, writer = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_run, args=(code, words, writer))
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        reader.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def ended(self) -> str:
        """Wait for its end; what it has written that was not read before, errors too."""
        with self.stdout:
            text = self.stdout.read()
        self._process.join()
        return text


def _run(code: str, words: tuple[str, ...], writer: Connection) -> None:
    for stream in (1, 2):
        os.dup2(writer.fileno(), stream)
    sys.argv = ["-c", *words]
    exec(compile(code, "script", "exec"), {"__name__": "__main__"})
