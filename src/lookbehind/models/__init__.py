"""Networks by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from torch import nn

from lookbehind.models import vit
from lookbehind.models.convnet import ConvNet, PlainConvNet
from lookbehind.models.resnet import ResNet
from lookbehind.models.wide_resnet import WideResNet

MODELS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "convnet": (ConvNet, "3 convolutions, 16-32-32 channels: for 8 x 8 digits"),
    "resnet8-narrow": (partial(ResNet, blocks=(1, 1, 1), width=16), "3 blocks, 16-32-64 channels: CIFAR on a laptop"),
    "plain-convnet": (PlainConvNet, "2 convolutions and a hidden layer, no BatchNorm: CIFAR in seconds"),
    "resnet18": (partial(ResNet, blocks=(2, 2, 2, 2)), "for CIFAR"),
    "resnet34": (partial(ResNet, blocks=(3, 4, 6, 3)), "for CIFAR"),
    "resnet50": (partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=True), "for CIFAR"),
    "resnet18-imagenet": (partial(ResNet, blocks=(2, 2, 2, 2), stem="imagenet"), "for 224 x 224 images"),
    "wrn-28-2": (partial(WideResNet, depth=28, widen=2), "wide ResNet; any wrn-DEPTH-WIDTH with depth 6n + 4"),
    "wrn-28-10": (partial(WideResNet, depth=28, widen=10), "wide ResNet"),
    "wrn-16-1": (partial(WideResNet, depth=16, widen=1), "wide ResNet that trains on a CPU"),
}
CHECKPOINT = f"{vit.PREFIX}NAME_OR_DIRECTORY"


def _wide(name: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    return (int(match[1]), int(match[2])) if match else None


def check_model(name: str) -> None:
    """See to it that there is a network of this name; whether a checkpoint is there shows when it is loaded."""
    if name in MODELS or name.removeprefix(vit.PREFIX) not in ("", name):
        return
    depth, widen = _wide(name) or (0, 0)
    if depth < 10 or (depth - 4) % 6 or not widen:
        raise ValueError(
            f"model={name!r}: choose one of {', '.join(MODELS)}, wrn-DEPTH-WIDTH with a depth of 6n + 4, from 10 on, "
            f"or {CHECKPOINT}, an image classifier of transformers"
        )


def build(name: str, *, classes: int, channels: int = 3, checkpointing: bool = False) -> nn.Module:
    """A freshly initialised network, or a pre-trained one where the name says where it is.

    Args:
        name: one of ``MODELS``, ``wrn-DEPTH-WIDTH``, or ``hf:NAME_OR_DIRECTORY``.
        classes: of the images.
        channels: of the images.
        checkpointing: compute activations again in the backward pass, to save memory; for those of transformers.

    Examples:
        >>> build("wrn-28-10", classes=100)
        >>> build("hf:google/vit-base-patch16-224", classes=1000, checkpointing=True)
    """
    check_model(name)
    if name.startswith(vit.PREFIX):
        classifier = vit.pretrained(name.removeprefix(vit.PREFIX), classes=classes, channels=channels)
        if checkpointing:
            classifier.checkpoint_gradients()
        return classifier
    if checkpointing:
        raise ValueError(f"checkpointing=True with model={name!r}: only networks of transformers, {CHECKPOINT}, can")
    if name in MODELS:
        return MODELS[name][0](classes=classes, channels=channels)
    depth, widen = _wide(name) or (0, 0)
    return WideResNet(classes, depth=depth, widen=widen, channels=channels)
