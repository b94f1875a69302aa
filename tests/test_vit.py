"""Vision transformers: checkpoints as plain networks, the images that they want, memory against time."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image
from test_folders import as_tensor, imagenet, picture, seeded  # noqa: F401, a fixture
from torch.nn.functional import cross_entropy

from lookbehind.bench.memory import LiveBytes
from lookbehind.data.batches import Batches
from lookbehind.data.folders import ImageFolder
from lookbehind.data.preparation import prepared
from lookbehind.data.vision import Images, VisionData, load
from lookbehind.experiments.paper.catalogue import experiment
from lookbehind.experiments.paper.checkpoints import TINY_VIT
from lookbehind.experiments.paper.numbers import TABLE_4_VIT
from lookbehind.experiments.paper.plan import Reproduction, runs_of, unfinished
from lookbehind.experiments.paper.reproduce import reproduce
from lookbehind.experiments.paper.scales import PAPER
from lookbehind.measures.curvature import _Product
from lookbehind.models import build
from lookbehind.models.vit import vision_transformer
from lookbehind.optim.ascent import asam, leaves_of
from lookbehind.training.evaluate import evaluate
from lookbehind.training.loop import Parts, Training
from lookbehind.training.run import Run
from lookbehind.training.settings import Settings
from lookbehind.training.train import Storage, train

TINY = {"image": 8, "patch": 4, "width": 16, "layers": 2, "heads": 2}


def saved(directory, *, classes=10, **options):
    torch.manual_seed(0)
    vision_transformer(classes, **TINY, **options).save(directory)
    return directory


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("colour"))


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("grey"), channels=1)


def images(count=4, channels=3):
    return torch.randn(count, channels, 8, 8, generator=seeded())


# --- checkpoints


def test_a_checkpoint_gives_the_logits_of_transformers(colour, capfd):
    model = build(f"hf:{colour}", classes=10)
    assert capfd.readouterr().err == ""
    own = transformers.ViTForImageClassification.from_pretrained(colour)
    assert torch.equal(model(images()), own(images()).logits)
    turned = model.to(memory_format=torch.channels_last)
    logits = turned(images().contiguous(memory_format=torch.channels_last))
    assert torch.allclose(logits, own(images()).logits, atol=1e-6)
    assert sorted(path.name for path in colour.iterdir()) == ["config.json", "model.safetensors"]


def test_another_number_of_classes_makes_a_new_head_from_the_seed(colour):
    def made(seed):
        torch.manual_seed(seed)
        with pytest.warns(UserWarning, match=r"fresh random values in classifier.bias, classifier.weight.*7 classes"):
            return build(f"hf:{colour}", classes=7).state_dict()

    first, again, other = made(0), made(0), made(1)
    assert first["classifier.classifier.weight"].shape == (7, 16)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, other[name]) == (name != "classifier.classifier.weight")


def test_half_precision_is_read_as_float32(colour, tmp_path):
    transformers.ViTForImageClassification.from_pretrained(colour, dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in build(f"hf:{tmp_path}", classes=10).parameters()} == {torch.float32}


def bert(directory):
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9
    )
    transformers.BertModel(config).save_pretrained(directory)


def pickled(directory):
    torch.save({}, saved(directory) / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda directory: None, "no such directory, nor can it be a name on the hub"),
        (bert, "a bert, which is no image classifier"),
        (pickled, "no file named model.safetensors.* other formats and code .* are not read"),
        (lambda directory: directory.mkdir(), "A checkpoint has config.json and model.safetensors"),
        (lambda directory: saved(directory, channels=1), "made for images of 1 channels; these have 3"),
    ],
)
def test_what_is_no_checkpoint_of_an_image_classifier_is_told(make, words, tmp_path):
    make(tmp_path / "model")
    with pytest.raises((ValueError, FileNotFoundError), match=rf"^model=hf:{tmp_path}/model: .*{words}"):
        build(f"hf:{tmp_path}/model", classes=10)


def test_a_hub_that_does_not_answer_and_missing_transformers_are_told(monkeypatch):
    def silent(*_, **options):
        assert options["trust_remote_code"] is False
        raise OSError("We couldn't connect.\nCheck your connection")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", silent)
    with pytest.raises(FileNotFoundError, match=r"no such directory, and from the hub: We couldn't connect\. Give the"):
        build("hf:google/vit-base-patch16-224", classes=1000)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'lookbehind[vit]'")):
        build("hf:google/vit-base-patch16-224", classes=1000)
    with pytest.raises(ValueError, match=r"model='hf:': choose one of .* or hf:NAME_OR_DIRECTORY"):
        build("hf:", classes=10)


def test_asam_scales_what_transformers_calls_a_weight(colour):
    model = build(f"hf:{colour}", classes=10)
    names = [name for name, _ in model.named_parameters()]
    leaves = leaves_of([{"params": list(model.parameters()), "param_names": names}], 0.5)
    scaled = {leaf.name for leaf in leaves if asam().scales(leaf)}
    assert scaled == {name for name in names if name.endswith(".weight")}
    unscaled = {name.split("vit.")[-1] for name in set(names) - scaled if not name.endswith(".bias")}
    assert unscaled == {"embeddings.cls_token", "embeddings.position_embeddings"}
    assert any("layernorm" in name for name in scaled)


def test_vit_b_16_has_as_many_parameters_as_in_the_paper():
    with torch.device("meta"):
        model = vision_transformer(1000, image=224, patch=16, width=768, layers=12, heads=12)
    assert sum(p.numel() for p in model.parameters()) == 86_567_656


def test_the_curvature_of_attention_is_measured():
    """H v against a difference of gradients."""
    torch.manual_seed(0)
    model = vision_transformer(10, **TINY).double()
    batch = images().double(), torch.arange(4)

    def loss(network, some):
        return cross_entropy(network(some[0]), some[1])

    def gradient():
        found = torch.autograd.grad(loss(model, batch), list(model.parameters()))
        return torch.cat([g.flatten() for g in found])

    product = _Product(model, loss, lambda: [batch])
    way = torch.randn(product.size, dtype=torch.float64, generator=seeded())
    pieces = way.split([p.numel() for p in model.parameters()])
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for parameter, piece in zip(model.parameters(), pieces, strict=True):
                parameter += step * piece.view_as(parameter)
        ends.append(gradient())
    with torch.no_grad():
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter += 1e-5 * piece.view_as(parameter)
    expected = (ends[0] - ends[1]) / 2e-5
    assert (product(way) - expected).norm() < 1e-6 * expected.norm()


# --- memory


def test_checkpointing_saves_activations_and_changes_no_bit(colour):
    found, peaks = [], []
    for checkpointing in (False, True):
        model = build(f"hf:{colour}", classes=10, checkpointing=checkpointing).train()
        inputs, labels = images(64), torch.arange(64) % 10
        with LiveBytes([inputs, labels, *model.parameters()]) as live:
            cross_entropy(model(inputs), labels).backward()
        found.append([p.grad for p in model.parameters()])
        peaks.append(live.peak)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    assert peaks[1] < 0.7 * peaks[0]
    with pytest.raises(ValueError, match="checkpointing=True with model='convnet': only networks of transformers"):
        build("convnet", classes=10, checkpointing=True)


@pytest.mark.parametrize("method", ["sgd", "lookbehind-asam-switching", "lookahead-sgd"])
def test_a_run_that_saves_memory_is_the_same_run(method, grey, tmp_path):
    run = {"model": f"hf:{grey}", "method": method, "k": 2, "epochs": 1, "preparation": "vit", "precision": "bf16"}
    plain, saving = Run(**run), Run(**run, checkpointing=True, offload=True)
    assert plain.id == saving.id
    whole = train(plain, Storage(out=tmp_path / "plain"))
    half = train(saving, Storage(out=tmp_path / "saving"), stop=lambda: True)
    assert half == []
    resumed = train(plain, Storage(out=tmp_path / "saving"))
    for one, two in zip(whole, resumed, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}
    measured = evaluate(tmp_path / "saving" / "runs" / saving.id)
    assert measured["test_accuracy"] == whole[-1]["test_accuracy"]
    assert Training(saving, load("digits")).optimizer.__dict__.get("offload", method == "sgd")


# --- preparation


def test_images_of_a_folder_are_resized_bicubically_and_the_middle_is_taken(imagenet):  # noqa: F811
    data = prepared(load("imagenet", imagenet), "vit")
    path = imagenet / "imagenet" / "val" / "n03" / "y.Bmp"
    whole = Image.open(path)  # 31 high, 40 wide
    resized = whole.resize((248 * 40 // 31, 248), Image.Resampling.BICUBIC)
    middle = resized.crop((48, 12, 48 + 224, 12 + 224))
    index = torch.tensor([5])
    assert torch.equal(data.test.batch(index)[0], as_tensor(middle))
    inputs, _ = next(iter(Batches(data.test[index], data.mean, data.std, 1).plain()))
    expected = (as_tensor(middle).double() / 255 - 0.5) / 0.5
    assert (inputs[0] - expected).abs().max() < 1e-6


def test_random_parts_of_a_folders_images_are_resized_bicubically(tmp_path):
    picture(50, 70, 0).save(tmp_path / "0.png")
    files = ImageFolder([tmp_path / "0.png"], torch.tensor([0]), size=16, resize=20)
    index = torch.tensor([0])
    smooth, plain = (
        some.augmented(index, "resized-crop-flip", seeded()).int() for some in (files.resized_by(20, "bicubic"), files)
    )
    assert 0 < (smooth - plain).abs().max() < 60  # the same part, other pixels
    assert (files.resize, files.resampling) == (20, "bilinear")  # as before
    with pytest.raises(ValueError, match="resampling='cubic': choose one of 'bilinear', 'bicubic'"):
        files.resized_by(20, "cubic")


def test_images_in_memory_are_normalised_and_keep_their_size():
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    some = Images(pixels, torch.tensor([0]))
    data = prepared(VisionData(some, some, 10, (0.3,), (0.2,)), "vit")
    inputs, _ = next(iter(Batches(data.test, data.mean, data.std, 1).plain()))
    assert inputs.flatten().tolist() == pytest.approx([-1.0, -0.6, 1.0], abs=1e-6)
    assert prepared(data, "usual") is data


def test_reserved_images_are_those_of_the_network_that_was_pre_trained():
    data = load("digits")
    before = Parts(Run(train_images=100), data).train.images
    pixels = {tuple(image.flatten().tolist()) for image in before.pixels}
    for seed in (0, 3):
        rest = Parts(Run(reserved=100, train_images=150, validation=50, seed=seed), data)
        for part in (rest.train.images, rest.validation.images):
            assert not pixels & {tuple(image.flatten().tolist()) for image in part.pixels}
    with pytest.raises(ValueError, match="reserved=300: none of 300 training images would be left"):
        Parts(Run(reserved=300), data)


# --- table 4


def test_the_settings_of_table_4():
    task = PAPER.task("in-vit")
    run = task.settings.run("lookbehind-asam-switching:k=2,alpha=0.8", 0).filled
    assert (run.model, run.data, run.preparation) == ("hf:google/vit-base-patch16-224", "imagenet", "vit")
    assert (run.epochs, run.batch_size, run.lr, run.schedule, run.momentum, run.weight_decay) == (
        *(15, 450, 0.001, "constant", 0.9, 1e-4),
    )
    assert (run.rho, run.asam_rho, run.augmentation) == (0.05, 0.1, "resized-crop-flip")
    found = {arm.name: arm.candidates for arm in experiment("table4-vit").arms(task, PAPER)}
    assert found["SAM"] == ("sam:rho=0.05",)
    assert found["ASAM"] == ("asam:rho=0.1", "asam:rho=0.2", "asam:rho=0.5")
    assert found["Lookbehind-ASAM, adaptive alpha"] == ("lookbehind-asam-switching:k=2,alpha=adaptive",)
    assert set(TABLE_4_VIT) == set(found) - {"SGD, fine-tuned"}
    assert {row["ViT-B/16"] for row in TABLE_4_VIT.values()} == {"81.79", "81.80", "81.84", "81.85", "81.87", "81.89"}


def test_table_4_at_the_smallest_scale(tmp_path):
    wanted = Reproduction(experiments=("table4-vit",), scale="smoke", seeds=1, jobs=1, storage=Storage(out=tmp_path))
    page = reproduce(wanted)["table4-vit"]
    found = json.loads((page / "results.json").read_text())
    assert [line[0] for line in found["tables"][0]["lines"]] == [
        *("SGD, the checkpoint itself", "SGD, fine-tuned"),
        *("SAM", "Lookbehind-SAM", "Lookbehind-SAM, adaptive alpha"),
        *("ASAM", "Lookbehind-ASAM", "Lookbehind-ASAM, adaptive alpha"),
    ]
    assert len(found["verdicts"]) == 2 * 4
    assert unfinished(wanted) == []
    # the first row is the checkpoint, bit for bit; the second has moved away from it
    start = build(f"hf:{tmp_path}/checkpoints/vit-digits", classes=10, channels=1).state_dict()
    task = wanted.at.task("in-vit")
    for candidate, same in (("sgd:lr=0,gradients=1", True), ("sgd", False)):
        weights = torch.load(wanted.storage.directory(task.settings.run(candidate, 0)) / "weights.pt")
        assert all(torch.equal(value, start[name]) for name, value in weights.items()) is same


def test_another_checkpoint_is_taken_where_a_change_names_it(grey, tmp_path):
    storage = Storage(out=tmp_path)
    wanted = Reproduction(
        experiments=("table4-vit",), scale="smoke", change=(f"model=hf:{grey}",), jobs=1, seeds=1, storage=storage
    )
    assert {run.model for run, _ in runs_of(wanted)} == {f"hf:{grey}"}
    reproduce(replace(wanted, shard="1/10"))  # one run of ten
    assert not (tmp_path / "checkpoints").exists()


def test_a_checkpoint_that_is_trained_before_is_the_same_every_time(tmp_path):
    settings = Settings(data="digits", train_images=100, epochs=2, preparation="vit")
    checkpoint = replace(TINY_VIT, name="trained", pretraining=settings)
    assert checkpoint.images == 100
    told, made = [], []
    for out in (tmp_path / "a", tmp_path / "b"):
        for _ in range(2):  # the second time it is there already
            checkpoint.make(Storage(out=out), told.append)
        made.append(build(checkpoint.model(out), classes=10, channels=1).state_dict())
    assert [notice.text.partition(",")[0] for notice in told] == [
        "pre-training trained: epoch 1 of 2",
        "pre-training trained: epoch 2 of 2",
    ] * 2
    untrained = build(f"hf:{tmp_path}/a/checkpoints/trained-untrained", classes=10, channels=1).state_dict()
    for name, value in made[0].items():
        assert torch.equal(value, made[1][name])
        assert not torch.equal(value, untrained[name])


# --- benchmark


def test_the_benchmark_of_memory_counts_buffers():
    path = Path(__file__).parent.parent / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("benchmarks_memory", path)
    bench = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench  # dataclasses look there
    spec.loader.exec_module(bench)
    sgd, sam, waiting = (
        bench.measured(case, "tiny", 2, "cpu")
        for case in (bench.Case("sgd"), bench.Case("sam"), bench.Case("sam", offload=True))
    )
    size = sgd["weights"]
    assert (sam["peak"] - sgd["peak"]) / size == pytest.approx(1.0, abs=0.02)
    assert (waiting["peak"] - sgd["peak"]) / size == pytest.approx(0.0, abs=0.02)
    assert (sam["waits"], waiting["waits"]) == (0, size)
    assert bench.Case("sam", offload=True).name == "sam, offload"
