"""Measure the network of a finished run again."""

from __future__ import annotations

import json
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from lookbehind.training.loop import Training
from lookbehind.training.run import run_from
from lookbehind.training.train import Storage, as_the_run_says, check_data, load


def evaluate(directory: Path, storage: Storage | None = None) -> dict[str, Any]:
    """Loss and accuracy on train, validation and test images at the final weights, and with BatchNorm re-estimated.

    Args:
        directory: of a finished run, ``OUT/runs/ID``.
        storage: where the data set is.

    Examples:
        >>> evaluate(Path("out/compare/runs/sam-seed0-0123456789"))["test_accuracy"]
    """
    training = trained(directory, storage or Storage())
    with as_the_run_says(training.run):
        return {"run": directory.name, "method": training.run.method, "seed": training.run.seed, **training.scores()}


def trained(directory: Path, storage: Storage) -> Training:
    """A finished run, with its network as it was in the end."""
    finished_files(directory)
    try:
        run = run_from(json.loads((directory / "run.json").read_text()))
        weights = torch.load(directory / "weights.pt", map_location=run.filled.device, weights_only=True)
    except (ValueError, TypeError, AttributeError, RuntimeError, UnpicklingError, EOFError) as error:
        raise ValueError(f"{directory}: run.json or weights.pt is damaged, or not of a training of images") from error
    with as_the_run_says(run):
        check_data(run, storage, directory)
        training = Training(run, load(run, storage))
    training.model.load_state_dict(weights)
    training.average = None  # what was kept is the average, and there is nothing to put in its place
    return training


def finished_files(directory: Path) -> None:
    """An error if a directory has not the files of a finished run."""
    for name in ("run.json", "weights.pt"):
        if not (directory / name).exists():
            raise FileNotFoundError(
                f"{directory} has no {name}: give the directory of a finished run, OUT/runs/ID; if only its records "
                "were kept, remove the directory and train it again"
            )
