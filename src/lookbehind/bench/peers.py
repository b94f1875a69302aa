"""Other implementations of SAM and ASAM, as people use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.bench.problems import LR, MOMENTUM, RHO
from lookbehind.bench.timing import Work
from lookbehind.optim.methods import ASAM, SAM

OURS = ("ours", "ours, nonfinite=propagate")
"""With the check for numbers that are not finite, and without it, as the peers are."""
Closure = Callable[[], Tensor]
Make = Callable[[nn.Module, Closure], Work]
"""A way to take steps on a network."""


class FirstAndSecondStep(torch.optim.Optimizer):
    """SAM in the popular two-call style: it makes the base optimizer, climbs, and is called a second time to step.

    But for one thing: the old weights are let go of after the step. Kept, they would share their memory with the
    parameters, and all works that take turns on a network would meet parameters that are not alone in theirs.
    """

    def __init__(
        self,
        parameters: Any,
        base: type[torch.optim.Optimizer],
        rho: float = 0.05,
        adaptive: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(parameters, {"rho": rho, "adaptive": adaptive, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        """Climb."""
        norm = self._norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_((torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        """Come back, and let the base step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p].pop("old")
        self.base.step()
        if zero_grad:
            self.zero_grad()

    def _norm(self) -> Tensor:
        norms = [
            ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad).norm(p=2)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        whole: Tensor = torch.stack(norms).norm(p=2)
        return whole


def _ours(adaptive: bool, nonfinite: str = "raise") -> Make:
    def make(model: nn.Module, closure: Closure) -> Work:
        base = torch.optim.SGD(model.named_parameters(), lr=LR, momentum=MOMENTUM)
        # the peers scale all parameters by |w|
        optimizer = (
            ASAM(base, rho=RHO, eta=0.0, scale="all", nonfinite=nonfinite)
            if adaptive
            else SAM(base, rho=RHO, nonfinite=nonfinite)
        )
        return lambda: optimizer.step(closure)

    return make


def _two_calls(adaptive: bool) -> Make:
    def make(model: nn.Module, closure: Closure) -> Work:
        optimizer = FirstAndSecondStep(
            model.parameters(), torch.optim.SGD, rho=RHO, adaptive=adaptive, lr=LR, momentum=MOMENTUM
        )

        def step() -> None:
            closure()
            optimizer.first_step(zero_grad=True)
            closure()
            optimizer.second_step(zero_grad=True)

        return step

    return make


def _pytorch_optimizer(adaptive: bool, foreach: bool) -> Make:
    def make(model: nn.Module, closure: Closure) -> Work:
        import pytorch_optimizer

        optimizer = pytorch_optimizer.SAM(
            model.parameters(), torch.optim.SGD, rho=RHO, adaptive=adaptive, foreach=foreach, lr=LR, momentum=MOMENTUM
        )

        def step() -> None:
            closure()
            optimizer.step(closure)  # type: ignore[arg-type]
            optimizer.zero_grad()

        return step

    return make


def peers(adaptive: bool) -> dict[str, Make]:
    """Those of ``OURS`` first, and the others; pytorch_optimizer where it is installed."""
    found = dict(zip(OURS, (_ours(adaptive), _ours(adaptive, "propagate")), strict=True))
    found["two calls"] = _two_calls(adaptive)
    try:
        import pytorch_optimizer  # noqa: F401
    except ImportError:
        return found
    return {
        **found,
        "pytorch_optimizer, foreach": _pytorch_optimizer(adaptive, True),
        "pytorch_optimizer": _pytorch_optimizer(adaptive, False),
    }
