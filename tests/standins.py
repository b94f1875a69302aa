"""Small stand-ins for code that people use now and that cannot be installed here."""

from __future__ import annotations

from typing import Any

import torch


class FirstAndSecondStep(torch.optim.Optimizer):
    """SAM in the popular two-call style: it makes the base optimizer, climbs, and is called a second time to step."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer], rho: float = 0.05, **settings: Any) -> None:
        super().__init__(parameters, {"rho": rho, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()
        if zero_grad:
            self.zero_grad()
