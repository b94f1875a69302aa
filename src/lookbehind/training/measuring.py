"""Measure finished runs: sharpness, robustness to noise, curvature; kept beside the run, measured once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.data.batches import Batch, Batches
from lookbehind.data.files import written_whole
from lookbehind.measures.curvature import curvature
from lookbehind.measures.landscape import filter_normalised, line, plane
from lookbehind.measures.noise import SIGMAS, robustness
from lookbehind.measures.sharpness import RADII, m_sharpness
from lookbehind.optim.checks import count, non_negative, one_of
from lookbehind.training.evaluate import trained
from lookbehind.training.loop import Training
from lookbehind.training.train import Storage, as_the_run_says

Measured = dict[str, Any]
Name = Literal["sharpness", "noise", "curvature", "landscape"]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What is measured of a trained network, and how finely."""

    measures: tuple[Name, ...] = ()
    """sharpness, noise, curvature, landscape."""
    radii: tuple[float, ...] = RADII
    """Of SAM's neighbourhood."""
    asam_radii: tuple[float, ...] = RADII[1:]
    """Of ASAM's neighbourhood."""
    minibatch: int = 128
    """The m of m-sharpness, and the images per minibatch of curvature and landscape."""
    images: int | None = None
    """Measure sharpness, curvature and landscape on so many training images; all if not given."""
    sigmas: tuple[float, ...] = SIGMAS
    """Levels of multiplicative noise in the weights."""
    draws: int = 10
    """Draws of the noise."""
    eigenvalues: int = 1
    """Of the Hessian."""
    places: int = 11
    """Points of the landscape in each direction."""

    def __post_init__(self) -> None:
        for measure in self.measures:
            one_of("measures", measure, tuple(MEASURES))
        for name in ("minibatch", "draws", "eigenvalues", "places"):
            count(name, getattr(self, name))
        if self.images is not None:
            count("images", self.images)
        for sigma in self.sigmas:
            non_negative("sigma", sigma)

    def settings(self, name: str) -> dict[str, Any]:
        """What the result of a measure depends on."""
        return {key: getattr(self, key) for key in MEASURES[name][1]}


def _loss(training: Training) -> Callable[[nn.Module, Batch], Tensor]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with training.autocast():
            return F.cross_entropy(model(batch[0]), batch[1])

    return loss


def _minibatches(training: Training, measures: Measures) -> Callable[[], Iterable[Batch]]:
    """Training images without augmentation, in a fixed random order."""
    train = training.parts.train
    whole = Batches(train.images, train.mean, train.std, measures.minibatch, device=train.device)
    images = len(train.images) if measures.images is None else min(measures.images, len(train.images))
    return lambda: islice(whole.epoch(0), -(-images // measures.minibatch))


def _sharpness(training: Training, measures: Measures) -> Measured:
    result: Measured = {}
    for name, radii in (("sam", measures.radii), ("asam", measures.asam_radii)):
        batches = _minibatches(training, measures)()
        found = m_sharpness(training.model, _loss(training), batches, radii, neighbourhood=name)
        result[name] = {"radii": list(found.radii), "values": list(found.values)}
        result |= {"loss": found.loss, "weight_norm": found.weight_norm}
    return result


def _noise(training: Training, measures: Measures) -> Measured:
    parts = training.parts
    found = robustness(
        training.model,
        parts.test.plain,
        measures.sigmas,
        draws=measures.draws,
        statistics=lambda: parts.train.plain(shuffled=True),
    )
    return {"sigmas": list(found.levels), "values": [list(values) for values in found.values]}


def _curvature(training: Training, measures: Measures) -> Measured:
    batches = _minibatches(training, measures)
    found = curvature(training.model, _loss(training), batches, eigenvalues=measures.eigenvalues)
    return {"eigenvalues": list(found.eigenvalues), "trace": found.trace, "trace_error": found.trace_error}


def _landscape(training: Training, measures: Measures) -> Measured:
    generator = torch.Generator().manual_seed(0)  # the same directions for every run, up to the size of its filters
    one, two = (filter_normalised(training.model, generator) for _ in range(2))
    places = torch.linspace(-1, 1, measures.places).tolist()
    batches, loss = _minibatches(training, measures), _loss(training)
    return {
        "places": places,
        "line": line(training.model, loss, batches, one, places),
        "plane": plane(training.model, loss, batches, (one, two), places, places),
    }


MEASURES: dict[str, tuple[Callable[[Training, Measures], Measured], tuple[str, ...]]] = {
    "sharpness": (_sharpness, ("radii", "asam_radii", "minibatch", "images")),
    "noise": (_noise, ("sigmas", "draws")),
    "curvature": (_curvature, ("eigenvalues", "minibatch", "images")),
    "landscape": (_landscape, ("places", "minibatch", "images")),
}


def measured(directory: Path, measures: Measures, storage: Storage | None = None) -> dict[str, Measured]:
    """The measures of the finished run in a directory; what was measured before in the same way is read, not repeated.

    Example:
        >>> measured(Path("out/compare/runs/sam-seed0-0123456789"), Measures(measures=("sharpness",)))
    """
    path = directory / "measures.json"
    known: dict[str, Measured] = _read(path)
    todo = missing(directory, measures)
    if todo:
        training = trained(directory, storage or Storage())
        with as_the_run_says(training.run):
            for name in todo:
                known[name] = {"settings": _plain(measures.settings(name)), **MEASURES[name][0](training, measures)}
                with written_whole(path) as file:
                    file.write(json.dumps(known).encode())
    return {name: known[name] for name in measures.measures}


def missing(directory: Path, measures: Measures) -> list[str]:
    """The measures that a run still lacks, or has with other settings."""
    known = _read(directory / "measures.json")
    wanted = {name: _plain(measures.settings(name)) for name in measures.measures}
    return [name for name, settings in wanted.items() if known.get(name, {}).get("settings") != settings]


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _read(path: Path) -> dict[str, Measured]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
