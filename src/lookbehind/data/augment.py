"""Normalisation and augmentation of whole batches, on the device where they are, with a generator of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

AUGMENTATIONS = ("none", "flip", "crop-flip", "resized-crop-flip")
"""What a training image may go through; :func:`augmented` says what each does."""


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """``(x / 255 - mean) / std`` per channel, as float32."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device).view(1, -1, 1, 1)
    return torch.addcmul(shift, pixels.float(), scale)


def check_augmentation(augmentation: str) -> None:
    """Refuse what is not one of :data:`AUGMENTATIONS`."""
    if augmentation not in AUGMENTATIONS:
        raise ValueError(f"augmentation={augmentation!r}: choose one of {', '.join(AUGMENTATIONS)}")


def augmented(pixels: Tensor, augmentation: str, generator: torch.Generator) -> Tensor:
    """A batch after one of :data:`AUGMENTATIONS`, of the same shape and type.

    - ``none``: as it is;
    - ``flip``: every image mirrored with probability 1/2;
    - ``crop-flip``: shifted by up to 4 pixels, zeros coming in, and mirrored (:func:`cropped_and_flipped`);
    - ``resized-crop-flip``: a part of random area and aspect in the size of the whole, and mirrored
      (:func:`random_resized_crops`).
    """
    check_augmentation(augmentation)
    if augmentation == "none":
        return pixels
    if augmentation == "resized-crop-flip":
        height, width = pixels.shape[2:]
        return random_resized_crops(pixels, generator, (height, width))
    return cropped_and_flipped(pixels, generator, padding=4 if augmentation == "crop-flip" else 0)


def coins(count: int, generator: torch.Generator) -> Tensor:
    """Which of ``count`` images to mirror: (count, 1), true with probability 1/2, on the generator's device."""
    return _draw(2, count, generator).bool()


def _draw(high: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(high, (count, 1), generator=generator, device=generator.device)


def cropped_and_flipped(pixels: Tensor, generator: torch.Generator, *, padding: int = 4, flip: bool = True) -> Tensor:
    """Every image shifted by up to ``padding`` pixels (zeros come in) and mirrored with probability 1/2.

    One gather does both: a mirrored image reads its columns backwards.
    """
    count, _, height, width = pixels.shape
    device = pixels.device
    rows = _draw(2 * padding + 1, count, generator).to(device) + torch.arange(height, device=device)
    shift, forward = _draw(2 * padding + 1, count, generator).to(device), torch.arange(width, device=device)
    if flip:
        forward = torch.where(coins(count, generator).to(device), forward.flip(0), forward)
    columns = shift + forward
    padded = F.pad(pixels, (padding,) * 4)
    number = torch.arange(count, device=device)
    # indexing puts the channels last; the permuted view is what convolutions call channels-last
    return padded.permute(0, 2, 3, 1)[number[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def crop_boxes(
    sizes: Tensor,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    tries: int = 10,
) -> Tensor:
    """The boxes of RandomResizedCrop for images of these (height, width): (N, 4), of top, left, height, width.

    The area is uniform in ``scale`` times the image's, width / height log-uniform in ``ratio``, both sides rounded; of
    ``tries`` such boxes the first that fits is taken, at a uniform place. Where none fits: the largest box in the
    middle whose aspect is within ``ratio``. All is drawn at once, and the result is on the generator's device.
    """
    device, count = generator.device, len(sizes)
    sizes = sizes.to(device)
    height, width = sizes.unbind(1)
    shares, places = (torch.rand((2, count, n), generator=generator, device=device) for n in (tries, 1))
    area = sizes.prod(1, keepdim=True) * (scale[0] + (scale[1] - scale[0]) * shares[0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * shares[1])
    tried = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()], 2).round().long()
    fits = ((tried > 0) & (tried <= sizes[:, None])).all(2)
    first = fits.int().argmax(1)
    chosen = tried[torch.arange(count, device=device), first]
    # the free space is at least one pixel, so that rounding up to its end is all there is to guard against
    space = sizes - chosen + 1
    corner = torch.minimum((places[:, :, 0].T * space).long(), space - 1)
    widest = torch.minimum((height * ratio[1]).round().long(), width)
    highest = torch.minimum((width / ratio[0]).round().long(), height)
    middle = torch.stack([highest, widest], 1)
    found = fits.any(1, keepdim=True)
    chosen = torch.where(found, chosen, middle)
    return torch.cat([torch.where(found, corner, (sizes - middle) // 2), chosen], 1)


def random_resized_crops(
    pixels: Tensor,
    generator: torch.Generator,
    size: int | tuple[int, int],
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: bool = True,
) -> Tensor:
    """A random part of every image (:func:`crop_boxes`) resized to ``size`` bilinearly, mirrored with probability 1/2.

    Like cutting the part out and resizing it, each pixel rounded. There is no anti-aliasing, which makes no difference
    unless a part is larger than ``size``.
    """
    count, device = len(pixels), pixels.device
    whole = torch.tensor(pixels.shape[2:]).expand(count, 2)
    top, left, height, width = crop_boxes(whole, generator, scale=scale, ratio=ratio).to(device).T[:, :, None]
    target = (size, size) if isinstance(size, int) else size
    rows, columns = _samples(top, height, target[0]), _samples(left, width, target[1])
    if flip:
        columns = torch.where(coins(count, generator).to(device), columns.flip(1), columns)
    # from -1, the middle of the first pixel, to 1, that of the last
    y, x = (2 * at / max(side - 1, 1) - 1 for at, side in zip((rows, columns), pixels.shape[2:], strict=True))
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), 3)
    crops = F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=True)
    return crops.round().to(pixels.dtype)


def _samples(start: Tensor, length: Tensor, count: int) -> Tensor:
    """Where ``count`` pixels read a part of a line: evenly, but never beyond the middle of its first and last pixel."""
    inside = (torch.arange(count, device=start.device) + 0.5) * (length / count) - 0.5
    return start + torch.minimum(inside.clamp(min=0), length - 1)


def centre(height: int, width: int, resize: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Resize(resize) and CenterCrop(size) of an image: its new (height, width), and (top, left) of what is taken.

    The shorter side becomes ``resize``, the longer one is rounded down; half pixels are rounded to even, as in
    torchvision.
    """
    shorter = min(height, width)
    target = (resize * height // shorter, resize * width // shorter)
    return target, (round((target[0] - size) / 2), round((target[1] - size) / 2))


def resized_centre(pixels: Tensor, resize: int, size: int) -> Tensor:
    """The shorter side resized to ``resize`` (with anti-aliasing), then the ``size`` x ``size`` in the middle."""
    height, width = pixels.shape[2:]
    target, (top, left) = centre(height, width, resize, size)
    images = F.interpolate(pixels.float(), target, mode="bilinear", antialias=True, align_corners=False)
    return images[:, :, top : top + size, left : left + size]
