"""How images are made ready for a network, where its checkpoint wants it otherwise than usual for the data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lookbehind.data.folders import ImageFolder
from lookbehind.data.vision import ImageSource, VisionData


@dataclass(frozen=True)
class Preparation:
    """Normalisation, and how the images of a folder are resized."""

    mean: float
    """Of every channel, of pixels from 0 to 1."""
    std: float
    resize: int
    """Shorter side of an image of which the middle is taken for evaluation."""
    resampling: str
    """For evaluation and for training."""


PREPARATIONS: Mapping[str, Preparation | None] = {
    "usual": None,
    # Google's ViT: 224 is 0.9 of 248
    "vit": Preparation(mean=0.5, std=0.5, resize=248, resampling="bicubic"),
}


def prepared(data: VisionData, name: str) -> VisionData:
    """The data as one of ``PREPARATIONS`` wants it.

    ``usual`` is as it was. ``vit`` normalises to ``(x - 0.5) / 0.5`` and resizes bicubically: for evaluation to 248,
    of which the 224 x 224 in the middle are taken, for training a random part to 224 x 224. Images in memory keep
    their size.
    """
    how = PREPARATIONS[name]
    if how is None:
        return data

    def resized(images: ImageSource) -> ImageSource:
        return images.resized_by(how.resize, how.resampling) if isinstance(images, ImageFolder) else images

    mean, std = ((value,) * data.channels for value in (how.mean, how.std))
    return replace(data, train=resized(data.train), test=resized(data.test), mean=mean, std=std)
