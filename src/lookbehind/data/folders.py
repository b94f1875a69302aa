"""Images in files, for data sets that are too large for one tensor: decoded, cut and resized a batch at a time."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import Self

from lookbehind.data.augment import centre, check_augmentation, coins, crop_boxes
from lookbehind.data.readers import Bytes, digest_of, image_size, in_threads, read_image, watched
from lookbehind.optim.checks import one_of

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
CHUNK = 4096  # headers between two looks at the budget

_deciding = threading.Lock()  # here and not in the objects, so that they can be copied and pickled


def physical_memory() -> int:
    """Of this machine, in bytes; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


class _Files:
    """Image files, with the sizes and the decoded images known so far; shared by all subsets."""

    def __init__(self, paths: Sequence[str | Path], memory: int) -> None:
        self.paths = paths
        self.memory = memory
        self.known = torch.zeros(len(paths), 2, dtype=torch.int64)  # height and width; zeros: not read yet
        self.keep = torch.zeros(len(paths), dtype=torch.bool)
        self.kept: dict[int, Bytes] = {}

    def sizes(self, index: Tensor) -> Tensor:
        """(height, width) of every image, by the headers."""
        unknown = index[self.known[index, 0] == 0].unique()
        if len(unknown):
            read = in_threads(image_size, [self.paths[number] for number in unknown.tolist()])
            self.known[unknown] = torch.tensor(list(read))
        return self.known[index]

    def reserve(self, index: Tensor) -> None:
        """Keep these images from now on, if all of them fit beside those that are kept already."""
        new = index[~self.keep[index]].unique()
        free = self.memory - self._bytes(self.known[self.keep])
        # looked at in chunks: of a data set that is far too large only the first headers are read
        chunks = new.split(CHUNK)
        for chunk in watched(chunks, f"reading the sizes of {len(new):,} images", len(chunks)):
            if free <= 0:
                return
            free -= self._bytes(self.sizes(chunk))
        if free >= 0:
            self.keep[new] = True

    @staticmethod
    def _bytes(sizes: Tensor) -> int:
        return 3 * int(sizes.prod(1).sum())

    def image(self, number: int) -> Image.Image:
        """The whole image, decoded now or when it was first used."""
        if number in self.kept:
            return Image.fromarray(self.kept[number])
        image = read_image(self.paths[number])
        if self.keep[number]:
            self.kept[number] = np.array(image)
        return image


class ImageFolder:
    """Labelled image files of any size, an ``ImageSource``.

    For evaluation the shorter side is resized to ``resize`` and the ``size`` x ``size`` in the middle is taken; for
    training a random part is resized to ``size`` x ``size``: both by Pillow, bilinearly or bicubically with
    anti-aliasing, so that they are torchvision's pixels. Batches are on the CPU, and the same whatever ``memory`` is.

    Args:
        paths: the files.
        labels: int64, one per file.
        size: side of the images in a batch.
        resize: shorter side of the image of which the middle is taken; at least ``size``.
        resampling: "bilinear" or "bicubic".
        memory: bytes that decoded images may take. If all images fit, each is decoded once, when it is first used, else
            every time. A quarter of the machine's memory unless given; subsets share it, and each is judged by itself.

    Examples:
        >>> names, paths, labels = class_folders(Path("data/imagenet/train"))
        >>> images = ImageFolder(paths, labels)
        >>> images.batch(torch.arange(64)).shape
        torch.Size([64, 3, 224, 224])
    """

    channels = 3
    prefetch = True

    def __init__(
        self,
        paths: Sequence[str | Path],
        labels: Tensor,
        *,
        size: int = 224,
        resize: int = 256,
        resampling: str = "bilinear",
        memory: int | None = None,
    ) -> None:
        if labels.dtype != torch.int64 or labels.shape != (len(paths),):
            found = f"labels {labels.dtype} {tuple(labels.shape)}"
            raise ValueError(f"{found} with {len(paths)} paths: int64, one label per path, is wanted")
        if memory is not None and memory < 0:
            raise ValueError(f"memory={memory}: a number of bytes is wanted, 0 to keep no image")
        self.labels = labels
        self.size = size
        self._resize_by(resize, resampling)
        self._files = _Files(paths, physical_memory() // 4 if memory is None else memory)
        self._numbers = torch.arange(len(paths))  # of our images among the files
        self._decided = False

    def _resize_by(self, resize: int, resampling: str) -> None:
        if not 0 < self.size <= resize:
            raise ValueError(
                f"size={self.size}, resize={resize}: size must be from 1 to resize, or the middle sticks out"
            )
        one_of("resampling", resampling, tuple(RESAMPLING))
        self.resize, self.resampling = resize, resampling

    def resized_by(self, resize: int, resampling: str) -> Self:
        """The same images, resized otherwise."""
        part = copy.copy(self)
        part._resize_by(resize, resampling)
        return part

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Self:
        part = copy.copy(self)
        part.labels, part._numbers, part._decided = self.labels[index], self._numbers[index], False
        return part

    @property
    def paths(self) -> list[str | Path]:
        """The files, in the order of the labels."""
        return [self._files.paths[number] for number in self._numbers.tolist()]

    def digest(self) -> str:
        """By all labels, and the names of the files and of their classes."""
        names = "\n".join("/".join(Path(path).parts[-2:]) for path in self.paths)
        return digest_of(self.labels.numpy().tobytes(), names.encode(errors="surrogateescape"))

    def to(self, device: torch.device | str) -> Self:
        """These images as they are: the batches are what the caller moves to a device."""
        return self

    def batch(self, index: Tensor) -> Tensor:
        """The images for evaluation: uint8 (n, 3, size, size)."""

        def middle(position: int, image: Image.Image) -> Image.Image:
            (height, width), (top, left) = centre(image.height, image.width, self.resize, self.size)
            resized = image.resize((width, height), RESAMPLING[self.resampling])
            return resized.crop((left, top, left + self.size, top + self.size))

        return self._made(index, middle)

    def augmented(self, index: Tensor, augmentation: str, generator: torch.Generator) -> Tensor:
        """The images for training: uint8 (n, 3, size, size), a pure function of the arguments.

        ``resized-crop-flip`` cuts a random box out of the full image (``crop_boxes``),
        resizes it and mirrors it with probability 1/2; ``none`` is ``batch``.
        """
        check_augmentation(augmentation)
        if augmentation == "none":
            return self.batch(index)
        if augmentation != "resized-crop-flip":
            raise ValueError(
                f"augmentation={augmentation!r} is for images of one size in memory; for image files "
                "choose 'resized-crop-flip', or 'none'"
            )
        self._decide()
        boxes = crop_boxes(self._files.sizes(self._numbers[index]), generator).tolist()
        mirrored = coins(len(boxes), generator).flatten().tolist()

        def part(position: int, image: Image.Image) -> Image.Image:
            top, left, height, width = boxes[position]
            # cut first: resize(box=...) lets pixels around the box in at its edges
            cut = image.crop((left, top, left + width, top + height))
            cut = cut.resize((self.size, self.size), RESAMPLING[self.resampling])
            return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored[position] else cut

        return self._made(index, part)

    def _made(self, index: Tensor, view: Callable[[int, Image.Image], Image.Image]) -> Tensor:
        """A batch of what ``view`` makes of the position in the batch and the whole image, in parallel."""
        self._decide()
        numbers = self._numbers[index].tolist()
        pixels = np.empty((len(numbers), self.size, self.size, 3), np.uint8)

        def one(position: int) -> None:
            pixels[position] = np.asarray(view(position, self._files.image(numbers[position])))

        for _ in in_threads(one, range(len(numbers))):
            pass
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)  # what convolutions call channels-last

    def _decide(self) -> None:
        """Whether to keep what is decoded: asked once, when the first batch is."""
        with _deciding:
            if not self._decided:
                self._files.reserve(self._numbers)
                self._decided = True


def class_folders(folder: Path) -> tuple[list[str], list[str], Tensor]:
    """The names of the classes in ``folder``/<class>/<image>, the files, and their labels: the names' sorted order."""
    if not folder.is_dir():
        raise FileNotFoundError(f"looked in {folder}: no such directory")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    files = [_images(folder / name) for name in names]
    empty = [name for name, found in zip(names, files, strict=True) if not found]
    if empty or not names:
        where = f"in {_few(empty)}" if empty else "in a folder per class"
        raise FileNotFoundError(f"looked in {folder} for images {where} and found none; suffixes: {' '.join(SUFFIXES)}")
    labels = torch.arange(len(names)).repeat_interleave(torch.tensor([len(found) for found in files]))
    return names, [path for found in files for path in found], labels


def _images(folder: Path) -> list[str]:
    names = (name for name in os.listdir(folder) if not name.startswith("."))
    return [os.path.join(folder, name) for name in sorted(names) if name.lower().endswith(SUFFIXES)]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" ... ({len(names)} in all)" if len(names) > 3 else "")


def train_and_test(train: Path, test: Path) -> tuple[ImageFolder, ImageFolder, int]:
    """Two folders of the same classes, and how many these are; the two share one budget of memory."""
    names, paths, labels = class_folders(train)
    others, more_paths, more_labels = class_folders(test)
    lacking, strange = sorted(set(names) - set(others)), sorted(set(others) - set(names))
    if lacking or strange:
        parts = [f"{test} lacks {_few(lacking)}"] * bool(lacking) + [f"{train} lacks {_few(strange)}"] * bool(strange)
        raise ValueError(f"both must have the same classes: {'; '.join(parts)}")
    images = ImageFolder([*paths, *more_paths], torch.cat([labels, more_labels]))
    return images[: len(paths)], images[len(paths) :], len(names)
