"""Streams of tasks: their classes, splits and labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lookbehind.data.augment import augmented, brightened
from lookbehind.data.batches import generator_for
from lookbehind.data.tasks import STREAMS, class_order, task_stream
from lookbehind.data.vision import Images, VisionData, load
from lookbehind.lifelong.run import LifelongRun
from lookbehind.models.convnet import StridedConvNet


def numbered(classes: int, per_class: int, tests: int) -> VisionData:
    """Images that say which they are: pixel (0, 0) is the class, (0, 1) the number within it."""

    def part(count: int) -> Images:
        pixels = torch.zeros(classes * count, 3, 8, 8, dtype=torch.uint8)
        labels = torch.arange(classes).repeat(count)  # the classes in turn, as in CIFAR's files
        pixels[:, 0, 0, 0] = labels.to(torch.uint8)
        pixels[:, 0, 0, 1] = torch.arange(count).repeat_interleave(classes).to(torch.uint8)
        return Images(pixels, labels)

    return VisionData(part(per_class), part(tests), classes, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(
    ("classes", "seed", "begins"),
    [
        (100, 0, [23, 8, 11, 7, 48, 13, 1, 91, 94, 54]),
        (100, 1, [53, 37, 65, 51, 4]),
        (200, 0, [131, 181, 22, 172, 144]),
    ],
)
def test_the_order_of_the_classes_is_that_of_la_maml(classes, seed, begins):
    order = class_order(classes, seed)
    assert order[: len(begins)] == begins
    assert sorted(order) == list(range(classes))


def test_a_task_has_its_classes_and_no_others():
    stream = task_stream(numbered(20, 30, 10), 5, seed=3)
    order = class_order(20, 3)
    assert [task.number for task in stream.tasks] == [0, 1, 2, 3]
    for task in stream.tasks:
        assert task.first == 5 * task.number
        for images in (task.train, task.validation, task.test):
            for pixels, label in zip(images.pixels, images.labels, strict=True):
                assert pixels[0, 0, 0] == order[label]  # a label is the place in the order
                assert label // 5 == task.number


def test_a_class_without_training_images_is_named():
    data = numbered(20, 3, 1)
    left = data.train[data.train.labels != 11]
    with pytest.raises(ValueError, match=r"task \d: some of its classes, \[.*\b11\b.*\], have no training images"):
        task_stream(replace(data, train=left), 5, seed=0)


def test_a_tenth_of_each_class_is_held_out_and_nothing_is_lost():
    data = numbered(20, 30, 10)
    for task in task_stream(data, 5, seed=0).tasks:
        assert torch.bincount(task.train.labels)[task.first :].tolist() == [27] * 5
        assert torch.bincount(task.validation.labels)[task.first :].tolist() == [3] * 5
        assert len(task.test) == 50
        seen = {(int(p[0, 0, 0]), int(p[0, 0, 1])) for p in torch.cat([task.train.pixels, task.validation.pixels])}
        assert len(seen) == 150


@pytest.mark.parametrize(
    ("name", "classes", "tests", "tasks", "sizes"),
    [("split-cifar100", 100, 100, 20, (2250, 250, 500)), ("split-tiny-imagenet", 200, 50, 40, (2250, 250, 250))],
)
def test_the_streams_have_the_papers_tasks(name, classes, tests, tasks, sizes):
    """Training, held-out and test images of every task, with 500 training images per class."""
    split = STREAMS[name]
    stream = task_stream(numbered(classes, 500, tests), split.classes_per_task, seed=0)
    assert len(stream.tasks) == split.tasks == tasks
    assert {(len(task.train), len(task.validation), len(task.test)) for task in stream.tasks} == {sizes}
    assert split.images == sizes[0]


def test_the_streams_images_and_networks_are_those_of_the_paper():
    assert {name: (s.source, s.augmentation) for name, s in STREAMS.items() if name != "split-digits"} == {
        "split-cifar100": ("cifar100", "crop-flip-brightness"),
        "split-tiny-imagenet": ("tiny-imagenet", "crop-flip"),
    }
    runs = [
        LifelongRun(data=name, method="er+sgd", seed=0).filled for name in ("split-cifar100", "split-tiny-imagenet")
    ]
    assert [(r.memory, r.epochs, r.batch_size, r.hidden, r.width, r.clip) for r in runs] == [
        (200, 10, 10, 320, 160, 2.0),
        (400, 10, 10, 640, 160, 2.0),
    ]


def test_seeds_draw_other_classes_and_other_held_out_images():
    data = numbered(20, 30, 10)
    one, same, other = (task_stream(data, 5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.tasks[0].validation.pixels, same.tasks[0].validation.pixels)
    assert one.order == same.order != other.order

    def held_out(stream):
        pixels = torch.cat([task.validation.pixels for task in stream.tasks])
        return {(int(p[0, 0, 0]), int(p[0, 0, 1])) for p in pixels}

    assert held_out(one) == held_out(same)
    # three of thirty in each of 20 classes: by chance some are the same, most are not
    assert len(held_out(one) & held_out(other)) < 20


def test_the_first_tasks_do_not_depend_on_how_many_there_are():
    data = numbered(20, 30, 10)
    whole, some = task_stream(data, 5, seed=0), task_stream(data, 5, seed=0, tasks=2)
    assert len(some.tasks) == 2
    assert some.classes == whole.classes == 20  # the network has all outputs
    assert torch.equal(some.tasks[1].train.pixels, whole.tasks[1].train.pixels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes_per_task": 3}, "20 classes cannot be divided"),
        ({"classes_per_task": 5, "tasks": 5}, "give 4 tasks"),
        ({"classes_per_task": 0}, "classes_per_task=0"),
    ],
)
def test_wrong_streams_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        task_stream(numbered(20, 30, 10), **{"seed": 0, **changes})


def test_the_digits_are_a_stream():
    split = STREAMS["split-digits"]
    stream = task_stream(load("digits", seed=0), split.classes_per_task, seed=0)
    assert len(stream.tasks) == split.tasks == 5
    assert sum(len(task.train) + len(task.validation) for task in stream.tasks) == 300


@pytest.mark.parametrize(("classes", "size", "hidden", "count"), [(100, 32, 320, 1_419_940), (200, 64, 640, 2_873_640)])
def test_the_networks_have_the_papers_number_of_parameters(classes, size, hidden, count):
    network = StridedConvNet(classes, size=size, hidden=hidden)
    assert sum(p.numel() for p in network.parameters()) == count
    assert network(torch.zeros(2, 3, size, size)).shape == (2, classes)


def test_the_network_begins_as_he_said():
    torch.manual_seed(0)
    network = StridedConvNet(100)
    for name, value in network.named_parameters():
        if name.endswith("bias"):
            assert not value.any(), name
        else:
            fan_in = value[0].numel()
            assert float(value.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.05), name
            assert abs(float(value.detach().mean())) < 0.05 * (2 / fan_in) ** 0.5, name


def test_a_size_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="size=28"):
        StridedConvNet(10, size=28)


def test_brightness_is_one_factor_per_image_within_its_range():
    pixels = torch.full((2000, 3, 2, 2), 100, dtype=torch.uint8)
    bright = brightened(pixels, generator_for("test"))
    assert bright.dtype == torch.uint8
    assert torch.equal(bright, bright[:, :1, :1, :1].expand_as(bright))
    values = bright[:, 0, 0, 0]
    assert int(values.min()) == 75  # 100 (1 - 63 / 255) = 75.3, rounded down as Pillow does
    assert int(values.max()) == 124
    assert float(values.float().mean()) == pytest.approx(99.5, abs=1)
    white = brightened(torch.full((100, 3, 2, 2), 250, dtype=torch.uint8), generator_for("test"))
    assert int(white.max()) == 255


def test_brightness_equals_pillows():
    from PIL import Image, ImageEnhance

    pixels = torch.randint(256, (3, 3, 5, 5), generator=generator_for("pixels")).to(torch.uint8)
    factors = 1 + 63 / 255 * (2 * torch.rand(3, generator=generator_for("factors")) - 1)
    ours = brightened(pixels, generator_for("factors"))
    for image, factor, found in zip(pixels, factors, ours, strict=True):
        theirs = ImageEnhance.Brightness(Image.fromarray(image.permute(1, 2, 0).numpy())).enhance(float(factor))
        assert torch.equal(found, torch.tensor(list(theirs.tobytes())).view(5, 5, 3).permute(2, 0, 1))


def test_the_streams_augmentation_shifts_mirrors_and_brightens():
    pixels = torch.randint(256, (50, 3, 8, 8), generator=generator_for("pixels")).to(torch.uint8)
    moved = augmented(pixels, "crop-flip", generator_for("draws"))
    generator = generator_for("draws")
    both = augmented(pixels, "crop-flip-brightness", generator)
    assert not torch.equal(both, moved)
    ratio = both.float().sum((1, 2, 3)) / moved.float().sum((1, 2, 3))
    assert 0.74 < float(ratio.min()) < 0.9 < 1.1 < float(ratio.max()) < 1.25
