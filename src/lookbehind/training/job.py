"""What can be trained, stopped, resumed and kept: a run of any kind."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any, Protocol

from lookbehind.optim.clipping import clip_norm
from lookbehind.training.parallel import Team
from lookbehind.training.records import Record
from lookbehind.training.settings import resolved

FORMAT = 1  # of the id: raised when a default changes, or the same settings come to mean something else


class InProgress(Protocol):
    """A training under way; it knows nothing of files."""

    @property
    def team(self) -> Team:
        """The processes that share it."""

    @property
    def step(self) -> int:
        """Steps taken."""

    @property
    def steps(self) -> int:
        """Of the whole training."""

    @property
    def finished(self) -> bool:
        """Is there nothing more to do?"""

    def train_epoch(self, after_step: Callable[[], bool]) -> bool:
        """Train to the end of the epoch; False if ``after_step`` asked to stop before."""

    def epoch_record(self) -> Record:
        """What is known at the end of an epoch."""

    def end_record(self, epochs: list[Record]) -> Record:
        """What is known in the end."""

    def state(self) -> dict[str, Any]:
        """All that its future depends on."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""

    def weights(self) -> dict[str, Any]:
        """The network to keep."""


class Job(Protocol):
    """A frozen description of a training, with an id that follows from it."""

    @property
    def id(self) -> str:
        """A name for its files."""

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that decide the outcome, and no others."""

    @property
    def method(self) -> str:
        """By name."""

    @property
    def numbers(self) -> dict[str, Any]:
        """What tells it from other runs of its method, in short."""

    @property
    def seed(self) -> int:
        """Draws all that is random."""

    @property
    def threads(self) -> int:
        """Of the CPU."""

    @property
    def data(self) -> str:
        """As people call it."""

    @property
    def source(self) -> str:
        """The data set whose files are read."""

    @property
    def place(self) -> str:
        """The device that it runs on."""

    @property
    def unit(self) -> str:
        """Of what its records call accuracy: % or BLEU."""

    @property
    def cost(self) -> float:
        """Gradients of the whole run, in some unit."""

    @property
    def whole_epochs(self) -> int:
        """About how many records it will have."""

    def begin(self, data: Any) -> InProgress:
        """The training, before its first step, on the data that was read for it."""


class Derived:
    """What follows from the settings of a run in the same way for every kind, unless the kind says otherwise."""

    data: str
    device: str
    clip: float | None

    @cached_property
    def id(self) -> str:
        """A name for the run's files that follows from its identity."""
        return id_of(self)

    @property
    def source(self) -> str:
        """The data set whose files are read."""
        return self.data

    @property
    def place(self) -> str:
        """The device that it runs on."""
        return resolved(self.device)

    @property
    def unit(self) -> str:
        """Of what its records call accuracy."""
        return "%"

    @property
    def clipping(self) -> clip_norm | None:
        """Of the gradient of every base step."""
        return None if self.clip is None else clip_norm(self.clip)


def described(run: Job) -> str:
    """A run by its method and the numbers that tell it from others of the method."""
    inner = ",".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in run.numbers.items()
    )
    return f"{run.method}:{inner}" if inner else run.method


def id_of(run: Any) -> str:
    """A name for the files of a run that follows from its identity.

    Settings at their default are left out, so that a setting which is added later does not change it.
    """
    defaults = {f.name: f.default for f in fields(run)}
    own = {name: value for name, value in run.identity.items() if value != defaults[name]}
    content = json.dumps({"format": FORMAT, **own}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    return f"{re.sub('[^a-z0-9-]+', '_', run.method)[:60]}-seed{run.seed}-{digest}"
