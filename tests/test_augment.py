"""Augmentation of whole batches against an image at a time."""

from __future__ import annotations

import pytest
import torch

from lookbehind.data.augment import cropped_and_flipped, normalised, random_resized_crops, resized_centre


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
    assert torch.allclose(whole, images.float(), atol=1e-3)
    flipped = random_resized_crops(images, seeded(), 8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    mirrored = [torch.allclose(a, b.float().flip(-1), atol=1e-3) for a, b in zip(flipped, images, strict=True)]
    straight = [torch.allclose(a, b.float(), atol=1e-3) for a, b in zip(flipped, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, straight, strict=True))


def test_resized_crops_stay_inside_the_image():
    ramp = torch.arange(64).repeat(64, 1).to(torch.uint8).expand(50, 3, 64, 64)
    crops = random_resized_crops(ramp, seeded(), 16, flip=False)
    assert crops.shape == (50, 3, 16, 16)
    steps = crops[:, 0].diff(dim=-1)
    assert (steps >= -1e-4).all()  # no crop is mirrored or folded back at a border
    widths = crops[:, 0, 0, -1] - crops[:, 0, 0, 0]
    assert widths.min() < 30 < widths.max() <= 63


def test_the_centre_after_resizing():
    image = torch.zeros(1, 3, 20, 40, dtype=torch.uint8)
    image[:, :, :, 10:30] = 200
    centre = resized_centre(image, 10, 8)
    assert centre.shape == (1, 3, 8, 8)
    assert centre.mean().item() == pytest.approx(200, abs=5)
