"""Networks to fine-tune that are made here, where no published checkpoint fits the images."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock

from lookbehind.experiments.pool import Notice
from lookbehind.models.vit import PREFIX, ImageClassifier, pretrained, vision_transformer
from lookbehind.training.settings import Settings
from lookbehind.training.train import Progress, Storage, train


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A small vision transformer, with random weights of a fixed seed or trained by AdamW before it is fine-tuned."""

    name: str
    """Of its directory, ``OUT/checkpoints/NAME``."""
    image: int
    """Side of the images."""
    patch: int
    width: int
    layers: int
    heads: int
    classes: int = 10
    channels: int = 3
    pretraining: Settings | None = None
    """With ``train_images``, which fine-tuning leaves out by ``reserved``; random weights if there is none."""

    @property
    def images(self) -> int:
        """That it was trained on."""
        return (self.pretraining.train_images or 0) if self.pretraining else 0

    def model(self, out: Path) -> str:
        """As settings have it."""
        return f"{PREFIX}{self._place(out)}"

    def _place(self, out: Path) -> Path:
        return Path(out) / "checkpoints" / self.name

    def make(self, storage: Storage, tell: Callable[[Notice], None]) -> None:
        """See to it that it is there. Stopped in the middle of its pre-training, it goes on when it is called again."""
        place = self._place(storage.out)
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(f".{self.name}.lock")):  # the jobs of an array begin at the same time
            if not place.exists():
                _save(self._trained(storage, tell), place)

    def _trained(self, storage: Storage, tell: Callable[[Notice], None]) -> ImageClassifier:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = vision_transformer(
                self.classes,
                image=self.image,
                patch=self.patch,
                width=self.width,
                layers=self.layers,
                heads=self.heads,
                channels=self.channels,
            )
        if self.pretraining is None:
            return network
        start = self._place(storage.out).with_name(f"{self.name}-untrained")
        _save(network, start)
        run = replace(self.pretraining, model=f"{PREFIX}{start}").run("adamw", 0)

        def watch(progress: Progress) -> None:
            if progress.record is not None:
                done = f"epoch {progress.record['epoch']} of {run.filled.epochs}"
                tell(Notice(f"pre-training {self.name}: {done}, {progress.record['test_accuracy']:.1f} %"))

        train(run, storage, watch=watch)
        weights = torch.load(storage.directory(run) / "weights.pt", map_location="cpu", weights_only=True)
        network = pretrained(str(start), classes=self.classes, channels=self.channels)
        network.load_state_dict(weights)
        return network


SMALL_VIT = Checkpoint(
    name="vit-cifar10",
    image=16,
    patch=4,
    width=64,
    layers=4,
    heads=4,
    pretraining=Settings(
        data="cifar10",
        pool=2,
        preparation="vit",
        train_images=20_000,
        epochs=20,
        batch_size=128,
        lr=0.001,
        warmup=1.0,
        weight_decay=0.05,
        augmentation="flip",
    ),
)
TINY_VIT = Checkpoint(name="vit-digits", image=8, patch=4, width=16, layers=1, heads=2, channels=1)


def _save(network: ImageClassifier, place: Path) -> None:
    """Write a checkpoint that is whole or not there."""
    part = place.with_name(f".{place.name}.part")
    network.save(part)
    shutil.rmtree(place, ignore_errors=True)
    part.rename(place)
