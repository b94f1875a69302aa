"""Official file formats as tensors: CIFAR's batches, IDX arrays, image files one by one and decoded once for all."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from rich import get_console
from rich.progress import track
from torch import Tensor

from lookbehind.data.files import written_whole
from lookbehind.data.pickles import read_pickle

Bytes = NDArray[np.uint8]
Item = TypeVar("Item")
Result = TypeVar("Result")


def digest_of(*parts: bytes) -> str:
    """One short digest of several."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def read_digits() -> tuple[Tensor, Tensor]:
    """The pixels (N, 64), from 0 to 16, and the labels of scikit-learn's digits.

    From the file inside it: importing scikit-learn takes longer than most trainings with these images.
    """
    package = find_spec("sklearn")
    file = Path(package.origin).parent / "datasets/data/digits.csv.gz" if package and package.origin else None
    if file is None or not file.exists():  # then scikit-learn knows where it is, or Python says what is missing
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        return torch.tensor(pixels), torch.tensor(labels)
    table = torch.from_numpy(np.loadtxt(file, delimiter=","))
    return table[:, :-1], table[:, -1].long()


def read_cifar(files: Sequence[Path], label: str, classes: int) -> tuple[Tensor, Tensor]:
    """The pixels (N, 3, 32, 32) and the labels named ``label`` of CIFAR's files, one after the other."""
    pixels, labels = [], []
    for path in files:
        content = read_pickle(path)
        data, targets = content.get("data"), content.get(label)
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or not isinstance(targets, list):
            raise ValueError(f"{path}: 'data' of (N, 3072) bytes and the list {label!r} are wanted; fetch it again")
        if len(targets) != len(data) or not all(isinstance(t, int) and 0 <= t < classes for t in targets):
            raise ValueError(f"{path}: {len(data)} images, but not as many labels from 0 to {classes - 1}")
        pixels.append(torch.from_numpy(data.reshape(-1, 3, 32, 32)))
        labels.append(torch.tensor(targets))
    return torch.cat(pixels), torch.cat(labels)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """An array in the IDX format of MNIST: two zero bytes, type, number of dimensions, sizes, bytes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error}); fetch it again") from error
    start = 4 + 4 * dimensions
    sizes = struct.unpack(f">{dimensions}I", content[4:start]) if len(content) > start else ()
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - start != math.prod(sizes):
        raise ValueError(f"{path}: not an IDX file of bytes in {dimensions} dimensions; fetch it again")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).reshape(sizes)


# --- image files


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as image:
            yield image
    # Pillow's readers raise one or another of these for damaged files, depending on the format
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not an image, or a damaged one ({error})") from error


def image_size(path: str | Path) -> tuple[int, int]:
    """(height, width) by the header of an image file; nothing is decoded, and EXIF's orientation is left alone."""
    with _opened(path) as image:
        return image.height, image.width


def read_image(path: str | Path) -> Image.Image:
    """An image file in red, green and blue; grey becomes colour."""
    with _opened(path) as image:
        return image.convert("RGB")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``map`` in as many threads as there are cores: Pillow lets other threads run while it decodes or resizes."""
    # a pool per call: threads cost little next to images, and none has to survive a fork or a copy
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(function, items)


def watched(items: Iterable[Item], text: str, total: int) -> Iterable[Item]:
    """The items, under a progress bar that leaves nothing behind; in a log file, where it is empty lines, none."""
    console = get_console()
    return track(items, text, total, transient=True, disable=not (console.is_terminal or console.is_jupyter))


def _decode(paths: Sequence[Path]) -> Bytes:
    """Image files of one size as (1 + N, 3, height, width); the first place is left for the cache's mark."""
    shape = (3, *image_size(paths[0]))
    array = np.empty((1 + len(paths), *shape), np.uint8)

    def one(number: int) -> None:
        pixels = np.asarray(read_image(paths[number])).transpose(2, 0, 1)
        if pixels.shape != shape:
            raise ValueError(f"{paths[number]}: {pixels.shape[1:]} pixels, but {paths[0]} has {shape[1:]}")
        array[1 + number] = pixels

    for _ in watched(in_threads(one, range(len(paths))), f"decoding {len(paths):,} images", len(paths)):
        pass
    return array


def decoded(paths: Sequence[Path], cache: Path) -> Tensor:
    """Image files of one size as uint8 (N, 3, height, width), decoded once and then read from ``cache``.

    The cache is a .npy file of 1 + N images, of which the first is a mark: a digest of the files' names, sizes and
    times, of Pillow's version and of the pixels. With any other mark it is not used and is written again. It is mapped,
    so that processes share its pages, and read once to check it; where it cannot be written, the files are decoded
    every time.
    """
    files = hashlib.sha256(PIL.__version__.encode())
    for path in map(str, paths):
        status = os.stat(path)
        name = path.removeprefix(str(cache.parent))  # the same from wherever the directory is looked at
        files.update(f"\n{name} {status.st_size} {status.st_mtime_ns}".encode())
    array = _cached(cache, len(paths), files.digest())
    if array is None:
        array = _decode(paths)
        array[0] = _mark(array, files.digest())
        _keep(array, cache)
    return torch.from_numpy(array[1:])


def _mark(array: Bytes, files: bytes) -> Bytes:
    digest = hashlib.sha256(files + zlib.crc32(array[1:].data).to_bytes(4, "big")).digest()
    return np.resize(np.frombuffer(digest, np.uint8), array.shape[1:])


def _cached(cache: Path, count: int, files: bytes) -> Bytes | None:
    try:
        # "c": writable, as torch wants it, but what is written stays in this process
        array = np.lib.format.open_memmap(cache, mode="c")
    except Exception:  # not there, not ours, cut short: a damaged header lets numpy raise what its tokenizer raises
        return None
    ours = array.dtype == np.uint8 and array.ndim == 4 and len(array) == 1 + count and array.flags.c_contiguous
    return array if ours and np.array_equal(array[0], _mark(array, files)) else None


def _keep(array: Bytes, cache: Path) -> None:
    # a directory that cannot be written, a full disk: the files are decoded again next time
    with suppress(OSError), written_whole(cache) as file:
        np.save(file, array, allow_pickle=False)
