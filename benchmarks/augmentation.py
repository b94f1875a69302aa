"""Augmented and normalised CIFAR images per second, by whole batches and an image at a time.

python benchmarks/augmentation.py
"""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import torch
from PIL import Image, ImageOps

from lookbehind.data.augment import normalised
from lookbehind.data.batches import Batches
from lookbehind.data.vision import Images

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


def by_batches(images: Images) -> None:
    """What the training loop does: an epoch in random order, augmented, normalised, in the network's layout."""
    for _ in Batches(images, MEAN, STD, 128, augmentation="crop-flip").epoch(0):
        pass


def by_images(images: Images) -> None:
    generator = torch.Generator().manual_seed(0)
    for image in images.pixels:
        picture = ImageOps.expand(Image.fromarray(image.permute(1, 2, 0).numpy()), 4)
        y, x, mirror = torch.randint(9, (3,), generator=generator).tolist()
        picture = picture.crop((x, y, x + 32, y + 32))
        picture = ImageOps.mirror(picture) if mirror % 2 else picture
        tensor = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(1, 32, 32, 3)
        normalised(tensor.permute(0, 3, 1, 2), MEAN, STD)


def main() -> None:
    pixels = torch.randint(0, 256, (12_800, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(len(pixels), dtype=torch.int64)).to("cpu")
    rates: dict[str, list[float]] = {"whole batches of 128": [], "an image at a time": []}
    for _ in range(7):  # interleaved, so that a busy machine hits both alike
        for name, work, part in (
            ("whole batches of 128", by_batches, images),
            ("an image at a time", by_images, images[:640]),
        ):
            start = perf_counter()
            work(part)
            rates[name].append(len(part) / (perf_counter() - start))
    medians = {name: median(values) for name, values in rates.items()}
    fast, slow = medians.values()
    print(
        json.dumps(
            {"images per second, median of 7": medians, "ratio": fast / slow, "threads": torch.get_num_threads()}
        )
    )


if __name__ == "__main__":
    main()
