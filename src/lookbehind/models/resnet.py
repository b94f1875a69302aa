"""Residual networks (He et al., 2016), in the forms of CIFAR and of ImageNet."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; or, as a bottleneck, 1x1, 3x3 and 1x1 with four times the width behind."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            convolutions = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            convolutions = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        layers: list[nn.Module] = []
        for number, (a, b, size, step) in enumerate(convolutions):
            layers += [nn.ReLU()] if number else []
            layers += [nn.Conv2d(a, b, size, step, padding=size // 2, bias=False), nn.BatchNorm2d(b)]
        self.residual = nn.Sequential(*layers)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """``relu(F(x) + shortcut(x))``."""
        return nn.functional.relu(self.residual(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network whose width doubles and whose resolution halves from stage to stage.

    Args:
        classes: number of outputs.
        blocks: blocks per stage.
        width: channels of the first stage.
        bottleneck: blocks of three convolutions, as from ResNet-50 on.
        stem: ``"cifar"`` (3x3, stride 1, no pooling; torch's default initialisation) or ``"imagenet"`` (7x7, stride 2,
            max-pooling; He normal, fan-out).
        channels: of the images.

    Examples:
        >>> ResNet(10, (3, 4, 6, 3))  # ResNet-34 for CIFAR-10
    """

    def __init__(
        self,
        classes: int,
        blocks: Sequence[int],
        *,
        width: int = 64,
        bottleneck: bool = False,
        stem: str = "cifar",
        channels: int = 3,
    ) -> None:
        super().__init__()
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"stem={stem!r}: choose 'cifar' or 'imagenet'")
        large = stem == "imagenet"
        first = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False) if large else None
        layers: list[nn.Module] = [first or nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2, padding=1)] if large else []
        inputs = width
        for stage, depth in enumerate(blocks):
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                block = Block(inputs, width * 2**stage, stride, bottleneck=bottleneck)
                layers.append(block)
                inputs = block.outputs
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)
        if large:
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits
