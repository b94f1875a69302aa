"""Data sets: small slices in the official formats, damaged and hostile files, splits."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from lookbehind.data import readers
from lookbehind.data.augment import AUGMENTATIONS, augmented
from lookbehind.data.pickles import read_pickle
from lookbehind.data.readers import read_digits, read_image
from lookbehind.data.vision import SETS, Images, hold_out, load, reduced

SHARED = Path(__file__).parent.parent.parent / "shared" / "data"


def official_pickle(value):
    """As Python 2 wrote CIFAR's files: binary strings, and arrays through numpy.core.multiarray._reconstruct."""
    return b"\x80\x02" + _saved(value) + b"."


def _saved(value):
    if isinstance(value, np.ndarray):
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(b"J" + struct.pack("<i", size) for size in value.shape)
        data = value.tobytes()
        body = b"(K\x01(" + shape + b"t" + dtype + b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"
        return b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + body
    if isinstance(value, dict):
        return b"}(" + b"".join(_saved(k) + _saved(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_saved, value)) + b"e"
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    return b"J" + struct.pack("<i", value)


def cifar_part(count, seed, classes, label):
    random = np.random.default_rng(seed)
    return {
        "data": random.integers(0, 256, (count, 3072), dtype=np.uint8),
        label: random.integers(0, classes, count).tolist(),
        "batch_label": "a part",
    }


@pytest.fixture
def cifar(tmp_path):
    """CIFAR-10 and CIFAR-100 with a few images per file; returns the directory and the parts."""
    parts = {}
    for i, file in enumerate(SETS["cifar10"].files):
        parts[file] = cifar_part(4, i, 10, "labels")
    for i, file in enumerate(SETS["cifar100"].files):
        parts[file] = cifar_part(6, i, 100, "fine_labels")
    for file, part in parts.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(official_pickle(part))
    return tmp_path, parts


@pytest.mark.filterwarnings("ignore:not the official files")
def test_cifar_is_read_in_the_official_order(cifar):
    directory, parts = cifar
    data = load("cifar10", directory)
    assert (len(data.train), len(data.test), data.classes, data.channels) == (20, 4, 10, 3)
    second = parts["cifar-10-batches-py/data_batch_2"]
    assert np.array_equal(data.train.pixels[4:8].numpy().reshape(4, 3072), second["data"])
    assert data.train.labels[4:8].tolist() == second["labels"]
    fine = load("cifar100", directory)
    assert fine.test.labels.tolist() == parts["cifar-100-python/test"]["fine_labels"]


def test_files_that_are_not_the_official_ones_are_named(cifar):
    with pytest.warns(UserWarning, match=r"not the official files.*cifar-100-python/train"):
        load("cifar100", cifar[0])


class Hostile:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def hostile_build(target):
    """A pickle that tries to change the functions which it is given."""
    return b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(N}U\x0c__defaults__U\x01xst\x86b."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda t: pickle.dumps(Hostile(t), protocol=2), r"posix.system, which CIFAR's files do not contain"),
        (lambda t: b"\x80\x02cbuiltins\neval\nU\x011\x85R.", "builtins.eval"),
        (
            lambda t: (
                b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R."
            ),
            "shape",
        ),
        (lambda t: b"\x80\x02cnumpy\ndtype\nU\x01OK\x00K\x01\x87R.", "type 'O'"),
        (hostile_build, "damaged"),
        (lambda t: official_pickle({"data": np.zeros((2, 3072), np.uint8)})[:-50], "damaged"),
        (lambda t: b"", "damaged"),
        (lambda t: b"\x80\x02K\x01.", "a int where CIFAR's files have a dict"),
    ],
)
def test_a_hostile_or_damaged_pickle_executes_nothing_and_is_named(tmp_path, content, words):
    target, file = tmp_path / "executed", tmp_path / "data_batch_1"
    file.write_bytes(content(target))
    with pytest.raises(ValueError, match=words) as error:
        read_pickle(file)
    assert str(file) in str(error.value)
    assert not target.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.update(data=np.zeros((4, 100), np.uint8)),
        lambda part: part.update(labels=[0, 1, 2]),
        lambda part: part.update(labels=[0, 1, 2, 10]),
        lambda part: part.pop("labels"),
    ],
)
@pytest.mark.filterwarnings("ignore:not the official files")
def test_a_cifar_file_with_the_wrong_content_is_named(cifar, change):
    directory, parts = cifar
    part = parts["cifar-10-batches-py/data_batch_3"]
    change(part)
    (directory / "cifar-10-batches-py/data_batch_3").write_bytes(official_pickle(part))
    with pytest.raises(ValueError, match="data_batch_3"):
        load("cifar10", directory)


def idx(array):
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


@pytest.mark.filterwarnings("ignore:not the official files")
def test_fashion_mnist_is_read_from_idx_files(tmp_path):
    random = np.random.default_rng(0)
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    pixels = random.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(5, dtype=np.uint8)))
    data = load("fashion-mnist", tmp_path)
    assert np.array_equal(data.train.pixels[:, 0].numpy(), pixels)
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4]
    for damage in (idx(pixels)[:-30], gzip.compress(b"nothing"), idx(pixels[:, :, 0])):
        (folder / "train-images-idx3-ubyte.gz").write_bytes(damage)
        with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz"):
            load("fashion-mnist", tmp_path)


@pytest.fixture
def tiny(tmp_path):
    """TinyImageNet with three training images and one test image in each of two classes; returns the directory."""
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    notes = []
    for value, wnid in ((60, "n01"), (200, "n02")):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (64, 64), (value, value, 10 * i)).save(images / f"{wnid}_{i}.JPEG")
        Image.new("L", (64, 64), value).save(folder / "val" / "images" / f"val_{wnid}.JPEG")
        notes.append(f"val_{wnid}.JPEG\t{wnid}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(notes) + "\n")
    return tmp_path


def test_tiny_imagenet_is_read_from_its_folders_grey_images_too(tiny):
    data = load("tiny-imagenet", tiny)
    assert data.train.pixels.shape == (6, 3, 64, 64)
    assert (data.mean, data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]  # in the order of the sorted folders
    assert data.train.pixels[:, 2].float().mean((1, 2)).tolist() == pytest.approx([0, 10, 20] * 2, abs=3)
    assert data.test.labels.tolist() == [0, 1]
    assert data.test.pixels.float().mean((1, 2, 3)).tolist() == pytest.approx([60, 200], abs=2)
    images = tiny / "tiny-imagenet-200" / "train" / "n01" / "images"
    Image.new("RGB", (64, 32)).save(images / "n01_1.JPEG")
    with pytest.raises(ValueError, match=r"n01_1.JPEG: \(32, 64\) pixels, but .*n01_0.JPEG has \(64, 64\)"):
        load("tiny-imagenet", tiny)
    (images / "n01_1.JPEG").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"n01_1.JPEG: not an image"):
        load("tiny-imagenet", tiny)
    notes = tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    for line in ("val_9.JPEG\tn99\t0\t0\t1\t1\n", "\n"):
        notes.write_text(notes.read_text() + line)
        with pytest.raises(ValueError, match=r"val_annotations.txt: .* names no class of wnids.txt"):
            load("tiny-imagenet", tiny)


@pytest.fixture
def decodings(monkeypatch):
    """The paths that were decoded so far."""
    seen = []

    def noting(path):
        seen.append(path)
        return read_image(path)

    monkeypatch.setattr(readers, "read_image", noting)
    return seen


def same(a, b):
    return all(
        torch.equal(x.pixels, y.pixels) and torch.equal(x.labels, y.labels)
        for x, y in ((a.train, b.train), (a.test, b.test))
    )


def test_tiny_imagenet_is_decoded_once(tiny, decodings, monkeypatch):
    first = load("tiny-imagenet", tiny)
    assert len(decodings) == 8
    second = load("tiny-imagenet", tiny)
    assert len(decodings) == 8
    assert same(first, second)
    folder = tiny / "tiny-imagenet-200"
    assert sorted(p.name for p in folder.iterdir()) == ["decoded.npy", "train", "val", "wnids.txt"]
    second.train.pixels.zero_()  # what a process writes is its own
    assert same(first, load("tiny-imagenet", tiny))
    monkeypatch.chdir(tiny)  # a directory by another name, or moved, has the same files
    assert same(first, load("tiny-imagenet", "."))
    assert len(decodings) == 8


def newer(folder):
    path = folder / "train" / "n01" / "images" / "n01_2.JPEG"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def renamed(folder):
    images = folder / "train" / "n02" / "images"
    (images / "n02_0.JPEG").rename(images / "n02_00.JPEG")


def flipped_bit(folder):
    content = bytearray((folder / "decoded.npy").read_bytes())
    content[-100] ^= 1
    (folder / "decoded.npy").write_bytes(content)


def rewritten(change):
    def damage(folder):
        path = folder / "decoded.npy"
        path.write_bytes(change(path.read_bytes()))

    return damage


def saved(array):
    def damage(folder):
        with (folder / "decoded.npy").open("wb") as file:
            np.save(file, array, allow_pickle=True)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        newer,
        renamed,
        flipped_bit,
        rewritten(lambda content: content[:-1000]),
        rewritten(lambda content: content[:50]),
        rewritten(lambda content: b""),
        rewritten(lambda content: b"PK\x03\x04" + content),
        rewritten(lambda content: b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((  \n"),
        saved(np.zeros((9, 3, 64, 64), np.uint8)),
        saved(np.zeros((9, 3, 64, 64), np.uint8, order="F")),
        saved(np.zeros((9, 3, 64, 64))),
        saved(np.zeros((5, 3, 64, 64), np.uint8)),
        saved(np.array([Hostile("executed")])),
        saved(np.zeros((), np.uint8)),
    ],
)
def test_a_stale_damaged_or_foreign_cache_is_written_again(tiny, decodings, damage):
    first = load("tiny-imagenet", tiny)
    damage(tiny / "tiny-imagenet-200")
    assert same(first, load("tiny-imagenet", tiny))
    assert len(decodings) == 16
    assert same(first, load("tiny-imagenet", tiny))
    assert len(decodings) == 16


def test_a_changed_image_is_decoded_again(tiny):
    load("tiny-imagenet", tiny)
    Image.new("RGB", (64, 64), (5, 5, 5)).save(tiny / "tiny-imagenet-200/train/n02/images/n02_1.JPEG")
    assert load("tiny-imagenet", tiny).train.pixels[4].float().mean().item() == pytest.approx(5, abs=1)


def full_disk(monkeypatch, folder):
    def save(file, *_, **__):
        file.write(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", save)


def read_only(monkeypatch, folder):
    real = Path.open  # as root, whom no mode of a directory stops

    def refusing(self, mode="r", *args, **options):
        if "w" in mode:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", refusing)


def occupied(monkeypatch, folder):
    (folder / "decoded.npy").mkdir()


@pytest.mark.parametrize("hindrance", [full_disk, read_only, occupied])
def test_where_no_cache_can_be_written_the_images_are_decoded_every_time(tiny, decodings, monkeypatch, hindrance):
    folder = tiny / "tiny-imagenet-200"
    before = {path.name for path in folder.iterdir()}
    hindrance(monkeypatch, folder)
    first = load("tiny-imagenet", tiny)
    assert same(first, load("tiny-imagenet", tiny))
    assert len(decodings) == 16
    assert first.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert {path.name for path in folder.iterdir()} - {"decoded.npy"} == before  # no half file is left


@pytest.mark.parametrize("file", ["there", "elsewhere"])
def test_digits_are_those_of_scikit_learn(file, monkeypatch):
    if file == "elsewhere":
        monkeypatch.setattr(readers, "find_spec", lambda name: ModuleSpec(name, None, origin="elsewhere/__init__.py"))
    pixels, labels = read_digits()
    expected = load_digits(return_X_y=True)
    assert (pixels.dtype, labels.dtype) == (torch.float64, torch.int64)
    assert (pixels.numpy() == expected[0]).all()
    assert (labels.numpy() == expected[1]).all()


def test_digits_are_split_by_seed():
    data, again, other = load("digits", seed=1), load("digits", seed=1), load("digits", seed=2)
    assert (len(data.train), len(data.test), data.classes, data.channels) == (300, 1497, 10, 1)
    assert torch.equal(data.train.pixels, again.train.pixels)
    assert not torch.equal(data.train.labels, other.train.labels)
    assert data.train.pixels.max() == 240


def test_a_held_out_part_is_balanced_disjoint_and_drawn_by_seed():
    labels = torch.arange(200) % 5
    images = Images(torch.arange(200, dtype=torch.uint8).view(200, 1, 1, 1), labels)
    rest, held = hold_out(images, 40, seed=0)
    assert held.labels.bincount().tolist() == [8] * 5
    assert sorted([*rest.pixels.flatten().tolist(), *held.pixels.flatten().tolist()]) == list(range(200))
    assert torch.equal(hold_out(images, 40, seed=0)[1].pixels, held.pixels)
    assert not torch.equal(hold_out(images, 40, seed=1)[1].pixels, held.pixels)
    uneven = hold_out(images, 42, seed=0)[1].labels.bincount()
    assert uneven.max() - uneven.min() == 1
    for count in (0, 200, -1):
        with pytest.raises(ValueError, match=f"count={count}"):
            hold_out(images, count, seed=0)


def test_a_held_out_part_is_that_of_a_class_at_a_time():
    """The images of each class in random order: those with the lowest numbers are held out, classes taking turns."""
    labels = torch.randint(0, 7, (100,), generator=torch.Generator().manual_seed(1)) * 3
    images = Images(torch.arange(100, dtype=torch.uint8).view(100, 1, 1, 1), labels)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(5)).tolist()
    seen, numbered = {}, []
    for image in order:
        label = labels[image].item()
        seen[label] = seen.get(label, -1) + 1
        numbered.append((seen[label], len(numbered), image))
    expected = sorted(image for _, _, image in sorted(numbered)[:33])
    assert hold_out(images, 33, seed=5)[1].pixels.flatten().tolist() == expected


def test_images_in_memory_are_a_source_of_batches():
    pixels = torch.randint(0, 256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images, index = Images(pixels, torch.arange(9)), torch.tensor([4, 0, 4])
    assert (images.channels, images.prefetch, len(images)) == (3, False, 9)
    assert torch.equal(images.batch(index), pixels[[4, 0, 4]])
    for augmentation in AUGMENTATIONS:
        found, expected = (
            make(torch.Generator().manual_seed(3))
            for make in (
                lambda generator, name=augmentation: images.augmented(index, name, generator),
                lambda generator, name=augmentation: augmented(pixels[[4, 0, 4]], name, generator),
            )
        )
        assert torch.equal(found, expected)
        assert (found.dtype, found.shape) == (torch.uint8, (3, 3, 8, 8))
    moved = images.to("meta")
    assert (moved.pixels.device.type, moved.labels.device.type) == ("meta", "meta")
    assert torch.equal(images[2:4].pixels, pixels[2:4])


def test_a_slice_of_the_training_data_is_balanced():
    data = load("digits")
    assert torch.bincount(reduced(data, 100, seed=0).train.labels).tolist() == [10] * 10
    assert reduced(data, 300, seed=0) is data


@pytest.mark.parametrize("name", [name for name in SETS if SETS[name].files])
def test_missing_files_are_named_with_directory_and_address(tmp_path, name):
    with pytest.raises(FileNotFoundError) as error:
        load(name, tmp_path, allow_download=False)
    text = str(error.value)
    assert str(tmp_path) in text
    assert SETS[name].remotes[0].url in text
    assert "switched off" in text
    assert Path(next(iter(SETS[name].files))).name in text


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="data='mnist': choose one of digits, cifar10"):
        load("mnist")


def test_images_must_be_bytes_with_as_many_labels():
    with pytest.raises(ValueError, match="uint8"):
        Images(torch.zeros(2, 1, 2, 2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"labels \(3,\)"):
        Images(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3))


@pytest.mark.skipif(not (SHARED / "cifar100.py").exists(), reason="the real CIFAR-100 is not at hand")
def test_the_real_cifar_100(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SHARED / "cifar100.py"), str(tmp_path)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    data = load("cifar100", tmp_path)  # its MD5 is checked: a warning would be an error here
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.train.labels.bincount().tolist() == [500] * 100
    mean = data.train.pixels.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx(data.mean, abs=2e-4)
    assert data.std == (0.2675, 0.2565, 0.2761)
