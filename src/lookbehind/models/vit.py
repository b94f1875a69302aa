"""Image classifiers of transformers, pre-trained ones and vision transformers of any size, as plain modules."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from types import ModuleType

PREFIX = "hf:"
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


class ImageClassifier(nn.Module):
    """A classifier of transformers as a function from images to logits.

    Its parameters have the names of transformers behind ``classifier.``: ASAM scales those with "weight" in them, so
    neither the class token and the positions nor the biases.
    """

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.classifier(pixel_values=images).logits
        return logits

    def checkpoint_gradients(self) -> None:
        """Keep no activations inside a block: they are computed again in the backward pass, to the same bits."""
        if not self.classifier.supports_gradient_checkpointing:
            kind = self.classifier.config.model_type
            raise ValueError(f"checkpointing=True with a {kind}: transformers cannot do that with it; leave it out")
        self.classifier.gradient_checkpointing_enable({"use_reentrant": False})

    def save(self, directory: Path) -> None:
        """Write a checkpoint that ``hf:DIRECTORY`` loads: ``config.json`` and ``model.safetensors``."""
        with _quiet(_transformers()):
            self.classifier.save_pretrained(directory)


def vision_transformer(
    classes: int, *, image: int, patch: int, width: int, layers: int, heads: int, channels: int = 3
) -> ImageClassifier:
    """A freshly initialised vision transformer (Dosovitskiy et al., 2021).

    ``vision_transformer(1000, image=224, patch=16, width=768, layers=12, heads=12)`` is ViT-B/16.
    """
    transformers = _transformers()
    config = transformers.ViTConfig(
        num_labels=classes,
        image_size=image,
        patch_size=patch,
        num_channels=channels,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
    )
    return ImageClassifier(transformers.ViTForImageClassification(config))


def pretrained(name: str, *, classes: int, channels: int = 3) -> ImageClassifier:
    """An image classifier from a checkpoint of transformers, in float32.

    Only safetensors are read, and no code that comes with a checkpoint is run. If the checkpoint has another number of
    classes its last layer is made anew, from torch's global random numbers, with a warning.

    Args:
        name: a directory with ``config.json`` and ``model.safetensors``, or a name on the hub.
        classes: of the images.
        channels: of the images; the checkpoint must have been made for as many.

    Examples:
        >>> pretrained("google/vit-base-patch16-224", classes=1000)
    """
    transformers = _transformers()
    if not Path(name).is_dir() and not HUB_NAME.fullmatch(name):
        raise FileNotFoundError(f"model={PREFIX}{name}: no such directory, nor can it be a name on the hub")
    with _quiet(transformers):
        with _explained(name):
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        if type(config) not in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
            raise ValueError(f"model={PREFIX}{name}: a {config.model_type}, which is no image classifier")
        wanted = getattr(config, "num_channels", channels)
        if wanted != channels:
            raise ValueError(f"model={PREFIX}{name}: made for images of {wanted} channels; these have {channels}")
        config.num_labels = classes
        with _explained(name):
            classifier, found = transformers.AutoModelForImageClassification.from_pretrained(
                name,
                config=config,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    anew = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if anew:
        warnings.warn(
            f"model={PREFIX}{name}: begins with fresh random values in {', '.join(anew)}, which the checkpoint does "
            f"not have in the size that {classes} classes need",
            stacklevel=2,
        )
    return ImageClassifier(classifier)


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"networks of Hugging Face ({PREFIX}...) need {error.name}: pip install 'lookbehind[vit]'", name=error.name
        ) from error
    return transformers


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """What transformers says in many words about files, in one sentence with the remedy."""
    try:
        yield
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        if Path(name).is_dir():
            raise ValueError(
                f"model={PREFIX}{name}: {first} A checkpoint has config.json and model.safetensors; other formats and "
                "code that comes with a checkpoint are not read"
            ) from error
        raise FileNotFoundError(
            f"model={PREFIX}{name}: no such directory, and from the hub: {first} Give the directory of a checkpoint"
        ) from error


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """No bars and reports of transformers inside this ``with``: what matters is said as a warning."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
