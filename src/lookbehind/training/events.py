"""Records as TensorBoard event files, for those who look at curves there."""

from __future__ import annotations

from pathlib import Path

from lookbehind.training.records import Record


class Events:
    """Writes every number of an epoch's record as a scalar, over the epochs.

    Args:
        directory: of the event files.
        after: epochs that are known already; what an earlier start wrote for later ones is hidden by TensorBoard.
    """

    def __init__(self, directory: Path, after: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("tensorboard=True: install it with pip install 'lookbehind[tensorboard]'") from error
        self._writer = SummaryWriter(str(directory), purge_step=after + 1)

    def append(self, record: Record) -> None:
        """Write a record."""
        step = record["epoch"]
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "epoch":
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        self._writer.close()
