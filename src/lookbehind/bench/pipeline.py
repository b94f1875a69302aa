"""Images per second of the input pipeline, by whole batches and an image at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import torch

from lookbehind.bench.timing import Measured
from lookbehind.data.augment import normalised
from lookbehind.data.batches import Batches
from lookbehind.data.vision import Images

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
BATCH = 128


def by_batches(images: Images, epoch: int = 0) -> None:
    """What the training loop does: an epoch in random order, augmented, normalised, in the network's layout."""
    for _ in Batches(images, MEAN, STD, BATCH, augmentation="crop-flip").epoch(epoch):
        pass


def by_images(images: Images) -> None:
    """What an image-at-a-time pipeline with Pillow does."""
    from PIL import Image, ImageOps

    generator = torch.Generator().manual_seed(0)
    batch = []
    for image in images.pixels:
        picture = ImageOps.expand(Image.fromarray(image.permute(1, 2, 0).numpy()), 4)
        y, x, mirror = torch.randint(9, (3,), generator=generator).tolist()
        picture = picture.crop((x, y, x + 32, y + 32))
        picture = ImageOps.mirror(picture) if mirror % 2 else picture
        tensor = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(1, 32, 32, 3)
        batch.append(normalised(tensor.permute(0, 3, 1, 2), MEAN, STD))
        if len(batch) == BATCH:
            torch.cat(batch)
            batch.clear()


def pipeline(repetitions: int, count: int = 12_800, workers: int = 2) -> list[Measured]:
    """Augmented CIFAR images per second, on as many cores as there are workers."""
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(count, dtype=torch.int64)).to("cpu")
    one, several, slow = [], [], []
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(repetitions):  # in turn, so that a busy machine hits all alike
            began = perf_counter()
            by_batches(images)
            one.append(count / (perf_counter() - began))
            began = perf_counter()
            list(pool.map(lambda epoch: by_batches(images, epoch), range(workers)))
            several.append(workers * count / (perf_counter() - began))
            few = images[: max(count // 20, 1)]
            began = perf_counter()
            by_images(few)
            slow.append(len(few) / (perf_counter() - began))
    ratios = [fast / other for fast, other in zip(one, slow, strict=True)]
    return [
        Measured("augmented images per second, one core", "CIFAR", median(one)),
        Measured(f"augmented images per second, {workers} cores", "CIFAR", median(several), at_least=30_000),
        Measured("whole batches / an image at a time", "CIFAR", median(ratios), at_least=20),
    ]
