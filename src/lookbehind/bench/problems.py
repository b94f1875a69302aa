"""The networks that steps are measured on: from one where activations dominate to one where weights do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lookbehind.bench.timing import mark
from lookbehind.models import build
from lookbehind.models.convnet import StridedConvNet

# small, so that hundreds of steps on one minibatch of noise stay finite
LR, MOMENTUM, RHO, ALPHA = 1e-4, 0.9, 0.05, 0.5
NETWORKS = ("resnet", "convnet", "mlp", "transformer")


@dataclass(frozen=True)
class Problem:
    """A network and a minibatch."""

    name: str
    network: nn.Module
    inputs: Tensor
    labels: Tensor

    def fresh(self) -> tuple[nn.Module, Callable[[], Tensor]]:
        """A copy of the network, and its forward and backward pass."""
        model = copy.deepcopy(self.network)

        def closure() -> Tensor:
            mark()
            model.zero_grad()
            loss = F.cross_entropy(model(self.inputs), self.labels)
            loss.backward()
            mark()
            return loss

        return model, closure

    def at_hand(self) -> tuple[nn.Module, Callable[[], Tensor]]:
        """A copy of the network, and a pass that takes no time: it hands out gradients that were computed before."""
        model, closure = self.fresh()
        loss = closure().detach()
        known = [(p, p.grad) for p in model.parameters()]
        model.zero_grad()

        def hand_out() -> Tensor:
            mark()
            for parameter, gradient in known:
                parameter.grad = gradient
            mark()
            return loss

        return model, hand_out

    @property
    def parameters(self) -> int:
        """How many."""
        return sum(p.numel() for p in self.network.parameters())


class SmallTransformer(nn.Module):
    """An encoder that classifies sequences of tokens."""

    def __init__(self, width: int, layers: int, tokens: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.layers(self.embedding(tokens)).mean(1))
        return logits


def mlp(width: int) -> nn.Sequential:
    """Three hidden layers; with a width of 2,170 it has 10 million parameters."""
    layers: list[nn.Module] = [nn.Linear(256, width), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def problems(*, tiny: bool = False) -> dict[str, Problem]:
    """All four; ``tiny`` ones only show that everything works."""
    torch.manual_seed(0)
    part = 16 if tiny else 1

    def labels(count: int) -> Tensor:
        return torch.randint(10, (count,))

    def images(count: int, side: int) -> Tensor:
        return torch.randn(count, 3, side, side).contiguous(memory_format=torch.channels_last)

    def laid_out(network: nn.Module) -> nn.Module:
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    batch = max(128 // part, 4)
    found = [
        Problem("resnet", laid_out(build("resnet8-narrow", classes=10)), images(batch, 32), labels(batch)),
        Problem("convnet", laid_out(StridedConvNet(100, width=160 // part)), images(10, 32), labels(10)),
        Problem("mlp", mlp(2170 // part), torch.randn(16, 256), labels(16)),
        Problem(
            "transformer",
            SmallTransformer(128 // part, 2),
            torch.randint(1000, (32 if not tiny else 4, 32)),
            labels(32 if not tiny else 4),
        ),
    ]
    return {one.name: one for one in found}
