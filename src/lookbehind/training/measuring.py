"""Measure finished runs: sharpness, robustness, curvature, landscape; kept beside the run, measured once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.data.batches import EVALUATION_BATCH, Batch, Batches
from lookbehind.data.files import written_whole
from lookbehind.measures.curvature import curvature
from lookbehind.measures.landscape import filter_normalised, line, plane, towards
from lookbehind.measures.noise import SIGMAS, robustness
from lookbehind.measures.sharpness import RADII, m_sharpness
from lookbehind.optim.checks import count, non_negative, one_of, positive
from lookbehind.training.evaluate import trained
from lookbehind.training.loop import Training
from lookbehind.training.train import Storage, as_the_run_says

ANALOG_SIGMAS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1)
BITS = (8, 6, 5, 4, 3, 2)
LEVELS = ("radii", "asam_radii", "sigmas", "analog_sigmas", "bits")
Measured = dict[str, Any]
Measure = Callable[[Training, "Measures", Storage], Measured]
Weights = Literal["all", "matrices"]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What is measured of a trained network, and how finely."""

    measures: tuple[str, ...] = ()
    """sharpness, noise, analog, quantisation, curvature, landscape, towards; with spaces or commas between."""
    radii: tuple[float, ...] = RADII
    """Of SAM's neighbourhood."""
    asam_radii: tuple[float, ...] = RADII[1:]
    """Of ASAM's neighbourhood."""
    minibatch: int = 128
    """The m of m-sharpness, and the images per minibatch of curvature and landscape."""
    images: int | None = None
    """Measure sharpness, curvature and landscape on so many training images; all if not given."""
    sigmas: tuple[float, ...] = SIGMAS
    """noise: every weight is multiplied by N(1, sigma^2)."""
    analog_sigmas: tuple[float, ...] = ANALOG_SIGMAS
    """analog: to every weight N(0, sigma^2) times the largest weight of its tensor is added."""
    bits: tuple[int, ...] = BITS
    """quantisation: every tensor of weights has so many bits per weight."""
    draws: int = 10
    """Draws of the noise."""
    noisy: Weights = "all"
    """all parameters are noisy or coarse, or matrices: the weights of convolutions and linear layers."""
    eigenvalues: int = 1
    """curvature: so many of the largest of the Hessian."""
    places: int = 11
    """landscape, towards: points in each direction."""
    reach: float = 1.0
    """landscape: how far it goes to each side, in lengths of the filters."""
    towards: Path | None = None
    """towards: the loss on the straight line to the network of this other run, OUT/runs/ID."""

    def __post_init__(self) -> None:
        measures = tuple(dict.fromkeys(name for some in self.measures for name in some.split(",") if name))
        for name in measures:
            one_of("measures", name, tuple(MEASURES))
        if (self.towards is not None) != ("towards" in measures):
            raise ValueError("the measure 'towards' and --towards RUN, where it goes to, need each other")
        object.__setattr__(self, "measures", measures)
        for name in ("minibatch", "draws", "eigenvalues"):
            count(name, getattr(self, name))
        if count("places", self.places, at_least=3) % 2 == 0:
            raise ValueError(f"places={self.places}: give an odd number, so that the weights themselves are among them")
        one_of("noisy", self.noisy, get_args(Weights))
        if self.images is not None:
            count("images", self.images)
        for name in LEVELS:
            if not getattr(self, name):
                raise ValueError(f"{name}=(): give at least one")
        for sigma in (*self.sigmas, *self.analog_sigmas):
            non_negative("sigma", sigma)
        for bits in self.bits:
            count("bits", bits, at_least=2)
        for radius in (*self.radii, *self.asam_radii):
            positive("radius", radius)
        positive("reach", self.reach)

    def settings(self, name: str) -> dict[str, Any]:
        """What the result of a measure depends on."""
        found = {key: getattr(self, key) for key in MEASURES[name][1]}
        return {key: value.resolve().name if isinstance(value, Path) else value for key, value in found.items()}


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


def _sharpness(training: Training, measures: Measures, storage: Storage) -> Measured:
    result: Measured = {}
    for name, radii in (("sam", measures.radii), ("asam", measures.asam_radii)):
        batches = _minibatches(training, measures)()
        found = m_sharpness(training.model, _loss(training), batches, radii, neighbourhood=name)
        result[name] = {"radii": list(found.radii), "values": list(found.values)}
        result |= {"loss": found.loss, "weight_norm": found.weight_norm}
    return result


def _accuracy_under(kind: str, levels: str) -> Measure:
    """Accuracy with noisy or coarse weights, for each of the levels in this field."""

    def measure(training: Training, measures: Measures, storage: Storage) -> Measured:
        parts = training.parts
        found = robustness(
            training.model,
            parts.test.plain,
            getattr(measures, levels),
            kind=kind,
            draws=measures.draws,
            weights=measures.noisy,
            statistics=lambda: parts.train.plain(shuffled=True),
        )
        return {
            levels.removeprefix("analog_"): list(getattr(measures, levels)),
            "values": [list(values) for values in found.values],
            "statistics_minibatch": EVALUATION_BATCH,
        }

    return measure


def _curvature(training: Training, measures: Measures, storage: Storage) -> Measured:
    batches = _minibatches(training, measures)
    found = curvature(training.model, _loss(training), batches, eigenvalues=measures.eigenvalues)
    return {"eigenvalues": list(found.eigenvalues), "trace": found.trace, "trace_error": found.trace_error}


def _landscape(training: Training, measures: Measures, storage: Storage) -> Measured:
    generator = torch.Generator().manual_seed(0)  # the same directions for every run, up to the size of its filters
    one, two = (filter_normalised(training.model, generator) for _ in range(2))
    middle = measures.places // 2
    places = [measures.reach * (place / middle - 1) for place in range(measures.places)]
    found = plane(training.model, _loss(training), _minibatches(training, measures), (one, two), places, places)
    numbers = [[_number(value) for value in row] for row in found]
    return {"places": places, "line": [row[middle] for row in numbers], "plane": numbers}


def _towards(training: Training, measures: Measures, storage: Storage) -> Measured:
    assert measures.towards is not None
    other = trained(measures.towards, storage).model.state_dict()
    places = [place / (measures.places - 1) for place in range(measures.places)]
    way = towards(training.model, other)
    images = training.parts.train

    def statistics() -> Iterable[Batch]:
        return images.plain(shuffled=True)

    found = line(training.model, _loss(training), _minibatches(training, measures), way, places, statistics)
    return {"places": places, "line": [_number(value) for value in found]}


def _number(value: float) -> float | None:
    """None for what JSON has no number for."""
    return value if math.isfinite(value) else None


_PLACES = ("places", "minibatch", "images")
MEASURES: dict[str, tuple[Measure, tuple[str, ...]]] = {
    "sharpness": (_sharpness, ("radii", "asam_radii", "minibatch", "images")),
    "noise": (_accuracy_under("multiplicative", "sigmas"), ("sigmas", "draws", "noisy")),
    "analog": (_accuracy_under("relative", "analog_sigmas"), ("analog_sigmas", "draws", "noisy")),
    "quantisation": (_accuracy_under("quantised", "bits"), ("bits", "noisy")),
    "curvature": (_curvature, ("eigenvalues", "minibatch", "images")),
    "landscape": (_landscape, (*_PLACES, "reach")),
    "towards": (_towards, (*_PLACES, "towards")),
}


def measured(
    directory: Path,
    measures: Measures,
    storage: Storage | None = None,
    watch: Callable[[str], None] = lambda name: None,
) -> dict[str, Measured]:
    """The measures of the finished run in a directory; what was measured before in the same way is read, not repeated.

    Args:
        directory: of a finished run, ``OUT/runs/ID``.
        measures: which.
        storage: where the data set is.
        watch: called with the name of each measure that is about to be taken.

    Example:
        >>> measured(Path("out/compare/runs/sam-seed0-0123456789"), Measures(measures=("sharpness",)))
    """
    path, storage = directory / "measures.json", storage or Storage()
    known: dict[str, Measured] = _read(path)
    todo = missing(directory, measures)
    if todo:
        training = trained(directory, storage)
        with as_the_run_says(training.run):
            for name in todo:
                watch(name)
                found = MEASURES[name][0](training, measures, storage)
                known[name] = {"settings": _plain(measures.settings(name)), **found}
                with written_whole(path) as file:
                    file.write(json.dumps(known, allow_nan=False).encode())
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
