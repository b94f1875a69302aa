"""Minibatches: every image once per epoch, the same for the same seed, whoever prepares them; pooled images."""

from __future__ import annotations

import pytest
import torch

from lookbehind.data.augment import normalised
from lookbehind.data.batches import Batches, generator_for, pooled, seed_for
from lookbehind.data.vision import Images, VisionData

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def images(count=50, size=8):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(count))  # the label tells which image it is


def batches(source=None, **options):
    return Batches(source or images(), MEAN, STD, **{"size": 16, "seed": 3, **options})


def test_an_epoch_has_every_image_once_in_an_order_of_its_own():
    here = batches()
    orders = [torch.cat([labels for _, labels in here.epoch(epoch)]) for epoch in (0, 1)]
    assert len(here) == 4
    for order in orders:
        assert order.sort().values.tolist() == list(range(50))
        assert order.tolist() != list(range(50))
    assert orders[0].tolist() != orders[1].tolist()
    again = torch.cat([labels for _, labels in batches().epoch(1)])
    assert torch.equal(again, orders[1])
    assert [len(labels) for _, labels in here.epoch(0)] == [16, 16, 16, 2]


def test_inputs_belong_to_their_labels_and_are_normalised():
    source = images()
    for inputs, labels in batches().epoch(0):
        expected = normalised(source.pixels[labels], MEAN, STD)
        assert torch.equal(inputs, expected)
        assert inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop-flip"])
def test_an_epoch_can_begin_anywhere(augmentation):
    here = batches(augmentation=augmentation)
    whole = list(here.epoch(5))
    for start in range(4):
        for (x, y), (a, b) in zip(here.epoch(5, start), whole[start:], strict=True):
            assert torch.equal(x, a)
            assert torch.equal(y, b)


class Slow(Images):
    """The same images, prepared ahead."""

    prefetch = True


def test_prefetching_changes_nothing_and_passes_errors_on():
    source = images()
    slow = Slow(source.pixels, source.labels)
    for (x, y), (a, b) in zip(
        batches(slow, augmentation="crop-flip").epoch(2), batches(augmentation="crop-flip").epoch(2), strict=True
    ):
        assert torch.equal(x, a)
        assert torch.equal(y, b)
    with pytest.raises(ValueError, match="augmentation"):
        list(batches(slow, augmentation="unknown").epoch(0))
    some = batches(slow).epoch(0)
    next(some)
    some.close()  # a loop that is left does not hang


def test_evaluation_sees_all_images_in_their_order():
    source = images(1100)
    seen = list(batches(source).plain())
    assert [len(labels) for _, labels in seen] == [500, 500, 100]
    assert torch.equal(torch.cat([labels for _, labels in seen]), torch.arange(1100))
    assert torch.equal(torch.cat([x for x, _ in seen]), normalised(source.pixels, MEAN, STD))


def test_seeds_for_purposes_differ():
    seeds = {
        seed_for(seed, purpose, epoch) for seed in range(5) for purpose in ("order", "slice") for epoch in range(5)
    }
    assert len(seeds) == 50
    assert seed_for(1, "order", 2) == 1493370279577090964
    assert generator_for(1, 2).initial_seed() == seed_for(1, 2)


def test_pooled_images_are_the_means_of_squares():
    source = images(20)
    data = VisionData(source, source, 20, MEAN, STD)
    small = pooled(data, 2).train.pixels
    means = source.pixels.double().unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5))
    assert small.shape == (20, 3, 4, 4)
    assert (small.double() - means).abs().max() <= 0.5
    assert pooled(data, 1) is data
    with pytest.raises(ValueError, match="pool=3: images of 8 x 8 cannot be divided by it"):
        pooled(data, 3)
