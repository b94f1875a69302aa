"""Small problems that the tests share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lookbehind as lb

OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
Make = Callable[[torch.optim.Optimizer], torch.optim.Optimizer]

METHODS: dict[str, Make] = {
    "sam": lambda base: lb.SAM(base, rho=0.1),
    "asam": lambda base: lb.ASAM(base, rho=0.5),
    "multistep": lambda base: lb.MultistepSAM(base, rho=0.1, k=3),
    "multistep-mean": lambda base: lb.MultistepASAM(base, rho=0.5, eta=0.01, k=3, average=True),
    "lookbehind": lambda base: lb.LookbehindSAM(base, rho=0.1, k=3, alpha=0.5),
    "lookbehind-asam": lambda base: lb.LookbehindASAM(base, rho=0.5, k=3, alpha=0.5),
    "adaptive": lambda base: lb.LookbehindSAM(base, rho=0.1, k=3, alpha="adaptive"),
    "per-tensor": lambda base: lb.LookbehindSAM(base, rho=0.1, k=3, alpha="adaptive-per-tensor"),
    "lookahead": lambda base: lb.Lookahead(base, k=3, alpha=0.5),
    "lookahead-lookbehind": lambda base: lb.Lookahead(lb.LookbehindSAM(base, rho=0.1, k=2), k=3, alpha=0.5),
}

CLIMBING = [name for name in METHODS if name != "lookahead"]

ASCENTS = {"sam": 1, "asam": 1, "lookahead": 0, "lookahead-lookbehind": 2}  # 3 for the others


def net(dtype: torch.dtype = torch.float64, *, batchnorm: bool = True, dropout: float = 0.0) -> nn.Module:
    """A small classifier of 6 inputs and 3 classes, the same at every call."""
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batchnorm else []
    return nn.Sequential(
        nn.Linear(6, 8, bias=not batchnorm), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)
    ).to(dtype)


def batch(seed: int = 0, size: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, 6, generator=generator, dtype=torch.float64).to(dtype),
        torch.randint(0, 3, (size,), generator=generator),
    )


def loss_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(data[0]), data[1])


def closure_for(model: nn.Module, data: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """A closure as a user writes it."""

    def closure() -> Tensor:
        model.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        return loss

    return closure


def sgd(model: nn.Module, **settings: object) -> torch.optim.SGD:
    return torch.optim.SGD(model.named_parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})


def train(optimizer: torch.optim.Optimizer, model: nn.Module, steps: range) -> list[Tensor]:
    return [optimizer.step(closure_for(model, batch(step))) for step in steps]


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def after(make: Make, act: Callable[..., object], steps: int = 3) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """The weights after some steps, where ``act(optimizer, model, step)`` takes one."""
    model = net()
    optimizer = make(sgd(model))
    for step in range(steps):
        act(optimizer, model, step)
    return values(model), optimizer


def plain_step(optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> Tensor:
    return optimizer.step(closure_for(model, batch(step)))
