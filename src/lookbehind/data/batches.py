"""Minibatches as a pure function of seed, epoch and number: nothing to save, and a training can go on anywhere."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lookbehind.data.augment import normalised
from lookbehind.data.vision import Images, ImageSource, VisionData

Batch = tuple[Tensor, Tensor]
EVALUATION_BATCH = 500  # fixed, so that sums are the same wherever a model is measured


def seed_for(*parts: int | str) -> int:
    """A seed that depends on all parts, such as the run's seed, a purpose and an epoch."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_for(*parts: int | str) -> torch.Generator:
    """A generator for one purpose, independent of all others."""
    return torch.Generator().manual_seed(seed_for(*parts))


@dataclass(frozen=True)
class Batches:
    """Normalised minibatches of images in a network's layout.

    Args:
        images: where they come from.
        mean: per channel, what the pixels (from 0 to 1) are normalised by.
        std: per channel.
        size: images per minibatch; the last of an epoch may be smaller.
        seed: draws order and augmentation.
        augmentation: see ``AUGMENTATIONS``.
        device: where the minibatches are wanted.
    """

    images: ImageSource
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    seed: int = 0
    augmentation: str = "none"
    device: str = "cpu"

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return -(-len(self.images) // self.size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The minibatches of an epoch from number ``start`` on, in the epoch's own random order."""
        order = torch.randperm(len(self.images), generator=generator_for(self.seed, "order", epoch))

        def batch(number: int) -> Batch:
            index = order[number * self.size : (number + 1) * self.size]
            generator = generator_for(self.seed, "augmentation", epoch, number)
            return self._ready(self.images.augmented(index, self.augmentation, generator), index)

        numbers = range(start, len(self))
        if not self.images.prefetch:
            yield from map(batch, numbers)
            return
        with ThreadPoolExecutor(1) as pool:  # the next minibatch is decoded while the network works on this one
            waiting = [pool.submit(batch, number) for number in numbers[:2]]
            for number in numbers:
                ready = waiting.pop(0).result()
                if number + 2 in numbers:
                    waiting.append(pool.submit(batch, number + 2))
                yield ready

    def onwards(self, start: int) -> Iterator[Batch]:
        """The minibatches of all epochs, one epoch after the other, from number ``start`` of the first on."""
        for epoch in itertools.count(start // len(self)):
            yield from self.epoch(epoch, start % len(self))
            start = 0

    def plain(self, *, shuffled: bool = False) -> Iterator[Batch]:
        """All images once, without augmentation, in their own order or in a random one that is always the same."""
        generator = generator_for("shuffled")
        count = len(self.images)
        order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
        for index in order.split(EVALUATION_BATCH):
            yield self._ready(self.images.batch(index), index)

    def _ready(self, pixels: Tensor, index: Tensor) -> Batch:
        inputs = normalised(pixels.to(self.device, non_blocking=True), self.mean, self.std)
        # channels-last convolutions are a quarter to a third faster on a CPU, and on a GPU under autocast
        labels = self.images.labels[index.to(self.images.labels.device)].to(self.device, non_blocking=True)
        return inputs.contiguous(memory_format=torch.channels_last), labels


def pooled(data: VisionData, factor: int) -> VisionData:
    """The images averaged over squares of ``factor`` x ``factor`` pixels."""
    if factor == 1:
        return data

    def smaller(images: ImageSource) -> Images:
        if not isinstance(images, Images):
            raise ValueError(f"pool={factor}: images of a folder are resized when they are read; give pool=1")
        height, width = images.pixels.shape[2:]
        if height % factor or width % factor:
            raise ValueError(f"pool={factor}: images of {height} x {width} cannot be divided by it")
        parts = [F.avg_pool2d(part.float(), factor).round().to(torch.uint8) for part in images.pixels.split(1000)]
        return Images(torch.cat(parts), images.labels)

    return replace(data, train=smaller(data.train), test=smaller(data.test))
