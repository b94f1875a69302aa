"""Image data sets: digits, CIFAR-10 and -100, Fashion-MNIST, TinyImageNet in memory, ImageNet from its folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from lookbehind.data.augment import augmented, picked
from lookbehind.data.files import Remote, ensure, md5_of
from lookbehind.data.folders import train_and_test
from lookbehind.data.readers import decoded, digest_of, read_cifar, read_digits, read_idx


class ImageSource(Protocol):
    """Labelled images, wherever they are: what a training loop needs to know of them."""

    @property
    def labels(self) -> Tensor:
        """int64, one per image."""

    @property
    def channels(self) -> int:
        """Of the images: 1 or 3."""

    @property
    def prefetch(self) -> bool:
        """Whether a batch takes so long to prepare that it should be done ahead."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice) -> Self: ...

    def digest(self) -> str:
        """Tells these images from others, quickly: by all labels and some of the pixels, or by the files' names."""

    def to(self, device: torch.device | str) -> Self:
        """The images on a device, if they can be there; else as they are, and the caller moves the batches."""

    def batch(self, index: Tensor) -> Tensor:
        """Images for evaluation: uint8 (n, channels, height, width)."""

    def augmented(self, index: Tensor, augmentation: str, generator: torch.Generator) -> Tensor:
        """Images for training, in the form of ``batch``.

        ``augmentation`` is one of ``AUGMENTATIONS``. All draws come from the generator, so
        that the same index and state of the generator give the same batch.
        """


@dataclass(frozen=True)
class Images:
    """Pixels in memory as uint8, (N, channels, height, width), and labels as int64: an ``ImageSource``."""

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.dim() != 4 or len(self.pixels) != len(self.labels):
            shape, labels = tuple(self.pixels.shape), tuple(self.labels.shape)
            raise ValueError(f"pixels {self.pixels.dtype} {shape} with labels {labels}: uint8 (N, C, H, W) is wanted")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Images:
        return Images(self.pixels[index], self.labels[index])

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.pixels.shape[1]

    @property
    def prefetch(self) -> bool:
        """No: a batch is made faster than it is used."""
        return False

    def digest(self) -> str:
        """By all labels and up to a hundred images."""
        some = self.pixels[:: max(1, len(self) // 100)].contiguous()
        return digest_of(self.labels.cpu().numpy().tobytes(), some.cpu().numpy().tobytes())

    def to(self, device: torch.device | str) -> Images:
        """All pixels and labels on a device, the pixels channels-last: batches are made fastest from those."""
        pixels = self.pixels.to(device).contiguous(memory_format=torch.channels_last)
        return Images(pixels, self.labels.to(device))

    def batch(self, index: Tensor) -> Tensor:
        """The pixels as they are."""
        return picked(self.pixels, index)

    def augmented(self, index: Tensor, augmentation: str, generator: torch.Generator) -> Tensor:
        """The pixels after an augmentation of the whole batch (``augmented``)."""
        return augmented(picked(self.pixels, index), augmentation, generator)


@dataclass(frozen=True)
class VisionData:
    """A training and a test set, with what the pixels are normalised by."""

    train: ImageSource
    test: ImageSource
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.train.channels


Source = TypeVar("Source", bound=ImageSource)


def hold_out(images: Source, count: int, seed: int) -> tuple[Source, Source]:
    """Split ``count`` images off, by seed and balanced over the classes: (the rest, the held-out part)."""
    if not 0 < count < len(images):
        raise ValueError(f"count={count}: of {len(images)} images at least one must stay on each side")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    # within each class the images are numbered in random order; those with the lowest numbers are held out
    labels, by_class = images.labels.cpu()[order].sort(stable=True)
    _, sizes = labels.unique_consecutive(return_counts=True)
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    held = order[torch.argsort(rank, stable=True)[:count]]
    keep = torch.ones(len(images), dtype=torch.bool)
    keep[held] = False
    return images[keep], images[held.sort().values]


# --- readers

IMAGENET_NORMS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _digits(directory: Path, seed: int) -> VisionData:
    pixels, labels = read_digits()
    # 16 grey levels in steps of 15, so that (x / 255) / (16 / 17) is the usual level / 16
    images = Images((pixels.reshape(-1, 1, 8, 8) * 15).to(torch.uint8), labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return VisionData(images[order[:300]], images[order[300:]], 10, (0.0,), (16 / 17,))


def _cifar10(directory: Path, seed: int) -> VisionData:
    folder = directory / "cifar-10-batches-py"
    train = Images(*read_cifar([folder / f"data_batch_{i}" for i in range(1, 6)], "labels", 10))
    test = Images(*read_cifar([folder / "test_batch"], "labels", 10))
    return VisionData(train, test, 10, (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))


def _cifar100(directory: Path, seed: int) -> VisionData:
    folder = directory / "cifar-100-python"
    train, test = (Images(*read_cifar([folder / part], "fine_labels", 100)) for part in ("train", "test"))
    return VisionData(train, test, 100, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def _fashion_mnist(directory: Path, seed: int) -> VisionData:
    def part(name: str) -> Images:
        pixels = read_idx(directory / "fashion-mnist" / f"{name}-images-idx3-ubyte.gz", 3)
        labels = read_idx(directory / "fashion-mnist" / f"{name}-labels-idx1-ubyte.gz", 1)
        return Images(pixels.unsqueeze(1), labels.long())

    return VisionData(part("train"), part("t10k"), 10, (0.2860,), (0.3530,))


def _tiny_imagenet(directory: Path, seed: int) -> VisionData:
    folder = directory / "tiny-imagenet-200"
    # the official order of classes is that of the sorted folders
    wnids = sorted((folder / "wnids.txt").read_text().split())
    number = {wnid: i for i, wnid in enumerate(wnids)}
    train = [(path, number[wnid]) for wnid in wnids for path in sorted((folder / "train" / wnid).glob("images/*.JPEG"))]
    notes = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
    if odd := [note for note in notes if len(note) < 2 or note[1] not in number]:
        raise ValueError(f"{folder / 'val' / 'val_annotations.txt'}: {odd[0]} names no class of wnids.txt")
    test = [(folder / "val" / "images" / note[0], number[note[1]]) for note in notes]
    if not train or not test:
        raise FileNotFoundError(f"looked in {folder} for train/*/images/*.JPEG and val/images, and found no images")
    paths, labels = zip(*train, *test, strict=True)
    images = Images(decoded(paths, folder / "decoded.npy"), torch.tensor(labels))
    return VisionData(images[: len(train)], images[len(train) :], len(wnids), *IMAGENET_NORMS)


def _imagenet(directory: Path, seed: int) -> VisionData:
    folder = directory / "imagenet"
    try:
        train, test, classes = train_and_test(folder / "train", folder / "val")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}. ImageNet cannot be downloaded without an account: put its images into {folder} as "
            "train/<class>/*.JPEG and val/<class>/*.JPEG; their address: https://image-net.org/download.php"
        ) from error
    return VisionData(train, test, classes, *IMAGENET_NORMS)


@dataclass(frozen=True)
class DataSet:
    """Where a data set's files are, and how they are read."""

    read: Callable[[Path, int], VisionData]
    about: str
    files: Mapping[str, str | None] = field(default_factory=dict)
    """Wanted files below the data directory, each with its published MD5 where that is known."""
    remotes: tuple[Remote, ...] = ()
    packed: bool = True
    folder: str = ""


def _fashion_files() -> dict[str, str]:
    return {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }


SETS: dict[str, DataSet] = {
    "digits": DataSet(_digits, "1,797 handwritten digits of 8 x 8, 300 for training; inside scikit-learn"),
    "cifar10": DataSet(
        _cifar10,
        "60,000 colour images of 32 x 32 in 10 classes",
        {
            "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
            "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
            "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
        },
        (Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    ),
    "cifar100": DataSet(
        _cifar100,
        "60,000 colour images of 32 x 32 in 100 classes",
        {
            "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
            "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
        (Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
    ),
    "fashion-mnist": DataSet(
        _fashion_mnist,
        "70,000 grey images of 28 x 28 in 10 classes",
        {f"fashion-mnist/{name}": md5 for name, md5 in _fashion_files().items()},
        tuple(
            Remote(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}", md5)
            for name, md5 in _fashion_files().items()
        ),
        packed=False,
        folder="fashion-mnist",
    ),
    "tiny-imagenet": DataSet(
        _tiny_imagenet,
        "110,000 colour images of 64 x 64 in 200 classes; the official validation part is the test set",
        {f"tiny-imagenet-200/{name}": None for name in ("wnids.txt", "train", "val/val_annotations.txt")},
        (Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    ),
    "imagenet": DataSet(
        _imagenet,
        "colour images of any size in a folder per class, as ImageNet's 1,281,167 in 1,000 classes; obtained by hand",
    ),
}


def load(name: str, directory: str | Path = "data", *, seed: int = 0, allow_download: bool = True) -> VisionData:
    """Read a data set from its official files, fetched first where they are missing.

    Args:
        name: one of ``SETS``.
        directory: where the files are, in their official layout.
        seed: of the split, for data without an official one (digits).
        allow_download: whether missing files may be fetched.

    Examples:
        >>> data = load("cifar10", "data")
        >>> train, validation = hold_out(data.train, 5000, seed=0)
    """
    if name not in SETS:
        raise ValueError(f"data={name!r}: choose one of {', '.join(SETS)}")
    known = SETS[name]
    directory = Path(directory)
    if known.files:
        place = directory / known.folder
        wanted = [file.removeprefix(f"{known.folder}/") for file in known.files]
        ensure(place, wanted, known.remotes, packed=known.packed, allow=allow_download)
        foreign = [f for f, md5 in known.files.items() if md5 is not None and md5_of(directory / f) != md5]
        if foreign:
            warnings.warn(
                f"not the official files, by their MD5, in {directory}: {', '.join(foreign)}; "
                "results may not compare with published ones",
                stacklevel=2,
            )
    return known.read(directory, seed)


def reduced(data: VisionData, count: int, seed: int) -> VisionData:
    """The data with a class-balanced slice of ``count`` training images, drawn by seed."""
    if count == len(data.train):
        return data
    return replace(data, train=hold_out(data.train, count, seed)[1])
