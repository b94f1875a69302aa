"""Normalisation and augmentation of whole batches, on the device where they are, with a generator of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """``(x / 255 - mean) / std`` per channel, as float32."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device).view(1, -1, 1, 1)
    return torch.addcmul(shift, pixels.float(), scale)


def cropped_and_flipped(pixels: Tensor, generator: torch.Generator, *, padding: int = 4, flip: bool = True) -> Tensor:
    """Every image shifted by up to ``padding`` pixels (zeros come in) and mirrored with probability 1/2.

    One gather does both: a mirrored image reads its columns backwards.
    """
    count, _, height, width = pixels.shape
    device = pixels.device

    def draw(high: int) -> Tensor:
        return torch.randint(high, (count, 1), generator=generator, device=generator.device).to(device)

    rows = draw(2 * padding + 1) + torch.arange(height, device=device)
    shift, forward = draw(2 * padding + 1), torch.arange(width, device=device)
    if flip:
        forward = torch.where(draw(2).bool(), forward.flip(0), forward)
    columns = shift + forward
    padded = F.pad(pixels, (padding,) * 4)
    number = torch.arange(count, device=device)
    # indexing puts the channels last; the permuted view is what convolutions call channels-last
    return padded.permute(0, 2, 3, 1)[number[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_resized_crops(
    pixels: Tensor,
    generator: torch.Generator,
    size: int,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: bool = True,
) -> Tensor:
    """A random part of every image, of random area and aspect, resized to ``size`` by bilinear sampling."""
    count, device = len(pixels), pixels.device

    def uniform(low: float, high: float) -> Tensor:
        drawn = torch.rand(count, generator=generator, device=generator.device).to(device)
        return low + (high - low) * drawn

    area = uniform(*scale)
    aspect = torch.exp(uniform(float(torch.tensor(ratio[0]).log()), float(torch.tensor(ratio[1]).log())))
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    x, y = uniform(-1, 1) * (1 - width), uniform(-1, 1) * (1 - height)
    mirror = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0) if flip else torch.ones(count, device=device)
    zero = torch.zeros_like(x)
    affine = torch.stack([torch.stack([mirror * width, zero, x], 1), torch.stack([zero, height, y], 1)], 1)
    grid = F.affine_grid(affine, [count, pixels.shape[1], size, size], align_corners=False)
    return F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False)


def resized_centre(pixels: Tensor, resize: int, size: int) -> Tensor:
    """The shorter side resized to ``resize`` (with anti-aliasing), then the ``size`` x ``size`` in the middle."""
    height, width = pixels.shape[2:]
    factor = resize / min(height, width)
    target = (round(height * factor), round(width * factor))
    images = F.interpolate(pixels.float(), target, mode="bilinear", antialias=True, align_corners=False)
    top, left = (target[0] - size) // 2, (target[1] - size) // 2
    return images[:, :, top : top + size, left : left + size]
