"""Small convolutional networks: for the 8 x 8 digits, without BatchNorm, for lifelong learning."""

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


class PlainConvNet(nn.Module):
    """Two 3x3 convolutions of stride 2, averaged to 4 x 4 places, and a hidden layer; nothing is normalised.

    What sharpness-aware methods do to it cannot come from the running statistics of BatchNorm, nor from weights whose
    scale does not matter.
    """

    def __init__(self, classes: int, *, widths: tuple[int, int] = (32, 64), hidden: int = 128, channels: int = 3):
        super().__init__()
        first, second = widths
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * second, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.features(images))
        return logits


class StridedConvNet(nn.Module):
    """3x3 convolutions of stride 2 down to 4 x 4, two hidden layers, one output for every class of every task.

    The network of lifelong learning: no BatchNorm, no pooling, no dropout. He's initialisation, biases zero. With 160
    channels it has 1,419,940 parameters for 100 classes of 32 x 32 images (320 hidden units), and 2,873,640 for 200
    classes of 64 x 64 (640).

    Args:
        classes: of all tasks together.
        channels: of the images.
        size: their height and width, 4 times a power of 2.
        width: channels of every convolution.
        hidden: units of both hidden layers.
    """

    def __init__(self, classes: int, *, channels: int = 3, size: int = 32, width: int = 160, hidden: int = 320) -> None:
        super().__init__()
        halvings = max((size // 4).bit_length() - 1, 0)
        if size != 4 << halvings:
            raise ValueError(f"size={size}: give 4 times a power of 2, such as 32 or 64")
        layers: list[nn.Module] = []
        for inputs in (channels, *[width] * (halvings - 1))[:halvings]:
            layers += [nn.Conv2d(inputs, width, 3, stride=2, padding=1), nn.ReLU()]
        flat = 16 * (width if halvings else channels)
        layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Logits of all classes."""
        logits: Tensor = self.head(self.features(images))
        return logits
