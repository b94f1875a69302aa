"""Checkpoints that are whole or not there, and are known to be what was saved.

The name of a checkpoint ends in the first digits of its SHA-256, as torch's hub names its files: a damaged one is
recognised before it is read. Nothing in it is executed: it is loaded with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from lookbehind.data.files import written_whole

KEPT = 2  # the last one, and the one before it should the last be damaged
DIGITS = 16


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def _pack(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def existing(directory: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted(filter(Path.is_file, directory.glob("checkpoint-*-*.pt")), key=_step, reverse=True)


def _step(path: Path) -> int:
    step = path.stem.split("-")[1]
    return int(step) if step.isdigit() else -1


def save(directory: Path, step: int, content: dict[str, Any]) -> Path:
    """Write a checkpoint, and remove those that are no longer needed."""
    packed = _pack(content)
    path = directory / f"checkpoint-{step}-{_digest(packed)}.pt"
    try:
        with written_whole(path) as file:
            file.write(packed)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the checkpoint of step {step} could not be written ({error.strerror}); make room there and start again "
            "with the same command: the run goes on from its last checkpoint",
            str(path),
        ) from error
    for old in [other for other in existing(directory) if other != path][KEPT - 1 :]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; ValueError if it is not what was saved. Nothing in it is executed."""
    packed = path.read_bytes()
    if _digest(packed) != path.stem.rsplit("-", 1)[-1]:
        raise ValueError(f"{path.name} is damaged: its content is not what its name says")
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(packed), map_location=device, weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError, ValueError) as error:
        raise ValueError(f"{path.name} is not a checkpoint of a run") from error
    if not isinstance(content, dict) or set(content) != {"training", "records"}:
        raise ValueError(f"{path.name} is not a checkpoint of a run")
    return content


def load_latest(directory: Path, device: str = "cpu") -> dict[str, Any] | None:
    """The newest whole checkpoint, if there is one; a warning tells of those that were passed over."""
    for path in existing(directory):
        try:
            return load(path, device)
        except ValueError as error:  # an OSError, too many open files for example, says nothing about the checkpoint
            path.unlink(missing_ok=True)  # else it would count as one of the two to keep
            older = "going on from the one before it" if existing(directory) else "starting from the beginning"
            warnings.warn(f"{directory.name}: {error}; {older}", stacklevel=2)
    return None
