"""Augmentation of whole batches against an image at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from lookbehind.data.augment import (
    AUGMENTATIONS,
    augmented,
    centre,
    crop_boxes,
    cropped_and_flipped,
    normalised,
    random_resized_crops,
)


def pixels(count=6, channels=3, size=8):
    return torch.randint(0, 256, (count, channels, size, size), generator=seeded(1)).to(torch.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_normalisation_is_the_formula_per_channel():
    images = pixels()
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 1.0)
    result = normalised(images, mean, std)
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - mean[channel]) / std[channel]
        assert torch.allclose(result[:, channel].double(), expected, atol=1e-6)
    assert result.dtype == torch.float32


def candidates(image, padding):
    """All crops of a padded image, plain and mirrored."""
    size = image.shape[-1]
    padded = torch.nn.functional.pad(image, (padding,) * 4)
    for flip in (False, True):
        for y in range(2 * padding + 1):
            for x in range(2 * padding + 1):
                crop = padded[:, y : y + size, x : x + size]
                yield flip, y, x, crop.flip(-1) if flip else crop


def test_every_image_is_one_of_its_crops_and_all_of_them_occur():
    image = pixels(1)[0]
    result = cropped_and_flipped(image.expand(600, -1, -1, -1), seeded(), padding=2)
    seen = [
        [(flip, y, x) for flip, y, x, crop in candidates(image, 2) if torch.equal(crop, augmented)]
        for augmented in result
    ]
    assert all(len(found) == 1 for found in seen)
    assert len({found[0] for found in seen}) == 50
    mirrored = sum(found[0][0] for found in seen)
    assert 240 < mirrored < 360


def test_the_generator_decides_alone():
    images = pixels()
    state = torch.get_rng_state()
    first = cropped_and_flipped(images, seeded(3))
    assert torch.equal(first, cropped_and_flipped(images, seeded(3)))
    assert not torch.equal(first, cropped_and_flipped(images, seeded(4)))
    assert torch.equal(torch.get_rng_state(), state)


def test_without_padding_and_flip_nothing_changes():
    images = pixels()
    assert torch.equal(cropped_and_flipped(images, seeded(), padding=0, flip=False), images)


def test_a_resized_crop_of_the_whole_image_is_the_image():
    images = pixels()
    whole = random_resized_crops(images, seeded(), 8, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=False)
    assert torch.equal(whole, images)
    flipped = random_resized_crops(images, seeded(), 8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(flipped, images, strict=True)]
    straight = [torch.equal(a, b) for a, b in zip(flipped, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, straight, strict=True))
    assert 0 < sum(mirrored) < 6


@pytest.mark.parametrize("size", [(24, 20), (48, 48)])
def test_resized_crops_are_the_boxes_cut_out_and_resized(size):
    """An image at a time: cut, resize, round. Parts are never larger than the result, so anti-aliasing is nothing."""
    images = torch.randint(0, 256, (40, 3, 24, 20), generator=seeded(2)).to(torch.uint8)
    boxes = crop_boxes(torch.tensor([24, 20]).expand(40, 2), seeded(5))
    result = random_resized_crops(images, seeded(5), size, flip=False)
    assert result.shape == (40, 3, *size)
    assert result.dtype == torch.uint8
    for image, (top, left, height, width), found in zip(images, boxes.tolist(), result, strict=True):
        cut = image[None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(cut, size, mode="bilinear", antialias=True, align_corners=False)[0]
        assert (found - expected).abs().max() <= 0.51


def first_that_fits(height, width, shares, places, ratio=(3 / 4, 4 / 3)):
    """RandomResizedCrop as torchvision has it, an image at a time, with the given draws for its ten tries."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for share, position in zip(*shares, strict=True):
        area, aspect = height * width * (0.08 + 0.92 * share), math.exp(low + (high - low) * position)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return [int(places[0] * (height - h + 1)), int(places[1] * (width - w + 1)), h, w]
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return [(height - h) // 2, (width - w) // 2, h, w]


def test_boxes_are_those_of_an_image_at_a_time():
    sizes = torch.randint(1, 700, (3000, 2), generator=seeded(1))
    boxes = crop_boxes(sizes, seeded(2))
    again = seeded(2)
    shares, places = torch.rand(2, 3000, 10, generator=again), torch.rand(2, 3000, 1, generator=again)
    expected = [
        first_that_fits(*size, shares[:, i].tolist(), places[:, i, 0].tolist()) for i, size in enumerate(sizes.tolist())
    ]
    # single against double precision: now and then a side or a place is rounded the other way
    differences = (boxes - torch.tensor(expected)).abs()
    assert differences.max() <= 1
    assert (differences > 0).any(1).sum() <= 3
    assert ((boxes[:, :2] >= 0) & (boxes[:, 2:] > 0) & (boxes[:, :2] + boxes[:, 2:] <= sizes)).all()


def test_areas_aspects_and_places_of_boxes_are_uniform():
    count, height, width = 20_000, 1000, 1100
    scale, ratio = (0.1, 0.5), (0.8, 1.25)  # all of these fit at the first try
    sizes = torch.tensor([height, width]).expand(count, 2)
    top, left, h, w = crop_boxes(sizes, seeded(), scale=scale, ratio=ratio).double().T
    aspect = (w / h).log() / math.log(1.25)
    for value, low, high in (
        (h * w / (height * width), *scale),
        (aspect, -1.0, 1.0),
        (top / (height - h), 0.0, 1.0),
        (left / (width - w), 0.0, 1.0),
    ):
        # a uniform variable's quantiles are its share of the range; the Kolmogorov distance is below 1.95 / sqrt(n)
        expected = low + (high - low) * (torch.arange(count) + 0.5) / count
        assert (value.sort().values - expected).abs().max() < 0.02 * (high - low)
    assert (
        torch.corrcoef(torch.stack([h * w, aspect, top / (height - h), left / (width - w)]))
        .sub(torch.eye(4))
        .abs()
        .max()
        < 0.03
    )


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 1000), [0, 493, 10, 13]),  # as wide as 4/3 of its height
        ((1000, 10), [493, 0, 13, 10]),  # as high as 4/3 of its width
        ((1, 1000), [0, 499, 1, 1]),
    ],
)
def test_where_no_try_fits_the_box_is_in_the_middle(size, box):
    # all of the area, which no aspect within the ratio fits into
    boxes = crop_boxes(torch.tensor([size, (7, 7)]), seeded(), scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3))
    assert boxes[0].tolist() == box
    square = crop_boxes(torch.tensor([(7, 7)]), seeded(), scale=(4.0, 4.0))
    assert square.tolist() == [[0, 0, 7, 7]]  # within the ratio: all of it


def test_the_generator_decides_alone_about_boxes():
    sizes = torch.tensor([[50, 80], [90, 30]]).repeat(10, 1)
    state, first = torch.get_rng_state(), crop_boxes(sizes, seeded(3))
    assert torch.equal(first, crop_boxes(sizes, seeded(3)))
    assert not torch.equal(first, crop_boxes(sizes, seeded(4)))
    assert torch.equal(torch.get_rng_state(), state)
    assert crop_boxes(sizes[:0], seeded()).shape == (0, 4)


def test_each_augmentation_by_its_name():
    images = pixels(count=30)
    flipped = augmented(images, "flip", seeded())
    mirrored = sum(torch.equal(a, b.flip(-1)) for a, b in zip(flipped, images, strict=True))
    assert mirrored + sum(torch.equal(a, b) for a, b in zip(flipped, images, strict=True)) == 30
    assert 5 < mirrored < 25
    assert augmented(images, "none", seeded()) is images
    assert torch.equal(augmented(images, "crop-flip", seeded()), cropped_and_flipped(images, seeded(), padding=4))
    crops = augmented(images, "resized-crop-flip", seeded())
    assert torch.equal(crops, random_resized_crops(images, seeded(), 8))
    assert set(AUGMENTATIONS) == {"none", "flip", "crop-flip", "crop-flip-brightness", "resized-crop-flip"}
    with pytest.raises(ValueError, match="augmentation='crop': choose one of none, flip, crop-flip, crop-flip-b"):
        augmented(images, "crop", seeded())


def test_resized_crops_stay_inside_the_image():
    ramp = torch.arange(64).repeat(64, 1).to(torch.uint8).expand(50, 3, 64, 64)
    crops = random_resized_crops(ramp, seeded(), 16, flip=False).int()
    assert crops.shape == (50, 3, 16, 16)
    steps = crops[:, 0].diff(dim=-1)
    assert (steps >= 0).all()  # no crop is mirrored or folded back at a border
    widths = crops[:, 0, 0, -1] - crops[:, 0, 0, 0]
    assert widths.min() < 30 < widths.max() <= 63


def test_the_geometry_of_the_centre_is_torchvisions():
    """Resize rounds the longer side down, CenterCrop rounds halves to even."""
    assert centre(375, 500, 256, 224) == ((256, 341), (16, 58))  # 341.3 -> 341; 58.5 -> 58
    assert centre(500, 333, 256, 224) == ((384, 256), (80, 16))  # 384.4 -> 384
    assert centre(300, 302, 256, 224) == ((256, 257), (16, 16))  # 257.7 -> 257; 16.5 -> 16
    assert centre(256, 259, 256, 224) == ((256, 259), (16, 18))  # 17.5 -> 18
