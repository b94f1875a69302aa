"""The scales of the experiments: the paper's own, one for a laptop, and one of seconds to see that it works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lookbehind.experiments.paper.checkpoints import SMALL_VIT, TINY_VIT
from lookbehind.experiments.paper.scale import LifelongGrid, Scale, Task, TranslationGrid
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.training.measuring import Measures
from lookbehind.training.settings import Settings
from lookbehind.translation.run import TranslationSettings

CIFAR: dict[str, Any] = {
    "epochs": 200,
    "batch_size": 128,
    "lr": 0.1,
    "schedule": "multistep",
    "milestones": (50, 100, 150),
    "weight_decay": 1e-4,
    "augmentation": "crop-flip",
    "batchnorm": "all",
    "eta": 0.0,
}
IMAGENET: dict[str, Any] = {
    **CIFAR,
    "epochs": 90,
    "batch_size": 400,
    "milestones": (30, 60),
    "augmentation": "resized-crop-flip",
}
FINE_TUNING: dict[str, Any] = {
    "epochs": 15,
    "schedule": "constant",
    "weight_decay": 1e-4,
    "preparation": "vit",
    "rho": 0.05,
    "asam_rho": 0.1,
    "eta": 0.0,
}
COSINE: dict[str, Any] = {
    **CIFAR,
    "schedule": "cosine",
    "milestones": None,
    "lr_changes": "epoch",
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "eta": 0.01,
}
PAPER = Scale(
    name="paper",
    about="the setting of the paper: many days on a GPU",
    tasks=(
        Task("c10-rn34", "CIFAR-10, ResNet-34", Settings(data="cifar10", model="resnet34", **CIFAR), "C10 RN-34"),
        Task("c10-wrn", "CIFAR-10, WRN-28-2", Settings(data="cifar10", model="wrn-28-2", **CIFAR), "C10 WRN-28-2"),
        Task("c100-rn50", "CIFAR-100, ResNet-50", Settings(data="cifar100", model="resnet50", **CIFAR), "C100 RN-50"),
        Task(
            "c100-wrn", "CIFAR-100, WRN-28-10", Settings(data="cifar100", model="wrn-28-10", **CIFAR), "C100 WRN-28-10"
        ),
        Task(
            "in-rn18",
            "ImageNet, ResNet-18",
            Settings(data="imagenet", model="resnet18-imagenet", **IMAGENET),
            "IN RN-18",
            one_k=True,
        ),
        Task(
            "c100-wrn-asam",
            "CIFAR-100, WRN-28-10, set up as in the ASAM paper",
            Settings(data="cifar100", model="wrn-28-10", **COSINE),
            "Table 8",
        ),
        Task(
            "in-vit",
            "ImageNet, ViT-B/16 fine-tuned",
            Settings(
                data="imagenet",
                model="hf:google/vit-base-patch16-224",
                batch_size=450,
                lr=0.001,
                augmentation="resized-crop-flip",
                **FINE_TUNING,
            ),
            "ViT-B/16",
        ),
    ),
    rhos=(0.1, 0.2, 0.4, 1.0, 2.0, 4.0, 10.0, 20.0, 40.0),
    few_rhos=(1.0, 2.0, 4.0, 10.0),
    ks=(2, 5, 10),
    alphas=(0.5, 0.2, 0.8),
    few_alphas=(0.5, 0.2, 0.8),
    larger_k=None,
    switches=(0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875),
    seeds=3,
    measures=Measures(),
    lifelong=LifelongGrid(
        tasks=(
            Task("split-cifar100", "Split-CIFAR100", LifelongSettings(data="split-cifar100"), "Split-CIFAR100"),
            Task(
                "split-tiny-imagenet",
                "Split-TinyImageNet",
                LifelongSettings(data="split-tiny-imagenet"),
                "Split-TinyImageNet",
            ),
        ),
        lrs=(0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001),
        rhos=(0.005, 0.01, 0.05, 0.1),
        ks=(2, 5, 10),
        alphas=(0.1, 0.2, 0.5, 0.8, 1.0),
        meta_ks=(2, 5, 10),
        meta_rhos=(0.005, 0.01, 0.05, 0.1),
    ),
    translation=TranslationGrid(
        (Task("translation", "IWSLT'14, German to English", TranslationSettings(data="iwslt14"), "IWSLT'14"),)
    ),
)
SLICE = Settings(
    data="cifar10",
    model="resnet8-narrow",
    pool=2,
    train_images=2500,
    validation=500,
    epochs=30,
    batch_size=64,
    lr=0.05,
    weight_decay=5e-4,
    augmentation="none",
    batchnorm="all",
    evaluate_every=3,
)


def _slice(settings: Settings) -> str:
    images, size = (settings.train_images or 50_000) - settings.validation, 32 // settings.pool
    data = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}.get(settings.data, settings.data)
    return f"{images:,} images of {data} ({size} x {size})"


def _slice_resnet(settings: Settings) -> str:
    named = {"resnet8-narrow": "narrow ResNet-8", "plain-convnet": "plain convolutional network"}
    model = named.get(str(settings.model), settings.model)
    smoothing = ", label smoothing" if settings.label_smoothing else ""
    return f"{_slice(settings)}, {model}{smoothing}"


def _slice_vit(settings: Settings) -> str:
    return f"{_slice(settings)}, small ViT pre-trained on {settings.reserved:,} others"


def _split_cifar100(settings: LifelongSettings) -> str:
    return f"Split-CIFAR100, {settings.epochs} epochs per task"


LAPTOP = Scale(
    name="laptop",
    about="small enough for hours on two cores",
    tasks=(
        Task("slice", _slice_resnet, SLICE, "C10 RN-34"),
        Task(
            "in-vit",
            _slice_vit,
            Settings(
                **FINE_TUNING,
                data="cifar10",
                pool=2,
                reserved=SMALL_VIT.images,
                train_images=2500,
                validation=500,
                batch_size=64,
                lr=0.001,
                augmentation="flip",
                evaluate_every=3,
            ),
            "ViT-B/16",
            checkpoint=SMALL_VIT,
        ),
        Task(
            "c100-wrn-asam",
            _slice_resnet,
            replace(SLICE, label_smoothing=0.1),
            "Table 8",
        ),
    ),
    rhos=(1.0, 2.0, 4.0),
    few_rhos=(1.0, 2.0, 4.0),
    ks=(2, 5),
    alphas=(0.5, 0.8),
    few_alphas=(0.5,),
    larger_k=10,
    switches=(0.25, 0.5, 0.75),
    seeds=3,
    measures=Measures(sigmas=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5), draws=3),
    lifelong=LifelongGrid(
        tasks=(
            Task(
                "split-cifar100",
                _split_cifar100,
                LifelongSettings(data="split-cifar100", epochs=2, evaluate="seen"),
                "Split-CIFAR100",
            ),
        ),
        lrs=(0.1, 0.03, 0.01),
        rhos=(0.05, 0.01),
        ks=(2,),
        alphas=(0.5,),
        meta_ks=(2,),
        meta_rhos=(0.01,),
    ),
    translation=TranslationGrid(
        (
            Task(
                "translation",
                "Multi30k, German to English, small Transformer",
                TranslationSettings(data="multi30k", gradients=2600, max_tokens=1024, dropout=0.1),
                "IWSLT'14",
            ),
        ),
        lrs=(1.0, 0.5),
    ),
)
TINY = Settings(data="digits", epochs=2, batch_size=100, validation=60, batchnorm="all", evaluate_every=2)
SMOKE = Scale(
    name="smoke",
    about="shows in seconds that everything works, and nothing else",
    judges=False,
    tasks=(
        Task("digits", "digits, 4 x 4, 2 epochs", replace(TINY, pool=2), "C10 RN-34"),
        Task(
            "in-vit",
            "digits, tiny ViT, 2 epochs",
            replace(TINY, **{**FINE_TUNING, "epochs": 2}),
            "ViT-B/16",
            checkpoint=TINY_VIT,
        ),
        Task(
            "c100-wrn-asam",
            "digits, 4 x 4, 2 epochs, label smoothing",
            replace(TINY, pool=2, label_smoothing=0.1),
            "Table 8",
        ),
    ),
    rhos=(1.0, 2.0),
    few_rhos=(1.0, 2.0),
    ks=(2,),
    alphas=(0.5, 0.8),
    few_alphas=(0.5,),
    larger_k=3,
    switches=(0.5,),
    seeds=2,
    measures=Measures(radii=(0.05, 1.0), asam_radii=(0.5, 1.0), sigmas=(0.0, 0.3), draws=1, images=100),
    lifelong=LifelongGrid(
        tasks=(
            Task(
                "split-digits",
                "digits, 3 tasks",
                LifelongSettings(tasks=3, epochs=1, width=4, hidden=8),
                "Split-CIFAR100",
            ),
        ),
        lrs=(0.1, 0.03),
        rhos=(0.05,),
        ks=(2,),
        alphas=(0.5,),
        meta_ks=(2,),
        meta_rhos=(0.05,),
    ),
    translation=TranslationGrid(
        (
            Task(
                "translation",
                "numbers in words",
                TranslationSettings(gradients=12, train_pairs=100, beam=2, max_len=8),
                "IWSLT'14",
            ),
        )
    ),
)
SCALES = {scale.name: scale for scale in (SMOKE, LAPTOP, PAPER)}
