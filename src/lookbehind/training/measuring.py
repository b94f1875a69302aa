"""Measure finished runs: sharpness, robustness, curvature, landscape; kept beside the run, measured once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.data.batches import EVALUATION_BATCH, Batch, Batches
from lookbehind.data.files import written_whole
from lookbehind.measures.curvature import curvature
from lookbehind.measures.landscape import filter_normalised, line, plane, towards
from lookbehind.measures.noise import SIGMAS, bits, robustness
from lookbehind.measures.sharpness import RADII, m_sharpness
from lookbehind.measures.unchanged import several
from lookbehind.optim.checks import count, non_negative, one_of, positive
from lookbehind.training.evaluate import finished_files, trained
from lookbehind.training.job import Job
from lookbehind.training.loop import Training
from lookbehind.training.records import Record
from lookbehind.training.train import Storage, as_the_run_says, finished_records

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
        if self.towards is None and "towards" in measures:
            raise ValueError("measures='towards': say where to, with --towards RUN")
        if self.towards is not None:
            finished_files(self.towards)
            measures = tuple(dict.fromkeys((*measures, "towards")))
        object.__setattr__(self, "measures", measures)
        for name in LEVELS:
            object.__setattr__(self, name, several(name, getattr(self, name)))
        for name in ("minibatch", "draws", "eigenvalues"):
            count(name, getattr(self, name))
        if count("places", self.places, at_least=3) % 2 == 0:
            raise ValueError(f"places={self.places}: give an odd number, so that the weights themselves are among them")
        one_of("noisy", self.noisy, get_args(Weights))
        if self.images is not None:
            count("images", self.images)
        for name in ("sigmas", "analog_sigmas"):
            for sigma in getattr(self, name):
                non_negative(name, sigma)
        for number in self.bits:
            bits(number)
        for name in ("radii", "asam_radii"):
            for radius in getattr(self, name):
                positive(name, radius)
        positive("reach", self.reach)
        for name in LEVELS:
            # in order, since the settings decide whether something was measured before
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)), reverse=name == "bits")))

    def settings(self, name: str, directory: Path) -> dict[str, Any]:
        """What the result of a measure of a run depends on."""
        found = {key: getattr(self, key) for key in MEASURES[name].settings}
        words = {key: _weights_of(value) if isinstance(value, Path) else value for key, value in found.items()}
        return {"weights": _weights_of(directory), **words}


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

    def some() -> Iterator[Batch]:
        left = images
        for inputs, labels in whole.epoch(0):
            yield inputs[:left], labels[:left]
            left -= len(labels)
            if left <= 0:
                return

    return some


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
            autocast=training.autocast,
        )
        return {
            levels.removeprefix("analog_"): list(getattr(measures, levels)),
            "values": [list(values) for values in found.values],
            "statistics_minibatch": EVALUATION_BATCH,
        }

    return measure


def _curvature(training: Training, measures: Measures, storage: Storage) -> Measured:
    batches = _minibatches(training, measures)
    number = measures.eigenvalues
    found = curvature(training.model, _loss(training), batches, eigenvalues=number, iterations=max(30, 2 * number + 10))
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


@dataclass(frozen=True)
class Kind:
    """A measure: how it is taken, which settings it depends on, and what it finds."""

    take: Measure
    settings: tuple[str, ...]
    finds: tuple[str, ...]


GONE = "none"
MEASURES: dict[str, Kind] = {
    "sharpness": Kind(
        _sharpness, ("radii", "asam_radii", "minibatch", "images"), ("sam", "asam", "loss", "weight_norm")
    ),
    "noise": Kind(_accuracy_under("multiplicative", "sigmas"), ("sigmas", "draws", "noisy"), ("sigmas", "values")),
    "analog": Kind(
        _accuracy_under("relative", "analog_sigmas"), ("analog_sigmas", "draws", "noisy"), ("sigmas", "values")
    ),
    "quantisation": Kind(_accuracy_under("quantised", "bits"), ("bits", "noisy"), ("bits", "values")),
    "curvature": Kind(_curvature, ("eigenvalues", "minibatch", "images"), ("eigenvalues", "trace", "trace_error")),
    "landscape": Kind(_landscape, (*_PLACES, "reach"), ("places", "line", "plane")),
    "towards": Kind(_towards, (*_PLACES, "towards"), ("places", "line")),
}


class Stopped(Exception):  # noqa: N818, a wish, not an error
    """Measuring was asked to stop; what was measured before is kept."""


def measured(
    directory: Path,
    measures: Measures,
    storage: Storage | None = None,
    watch: Callable[[str], None] = lambda name: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Measured]:
    """The measures of the finished run in a directory; what was measured before in the same way is read, not repeated.

    Args:
        directory: of a finished run, ``OUT/runs/ID``.
        measures: which.
        storage: where the data set is.
        watch: called with the name of each measure that is about to be taken.
        stop: asked at every minibatch; True raises ``Stopped``.

    Examples:
        >>> measured(Path("out/compare/runs/sam-seed0-0123456789"), Measures(measures=("sharpness",)))
    """
    path, storage = directory / "measures.json", storage or Storage()
    known: dict[str, Measured] = _read(path)
    todo = missing(directory, measures)
    if todo:
        training = trained(directory, storage)
        training.model.register_forward_pre_hook(lambda *_: _unless(stop))
        with as_the_run_says(training.run):
            for name in todo:
                watch(name)
                try:
                    found = MEASURES[name].take(training, measures, storage)
                except ValueError as error:
                    raise ValueError(f"{name} of {directory}: {error}") from error
                known[name] = {"settings": _plain(measures.settings(name, directory)), **found}
                with written_whole(path) as file:
                    file.write(json.dumps(known, allow_nan=False).encode())
    return {name: known[name] for name in measures.measures}


def missing(directory: Path, measures: Measures) -> list[str]:
    """The measures that a run still lacks, or has with other settings."""
    known = _read(directory / "measures.json")
    wanted = {name: _plain(measures.settings(name, directory)) for name in measures.measures}
    return [name for name, settings in wanted.items() if not _same(known.get(name, {}).get("settings"), settings)]


def _same(known: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    """Was it measured with these settings? Of a run whose weights are gone, what was measured of them counts."""
    if known is not None and wanted["weights"] == GONE:
        known = {**known, "weights": GONE}
    return known == wanted


def whole_records(run: Job, storage: Storage, measures: Measures) -> list[Record] | None:
    """The records of a run that is trained and measured, or that diverged; None where something is still to do."""
    records = finished_records(run, storage)
    if records is None or records[-1]["diverged"] or not missing(storage.directory(run), measures):
        return records
    return None


def _unless(stop: Callable[[], bool]) -> None:
    if stop():
        raise Stopped


def _weights_of(directory: Path) -> str:
    """The weights of a run by their digest: measures belong to them and not to a name."""
    path = directory / "weights.pt"
    if not path.exists():
        return GONE
    about = path.stat()
    return _digest(path.resolve(), about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, changed: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _read(path: Path) -> dict[str, Measured]:
    try:
        content = json.loads(path.read_text(), parse_constant=_no_number)
    except (OSError, ValueError):
        return {}
    content = content if isinstance(content, dict) else {}
    return {name: entry for name, entry in content.items() if _is_whole(name, entry)}


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _is_whole(name: str, entry: object) -> bool:
    return name in MEASURES and isinstance(entry, dict) and {"settings", *MEASURES[name].finds} <= entry.keys()
