"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

from torch import Tensor, nn


class PreActivationBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv and a shortcut, with a 1x1 convolution where the width changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, activated_shortcut: bool) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        self.activated_shortcut = activated_shortcut

    def forward(self, x: Tensor) -> Tensor:
        """``F(relu(bn(x))) + shortcut``."""
        activated = self.enter(x)
        if self.shortcut is not None:
            x = self.shortcut(activated if self.activated_shortcut else x)
        result: Tensor = self.residual(activated) + x
        return result


class WideResNet(nn.Module):
    """WRN-depth-widen: three stages of ``(depth - 4) / 6`` blocks with ``16, 32, 64`` times ``widen`` channels.

    Args:
        classes: number of outputs.
        depth: number of convolutions on the way, 6n + 4.
        widen: factor on the channels.
        form: ``"homura"``, as in the ASAM code (shortcuts take a block's raw input; He normal, fan-out), or
            ``"original"`` (shortcuts take the activated input; He normal, fan-in; bias of the head 0).
        channels: of the images.

    Examples:
        >>> WideResNet(100, depth=28, widen=10)
    """

    def __init__(
        self, classes: int, *, depth: int = 28, widen: int = 2, form: str = "homura", channels: int = 3
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth={depth}: give 6n + 4, such as 10, 16, 22, 28 or 40")
        if form not in ("homura", "original"):
            raise ValueError(f"form={form!r}: choose 'homura' or 'original'")
        original = form == "original"
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
        inputs = 16
        for stage in range(3):
            for number in range((depth - 4) // 6):
                stride = 2 if stage > 0 and number == 0 else 1
                outputs = 16 * widen * 2**stage
                layers.append(PreActivationBlock(inputs, outputs, stride, activated_shortcut=original))
                inputs = outputs
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(inputs), nn.ReLU())
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in" if original else "fan_out", nonlinearity="relu")
        if original:
            nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits
