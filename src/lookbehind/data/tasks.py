"""Streams of tasks for lifelong learning: the classes of a data set, a few at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lookbehind.data.batches import Batches, seed_for
from lookbehind.data.vision import Images, ImageSource, VisionData, hold_out
from lookbehind.optim.checks import count


@dataclass(frozen=True)
class Split:
    """How a data set becomes a stream of tasks."""

    source: str
    """The data set with the images, one of ``SETS``."""
    tasks: int
    classes_per_task: int
    augmentation: str
    """Of the training images."""
    about: str
    images: int | None = None
    """Training images per task where the data set is whole, as in the paper; those held out are not counted."""


STREAMS: dict[str, Split] = {
    "split-digits": Split("digits", 5, 2, "none", "5 tasks of 2 digits: to try things in seconds"),
    "split-cifar100": Split("cifar100", 20, 5, "crop-flip-brightness", "20 tasks of 5 classes", 2250),
    "split-tiny-imagenet": Split("tiny-imagenet", 40, 5, "crop-flip", "40 tasks of 5 classes", 2250),
}
VALIDATION = 0.1  # of each class


@dataclass(frozen=True)
class Task:
    """A few classes: their images, with labels from ``first`` on."""

    number: int
    first: int
    """The label of its first class; the others follow."""
    train: ImageSource
    validation: ImageSource
    test: ImageSource


@dataclass(frozen=True)
class TaskStream:
    """The tasks in the order in which they are learned.

    A class's label is its place in the order of the classes, so that task ``t`` has the labels from
    ``t * classes_per_task`` on.
    """

    tasks: tuple[Task, ...]
    order: tuple[int, ...]
    """The original classes, in the order of the stream."""
    classes_per_task: int
    channels: int
    size: int
    """Height and width of the images."""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def classes(self) -> int:
        """Of the data set: a network has an output for each, also where only the first tasks are learned."""
        return len(self.order)

    def batches(self, images: ImageSource, size: int, seed: int, augmentation: str, device: str) -> Batches:
        """Minibatches of some of the images."""
        return Batches(images.to(device), self.mean, self.std, size, seed, augmentation, device)


def class_order(classes: int, seed: int) -> list[int]:
    """The classes shuffled as La-MAML's code does it, with Python's generator: 23, 8, 11, 7, ... for seed 0 of 100."""
    order = list(range(classes))
    random.Random(seed).shuffle(order)
    return order


def task_stream(
    data: VisionData, classes_per_task: int, seed: int, *, tasks: int | None = None, validation: float = VALIDATION
) -> TaskStream:
    """Divide a data set into tasks.

    Args:
        data: with images in memory.
        classes_per_task: of every task; the number of classes must be a multiple.
        seed: draws the order of the classes, and which training images are held out.
        tasks: use the first so many only; all if not given.
        validation: the share of each class's training images that is held out.

    Examples:
        >>> stream = task_stream(load("cifar100"), 5, seed=0)
        >>> len(stream.tasks), len(stream.tasks[0].train)
        (20, 2250)
    """
    if data.classes % count("classes_per_task", classes_per_task):
        raise ValueError(f"classes_per_task={classes_per_task}: {data.classes} classes cannot be divided by it")
    if not isinstance(data.train, Images):
        raise ValueError("a stream of tasks needs images in memory, not in folders")
    order = class_order(data.classes, seed)
    whole = data.classes // classes_per_task
    if tasks is not None and count("tasks", tasks) > whole:
        raise ValueError(f"tasks={tasks}: {data.classes} classes give {whole} tasks of {classes_per_task}")
    found = []
    for number in range(tasks or whole):
        first = number * classes_per_task
        members = order[first : first + classes_per_task]
        mine = _of_classes(data.train, members, first, data.classes)
        if len(mine.labels.unique()) < classes_per_task:
            raise ValueError(f"task {number + 1}: some of its classes, {members}, have no training images")
        held = max(classes_per_task, round(validation * len(mine)))
        train, kept = hold_out(mine, held, seed_for(seed, "validation", number))
        found.append(Task(number, first, train, kept, _of_classes(data.test, members, first, data.classes)))
    size = int(data.train.pixels.shape[-1])
    return TaskStream(tuple(found), tuple(order), classes_per_task, data.channels, size, data.mean, data.std)


def _of_classes(images: ImageSource, classes: Sequence[int], first: int, known: int) -> ImageSource:
    """The images of some classes, relabelled from ``first`` on, in the order of the data set."""
    labels = images.labels.cpu()
    new = torch.full((known,), -1)
    new[torch.tensor(classes)] = torch.arange(first, first + len(classes))
    relabelled: Tensor = new[labels]
    mine = (relabelled >= 0).nonzero().squeeze(1)
    chosen = images[mine]
    assert isinstance(chosen, Images)
    return Images(chosen.pixels, relabelled[mine])
