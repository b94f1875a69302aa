"""The settings of a training, with what is usual for each data set."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import torch

from lookbehind.data.augment import AUGMENTATIONS
from lookbehind.data.preparation import PREPARATIONS
from lookbehind.data.vision import SETS
from lookbehind.models import check_model
from lookbehind.optim.checks import count, fraction, non_negative, one_of
from lookbehind.optim.clipping import clip_norm
from lookbehind.optim.interpolation import following
from lookbehind.training.methods import BASES

if TYPE_CHECKING:
    from lookbehind.training.run import Run

# What is usual: a setting that is None takes its data set's value, or else the common one.
COMMON: dict[str, Any] = {
    "model": "resnet18",
    "epochs": 200,
    "batch_size": 128,
    "augmentation": "crop-flip",
    "lr": 0.1,
    "weight_decay": 5e-4,
    "rho": 0.05,
    "asam_rho": 0.5,
}
USUAL: dict[str, dict[str, Any]] = {
    "digits": {
        "model": "convnet",
        "epochs": 40,
        "batch_size": 64,
        "augmentation": "none",
        "lr": 0.05,
        "weight_decay": 0.0,
    },
    "cifar100": {"rho": 0.1, "asam_rho": 1.0},
    "fashion-mnist": {"epochs": 50},
    "tiny-imagenet": {"epochs": 100, "asam_rho": 1.0},
    "imagenet": {
        "model": "resnet18-imagenet",
        "epochs": 90,
        "batch_size": 400,
        "augmentation": "resized-crop-flip",
        "weight_decay": 1e-4,
        "asam_rho": 1.0,
    },
}
ADAM_LR = 1e-3
WIDEST = 1000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a training is made of, but for its method and its seed. None stands for what is usual with the data set."""

    data: str = "digits"
    """digits, cifar10, cifar100, fashion-mnist, tiny-imagenet or imagenet."""
    model: str | None = None
    """A network of `lookbehind list`, or hf:NAME_OR_DIRECTORY of transformers. Usual for the data set if not given."""
    epochs: int | None = None
    """Passes over the training images. Usual for the data set if not given."""
    gradients: int | None = None
    """Stop after this many gradient evaluations, in place of a number of epochs."""

    rho: float | None = None
    """Radius of an ascent step of SAM and its relatives. Usual for the data set if not given."""
    asam_rho: float | None = None
    """Radius of an ascent step of ASAM and its relatives. Usual for the data set if not given: 0.5 or 1."""
    eta: float = 0.01
    """ASAM scales by |w| + eta."""
    k: int = 5
    """Ascent steps per minibatch of Multistep and Lookbehind; fast steps of Lookahead."""
    alpha: float | Literal["adaptive", "adaptive-per-tensor"] = 0.5
    """How far the slow weights follow, from 0 to 1, or adaptive."""
    micro_batch: int = 32
    """Images per micro-batch of the m- methods."""
    every: int = 1
    """Climb with every so many minibatches only; with the others the base optimizer steps alone. Saves gradients."""
    ascent_part: float = 1.0
    """Compute the first ascent gradient on this part of the minibatch only. Saves as much of a gradient."""
    widen: float = 1.0
    """After the first switch of methods multiply rho, SAM's or ASAM's, by this: sam+sam@20 with 3, say."""
    average: float = 0.0
    """Measure and keep a moving average of the weights with this decay, such as 0.99, in place of the weights."""
    batchnorm: Literal["first", "all"] = "first"
    """Running statistics from the unperturbed pass only, or from all passes as in the authors' code."""

    base: Literal["sgd", "adam", "adamw"] = "sgd"
    """The base optimizer."""
    lr: float | None = None
    """Learning rate. Usual for the data set if not given."""
    momentum: float = 0.9
    """SGD's, or the first of Adam's betas."""
    nesterov: bool = False
    """Nesterov's form of SGD's momentum."""
    weight_decay: float | None = None
    """As the base optimizer defines it: decoupled for adamw. Usual for the data set if not given."""
    batch_size: int | None = None
    """Images per minibatch; the last of an epoch may be smaller. Usual for the data set if not given."""
    schedule: Literal["cosine", "multistep", "step", "constant"] = "cosine"
    """Of the learning rate."""
    milestones: tuple[int, ...] | None = None
    """For multistep: the epochs where the rate falls; the quarters of the training if not given."""
    step_size: int | None = None
    """For step: the rate falls every so many epochs; a third of the training if not given."""
    gamma: float = 0.1
    """For step and multistep: the factor by which it falls."""
    lr_changes: Literal["step", "epoch"] = "step"
    """Is the cosine followed step by step, or epoch by epoch as in the paper's code?"""
    warmup: float = 0.0
    """Epochs in which the learning rate rises from 0."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16, fp16: the forward pass runs under autocast; fp16 with a GradScaler."""
    clip: float | None = None
    """Clip the norm of the gradient of every base step."""
    checkpointing: bool = False
    """Of an hf: model: compute activations again in the backward pass. Saves memory, costs time, changes no result."""
    offload: bool = False
    """Let the slow weights wait in the CPU's memory. Saves the GPU's, costs time, changes no result."""

    train_images: int | None = None
    """Use a class-balanced slice of so many training images, drawn by seed."""
    validation: int = 0
    """Images held out of the training images, class-balanced, by seed."""
    reserved: int = 0
    """Leave out those that a run of seed 0 with so many train_images is trained on: another network was pre-trained."""
    pool: int = 1
    """Average-pool the images by this factor first: 2 makes 16 x 16 out of CIFAR's 32 x 32."""
    augmentation: Literal["none", "flip", "crop-flip", "crop-flip-brightness", "resized-crop-flip"] | None = None
    """Of the training images. Usual for the data set if not given."""
    preparation: Literal["usual", "vit"] = "usual"
    """How images are resized and normalised: usual for the data, or as ViTs want it (224 of 248, mean and std 0.5)."""
    evaluate_every: int = 1
    """Measure on validation and test images every so many epochs, and after the last."""

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: int = 1
    """CPU threads of a run. They are part of it: float32 sums depend on them."""

    def __post_init__(self) -> None:
        one_of("data", self.data, tuple(SETS))
        if self.model is not None:
            check_model(self.model)
        one_of("base", self.base, BASES)
        one_of("schedule", self.schedule, ("cosine", "multistep", "step", "constant"))
        one_of("lr_changes", self.lr_changes, ("step", "epoch"))
        one_of("precision", self.precision, ("fp32", "bf16", "fp16"))
        if self.clip is not None:
            clip_norm(self.clip)
        one_of("batchnorm", self.batchnorm, ("first", "all"))
        if self.augmentation is not None:
            one_of("augmentation", self.augmentation, AUGMENTATIONS)
        one_of("preparation", self.preparation, tuple(PREPARATIONS))
        following(self.alpha)
        for name in ("k", "every", "micro_batch", "pool", "evaluate_every", "threads"):
            count(name, getattr(self, name))
        for name in ("epochs", "gradients", "batch_size", "step_size", "train_images"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        for name in ("validation", "reserved"):
            count(name, getattr(self, name), at_least=0)
        for name in ("rho", "asam_rho", "lr", "weight_decay"):
            if getattr(self, name) is not None:
                non_negative(name, getattr(self, name))
        for name in ("eta", "gamma", "warmup"):
            non_negative(name, getattr(self, name))
        if not 0 <= self.widen <= WIDEST:
            raise ValueError(f"widen={self.widen}: give a factor from 0 to {WIDEST}, such as 3")
        if not fraction("ascent_part", self.ascent_part):
            raise ValueError("ascent_part=0: give a part above 0, such as 0.25")
        for name in ("momentum", "label_smoothing", "average"):
            if fraction(name, getattr(self, name)) == 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a number below 1")
        as_plain_numbers(self)
        object.__setattr__(self, "milestones", tuple(map(int, self.milestones)) if self.milestones else None)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True with momentum=0: Nesterov's form needs a momentum, such as 0.9")
        if self.milestones is not None and list(self.milestones) != sorted(
            {count("milestones", m) for m in self.milestones}
        ):
            raise ValueError(f"milestones={self.milestones}: give growing epochs, such as 50 100 150")
        check_device(self.device)

    def run(self, text: str, seed: int) -> Run:
        """The run for a method as people write it: ``lookbehind-sam:k=2,alpha=adaptive``."""
        from lookbehind.training.run import with_overrides  # a run is made of settings

        return with_overrides(self, text, seed)


def as_plain_numbers(settings: Any) -> None:
    """1 and 1.0 are the same learning rate, and the same run; numbers of numpy become Python's."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, Real) and not isinstance(value, bool):
            number = int(value) if isinstance(value, Integral) else float(value)  # no float is exact for a long seed
            object.__setattr__(settings, f.name, float(number) if str(f.type).startswith("float") else int(number))


def usual(data: str, base: str) -> dict[str, Any]:
    """What the settings that are None stand for."""
    return {**COMMON, **USUAL.get(data, {}), **({} if base == "sgd" else {"lr": ADAM_LR})}


def resolved(device: str) -> str:
    """The device that ``auto`` stands for here."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or see."""
    if device == "auto":
        return
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda", "mps", "xpu"):
        raise ValueError(f"device={device!r}: give auto, cpu, cuda or cuda:NUMBER")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}: torch sees no GPU here; give cpu or auto")
