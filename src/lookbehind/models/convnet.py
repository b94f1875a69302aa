"""A small convolutional network, for the 8 x 8 digits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ConvNet(nn.Module):
    """3x3 convolutions with BatchNorm and ReLU at full resolution, the mean over all places, a linear head."""

    def __init__(self, classes: int, *, widths: Sequence[int] = (16, 32, 32), channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((channels, *widths), widths, strict=False):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits
