"""Normalisation and augmentation of whole batches, on the device where they are, with a generator of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

AUGMENTATIONS = ("none", "flip", "crop-flip", "crop-flip-brightness", "resized-crop-flip")
"""What a training image may go through; ``augmented`` says what each does."""


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """``(x / 255 - mean) / std`` per channel, as float32."""

    def image(values: list[float]) -> Tensor:
        # a whole image of them in the layout of the batch: long runs of memory, where a value per channel is three
        channels = torch.tensor(values, device=pixels.device).view(1, -1, 1, 1)
        return torch.empty_like(pixels[:1], dtype=torch.float32).copy_(channels)

    scale, shift = [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
    values = pixels.to(torch.float32, copy=True)
    return torch.addcmul(image(shift), values, image(scale), out=values)  # in place: half the memory to go through


def picked(pixels: Tensor, index: Tensor) -> Tensor:
    """``pixels[index]`` in the same layout, many times faster: every image is copied in one piece."""
    index = index.to(pixels.device)
    if pixels.dim() != 4 or pixels.is_contiguous():
        return pixels.index_select(0, index)
    return pixels.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def check_augmentation(augmentation: str) -> None:
    """Refuse what is not one of ``AUGMENTATIONS``."""
    if augmentation not in AUGMENTATIONS:
        raise ValueError(f"augmentation={augmentation!r}: choose one of {', '.join(AUGMENTATIONS)}")


def augmented(pixels: Tensor, augmentation: str, generator: torch.Generator) -> Tensor:
    """A batch after one of ``AUGMENTATIONS``, of the same shape and type.

    - ``none``: as it is;
    - ``flip``: every image mirrored with probability 1/2;
    - ``crop-flip``: shifted by up to 4 pixels, zeros coming in, and mirrored (``cropped_and_flipped``);
    - ``crop-flip-brightness``: then made darker or brighter by up to a quarter (``brightened``);
    - ``resized-crop-flip``: a part of random area and aspect in the size of the whole, and mirrored
      (``random_resized_crops``).
    """
    check_augmentation(augmentation)
    if augmentation == "none":
        return pixels
    if augmentation == "resized-crop-flip":
        height, width = pixels.shape[2:]
        return random_resized_crops(pixels, generator, (height, width))
    moved = cropped_and_flipped(pixels, generator, padding=0 if augmentation == "flip" else 4)
    return brightened(moved, generator) if augmentation == "crop-flip-brightness" else moved


def coins(count: int, generator: torch.Generator) -> Tensor:
    """Which of ``count`` images to mirror: (count, 1), true with probability 1/2, on the generator's device."""
    return _draw(2, count, generator).bool()


def _draw(high: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(high, (count, 1), generator=generator, device=generator.device)


def cropped_and_flipped(pixels: Tensor, generator: torch.Generator, *, padding: int = 4, flip: bool = True) -> Tensor:
    """Every image shifted by up to ``padding`` pixels (zeros come in) and mirrored with probability 1/2.

    Fastest for channels-last images, and its result is channels-last. What is to be mirrored is appended to the padded
    images, mirrored; then every row of the result is a run of memory that is copied in one piece.
    """
    count, channels, height, width = pixels.shape
    top, left = (_draw(2 * padding + 1, count, generator) for _ in range(2))
    mirrored = coins(count, generator) if flip else torch.zeros_like(top, dtype=torch.bool)
    which = mirrored.flatten().nonzero().flatten()  # before it goes to the device, which nothing here waits for
    padded = pixels.new_zeros(count + len(which), height + 2 * padding, width + 2 * padding, channels)
    inside = padded[:, padding : padding + height, padding : padding + width]
    inside[:count] = pixels.permute(0, 2, 3, 1)
    inside[count:] = picked(pixels, which).flip(3).permute(0, 2, 3, 1)
    image = torch.where(mirrored, count - 1 + mirrored.cumsum(0), torch.arange(count, device=top.device)[:, None])
    left = torch.where(mirrored, 2 * padding - left, left)  # the same columns, counted from the other side
    row = image * padded.shape[1] + top + torch.arange(height, device=top.device)
    runs = padded.flatten().unfold(0, width * channels, channels)
    taken = runs.index_select(0, (row * padded.shape[2] + left).flatten().to(pixels.device))
    return taken.view(count, height, width, channels).permute(0, 3, 1, 2)


def brightened(pixels: Tensor, generator: torch.Generator, *, strength: float = 63 / 255) -> Tensor:
    """Every image times its own factor, uniform in ``1 - strength`` to ``1 + strength``: torchvision's ColorJitter.

    Pixels are cut off at 255 and rounded down, as Pillow does it.
    """
    draws = torch.rand(len(pixels), generator=generator, device=generator.device).to(pixels.device)
    factors = 1 + strength * (2 * draws - 1)
    return (pixels * factors.view(-1, 1, 1, 1)).clamp(max=255).to(pixels.dtype)


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
    """A random part of every image (``crop_boxes``) resized to ``size`` bilinearly, mirrored with probability 1/2.

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
