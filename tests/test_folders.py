"""Folders of images against one image at a time, decoded once or every time; layouts, damage, subsets."""

from __future__ import annotations

import copy
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from lookbehind.data import folders
from lookbehind.data.augment import centre, crop_boxes
from lookbehind.data.folders import ImageFolder, class_folders
from lookbehind.data.readers import image_size, read_image
from lookbehind.data.vision import hold_out, load, reduced

SIZES = [(40, 60), (60, 40), (33, 47), (90, 30), (24, 24), (31, 200)]  # height, width
BYTES = 3 * sum(height * width for height, width in SIZES)


def picture(height, width, seed):
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / f"{number}.png" for number in range(len(SIZES))]
    for number, (path, size) in enumerate(zip(made, SIZES, strict=True)):
        picture(*size, number).save(path)
    return made


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def folder(paths, **options):
    return ImageFolder(paths, torch.arange(len(paths)), **{"size": 16, "resize": 20, **options})


def as_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.fixture
def noted(monkeypatch):
    """The numbers of the files that were decoded, and of those whose header was read."""
    seen = {"read_image": [], "image_size": []}
    for name, function in (("read_image", read_image), ("image_size", image_size)):

        def noting(path, name=name, function=function):
            seen[name].append(int(path.stem))
            return function(path)

        monkeypatch.setattr(folders, name, noting)
    return seen["read_image"], seen["image_size"]


def test_evaluation_takes_the_middle_of_the_resized_image(paths):
    index = torch.tensor([3, 0, 5, 3])
    batch = folder(paths).batch(index)
    assert (batch.shape, batch.dtype) == ((4, 3, 16, 16), torch.uint8)
    for found, number in zip(batch, index.tolist(), strict=True):
        height, width = SIZES[number]
        factor = 20 / min(height, width)
        image = Image.open(paths[number]).resize((int(width * factor), int(height * factor)), Image.Resampling.BILINEAR)
        left, top = round((image.width - 16) / 2), round((image.height - 16) / 2)
        assert torch.equal(found, as_tensor(image.crop((left, top, left + 16, top + 16))))
        target, (top, left) = centre(height, width, 20, 16)
        pixels = as_tensor(Image.open(paths[number]))[None].float()
        whole = torch.nn.functional.interpolate(pixels, target, mode="bilinear", antialias=True)[0]
        middle = whole[:, top : top + 16, left : left + 16]
        assert (found - middle).abs().max() <= 1  # torch's own, up to rounding


def test_training_takes_the_random_boxes_cut_out_of_the_full_image(paths):
    index = torch.arange(6).repeat(5)
    batch = folder(paths).augmented(index, "resized-crop-flip", seeded(3))
    again = seeded(3)
    boxes = crop_boxes(torch.tensor(SIZES)[index], again)
    mirrored = torch.randint(2, (30,), generator=again).tolist()
    assert 5 < sum(mirrored) < 25
    for found, number, (top, left, height, width), mirror in zip(
        batch, index.tolist(), boxes.tolist(), mirrored, strict=True
    ):
        cut = Image.open(paths[number]).crop((left, top, left + width, top + height))
        image = cut.resize((16, 16), Image.Resampling.BILINEAR)
        assert torch.equal(found, as_tensor(ImageOps.mirror(image) if mirror else image))


def test_the_generator_decides_alone(paths):
    images, index, state = folder(paths), torch.arange(6), torch.get_rng_state()
    first = images.augmented(index, "resized-crop-flip", seeded(1))
    assert torch.equal(first, images.augmented(index, "resized-crop-flip", seeded(1)))
    assert not torch.equal(first, images.augmented(index, "resized-crop-flip", seeded(2)))
    assert torch.equal(images.augmented(index, "none", seeded(1)), images.batch(index))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("suffix", ["png", "jpeg"])
def test_images_decoded_once_and_every_time_are_the_same(paths, noted, suffix):
    decoded, _ = noted
    files = [path.with_suffix(f".{suffix}") for path in paths]
    for path, file in zip(paths, files, strict=True):
        Image.open(path).save(file)
    kept, lazy = folder(files, memory=BYTES), folder(files, memory=BYTES - 1)
    for epoch in range(3):
        index = torch.randperm(6, generator=seeded(epoch))
        batches = [images.augmented(index, "resized-crop-flip", seeded(epoch)) for images in (kept, lazy)]
        assert torch.equal(*batches)
        assert torch.equal(kept.batch(index), lazy.batch(index))
    assert sorted(decoded) == sorted([*range(6), *list(range(6)) * 6])  # once by the one, six times by the other


def test_nothing_is_read_before_it_is_needed(paths, noted):
    decoded, headers = noted
    images = folder(paths)
    part = hold_out(images[:4], 2, seed=0)[0]
    assert (decoded, headers) == ([], [])
    numbers = part.labels.tolist()
    part.batch(torch.tensor([1]))
    assert (decoded, sorted(headers)) == ([numbers[1]], numbers)
    lazy = folder(paths, memory=0)
    lazy.batch(torch.tensor([2]))
    assert len(headers) == 2  # without memory there is nothing to decide
    lazy.augmented(torch.tensor([2, 4, 2]), "resized-crop-flip", seeded())
    lazy.augmented(torch.tensor([4]), "resized-crop-flip", seeded())
    assert sorted(headers[2:]) == [2, 4]


def test_the_headers_are_read_only_until_the_memory_is_used_up(paths, noted, monkeypatch):
    monkeypatch.setattr(folders, "CHUNK", 1)
    folder(paths, memory=2 * 40 * 60 * 3 + 1).batch(torch.tensor([5]))
    assert noted[1] == [0, 1, 2]  # the third is one too many


def test_subsets_share_memory_and_what_is_decoded(paths, noted):
    decoded, _ = noted
    first, second, third = 3 * 40 * 60, 3 * 60 * 40, 3 * 33 * 47
    images = folder(paths, memory=first + second + third)
    everything, one = torch.arange(6), torch.tensor([0])
    images.batch(everything)  # all six do not fit
    for part in (images[:2], images[torch.tensor([2])], images[torch.tensor([4])]):  # the last has no room left
        for _ in range(2):
            part.batch(one)
    assert sorted(decoded[6:]) == [0, 2, 4, 4]
    images[1:3].batch(torch.arange(2))  # of these the second is there already
    assert sorted(decoded[10:]) == [1]


def test_subsets_keep_files_and_labels_together(paths):
    images = ImageFolder(paths, torch.tensor([3, 3, 3, 8, 8, 8]), size=16, resize=20)
    whole = images.batch(torch.arange(6))
    for index in (slice(1, 4), torch.tensor([5, 0]), torch.tensor([True, False, False, True, True, False])):
        part = images[index]
        assert isinstance(part, ImageFolder)
        assert part.labels.tolist() == images.labels[index].tolist()
        assert torch.equal(part.batch(torch.arange(len(part))), whole[index])
        assert part.paths == [paths[number] for number in torch.arange(6)[index].tolist()]
    rest, held = hold_out(images, 2, seed=0)
    assert held.labels.tolist() == [3, 8]
    assert sorted(rest.paths + held.paths) == paths
    nested = images[2:][1:3]
    assert torch.equal(nested.batch(torch.arange(2)), whole[3:5])


def test_the_interface_of_a_folder(paths):
    images = folder(paths)
    assert (images.channels, images.prefetch, len(images)) == (3, True, 6)
    assert images.to("meta") is images
    assert images.batch(torch.arange(0)).shape == (0, 3, 16, 16)
    assert images.augmented(torch.arange(0), "resized-crop-flip", seeded()).shape == (0, 3, 16, 16)
    index = torch.arange(6)
    for twin in (copy.deepcopy(images), pickle.loads(pickle.dumps(images))):  # as a worker process gets it
        assert torch.equal(twin.batch(index), images.batch(index))
    standard = ImageFolder(paths, index)
    assert standard.batch(index[:1]).shape == (1, 3, 224, 224)
    assert standard.augmented(index[:1], "resized-crop-flip", seeded()).shape == (1, 3, 224, 224)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
def test_other_modes_become_colour(tmp_path, mode):
    path = tmp_path / f"0.{'jpg' if mode == 'CMYK' else 'png'}"
    picture(30, 30, 0).convert(mode).save(path)
    expected = Image.open(path).convert("RGB").resize((20, 20), Image.Resampling.BILINEAR).crop((2, 2, 18, 18))
    assert torch.equal(folder([path]).batch(torch.tensor([0]))[0], as_tensor(expected))


def test_the_orientation_in_exif_is_left_alone(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture(30, 50, 0).save(tmp_path / "0.jpg", exif=exif)
    assert image_size(tmp_path / "0.jpg") == (30, 50)
    assert read_image(tmp_path / "0.jpg").size == (50, 30)


@pytest.mark.parametrize("memory", [0, None])
def test_a_damaged_image_is_named(paths, memory):
    index = torch.arange(6)
    paths[2].write_bytes(paths[2].read_bytes()[:-400])  # whole header, half the pixels
    with pytest.raises(ValueError, match=r"2\.png: not an image, or a damaged one"):
        folder(paths, memory=memory).batch(index)
    paths[2].write_bytes(b"nothing")
    for take in (lambda f: f.batch(index), lambda f: f.augmented(index, "resized-crop-flip", seeded())):
        with pytest.raises(ValueError, match=r"2\.png: not an image, or a damaged one"):
            take(folder(paths, memory=memory))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_bytes_changed_at_random_give_an_image_or_an_error_that_names_it(tmp_path):
    random, failures = np.random.default_rng(0), 0
    for suffix in ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm"):
        path = tmp_path / f"0.{suffix}"
        picture(30, 40, 0).save(path)
        whole = path.read_bytes()
        for _ in range(20):
            content = np.frombuffer(whole, np.uint8).copy()
            content[random.integers(0, min(len(content), 200), 8)] = random.integers(0, 256, 8)
            path.write_bytes(content.tobytes()[: random.integers(1, len(content))])
            try:
                folder([path], memory=0).batch(torch.tensor([0]))
            except ValueError as error:
                assert str(path) in str(error)  # noqa: PT017
                failures += 1
    assert failures > 70


@pytest.mark.parametrize(
    ("augmentation", "words"),
    [
        ("flip", "'flip' is for images of one size in memory; for image files choose 'resized-crop-flip', or 'none'"),
        ("crop-flip", "choose 'resized-crop-flip', or 'none'"),
        ("crop", "augmentation='crop': choose one of none, flip"),
    ],
)
def test_an_augmentation_that_makes_no_sense_is_refused(paths, augmentation, words):
    with pytest.raises(ValueError, match=words):
        folder(paths).augmented(torch.arange(2), augmentation, seeded())


def test_arguments_that_make_no_sense_are_named(paths):
    for options, words in (
        ({"size": 30}, "size=30, resize=20"),
        ({"size": 0}, "size=0"),
        ({"memory": -1}, "memory=-1"),
    ):
        with pytest.raises(ValueError, match=words):
            folder(paths, **options)
    for labels in (torch.zeros(6), torch.arange(5)):
        with pytest.raises(ValueError, match="6 paths: int64, one label per path"):
            ImageFolder(paths, labels)


# --- ImageNet's layout


@pytest.fixture
def imagenet(tmp_path):
    """Three classes with a few images each, in many spellings; returns the directory."""
    for part, names in (("train", ["b.JPEG", "a.jpg", "c.PNG", "d.webp"]), ("val", ["x.JPEG", "y.Bmp"])):
        for number, wnid in enumerate(["n03", "n01", "n02"]):
            place = tmp_path / "imagenet" / part / wnid
            place.mkdir(parents=True)
            for i, name in enumerate(names[: 4 - number]):
                picture(30 + i, 40, number).save(place / name)
            (place / "notes.txt").write_text("no image")
            (place / ".hidden.jpg").write_text("no image")
    (tmp_path / "imagenet" / "train" / ".cache").mkdir()
    (tmp_path / "imagenet" / "train" / "list.txt").write_text("no class")
    return tmp_path


def test_imagenet_is_a_folder_per_class(imagenet):
    data = load("imagenet", imagenet)
    assert (data.classes, data.channels, len(data.train), len(data.test)) == (3, 3, 9, 6)
    assert (data.mean, data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    root = imagenet / "imagenet" / "train"
    found = [path.removeprefix(f"{root}/") for path in data.train.paths]
    assert found[:6] == ["n01/a.jpg", "n01/b.JPEG", "n01/c.PNG", "n02/a.jpg", "n02/b.JPEG", "n03/a.jpg"]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    last = Image.open(imagenet / "imagenet" / "val" / "n03" / "y.Bmp")
    expected = last.resize((256 * 40 // 31, 256), Image.Resampling.BILINEAR).crop((53, 16, 277, 240))
    assert torch.equal(data.test.batch(torch.tensor([5]))[0], as_tensor(expected))
    small = reduced(data, 3, seed=0)
    assert small.train.labels.tolist() == [0, 1, 2]
    assert small.train.augmented(torch.arange(3), "resized-crop-flip", seeded()).shape == (3, 3, 224, 224)


def test_classes_of_one_part_only_are_named(imagenet):
    root = imagenet / "imagenet"
    (root / "val" / "n02").rename(root / "val" / "n04")
    with pytest.raises(ValueError, match=r"same classes: .*val lacks n02; .*train lacks n04$"):
        load("imagenet", imagenet)
    shutil.rmtree(root / "val" / "n04")
    with pytest.raises(ValueError, match=r"same classes: [^;]*val lacks n02$"):
        load("imagenet", imagenet)


def emptied(root):
    for path in (root / "val" / "n01").iterdir():
        path.unlink()


def flat(root):
    """As the official archive of the validation images is."""
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    picture(30, 30, 0).save(root / "val" / "ILSVRC2012_val_00000001.JPEG")


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (shutil.rmtree, "train", "no such directory"),
        (lambda root: shutil.rmtree(root / "val"), "val", "no such directory"),
        (flat, "val", "for images in a folder per class and found none"),
        (emptied, "val", "for images in n01 and found none"),
    ],
)
def test_missing_images_are_named_with_directory_layout_and_address(imagenet, change, where, words):
    root = imagenet / "imagenet"
    change(root)
    with pytest.raises(FileNotFoundError) as error:
        load("imagenet", imagenet)
    text = str(error.value)
    assert f"looked in {root / where}" in text
    assert words in text
    assert f"put its images into {root} as train/<class>/*.JPEG and val/<class>/*.JPEG" in text
    assert text.endswith("https://image-net.org/download.php")


def test_many_missing_names_are_counted(tmp_path):
    for number in range(5):
        (tmp_path / f"class{number}").mkdir()
    with pytest.raises(FileNotFoundError, match=r"in class0, class1, class2 ... \(5 in all\) and found none"):
        class_folders(tmp_path)
