"""Lookbehind as the authors' code computes it: 2k evaluations, and their copies; to compare with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer


class AuthorsLookbehind:
    """One step of Lookbehind-SAM on a minibatch, re-created from a description of the authors' class.

    Args:
        base: around the parameters.
        rho: of every ascent step.
        k: ascent steps.
        alpha: how far the slow weights follow.
    """

    def __init__(self, base: Optimizer, *, rho: float, k: int, alpha: float) -> None:
        self.base, self.rho, self.k, self.alpha = base, rho, k, alpha
        self.descents = 0
        self.parameters = [p for group in base.param_groups for p in group["params"]]
        self.slow = [p.detach().clone() for p in self.parameters]
        self.fast = [p.detach().clone() for p in self.parameters]

    def step(self, closure: Callable[[], Tensor]) -> None:
        """Climb and descend k times, each with gradients of its own."""
        for _ in range(self.k):
            closure()
            self.ascent_step()
            closure()
            self.descent_step()

    @torch.no_grad()
    def ascent_step(self) -> None:
        """Climb along the gradient."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.stack([g.norm(p=2) for g in gradients]).norm(p=2) + 1e-16
        for p in self.parameters:
            if p.grad is not None:
                step = p.grad.clone()
                step.mul_(self.rho / norm)
                p.add_(step)
        self.base.zero_grad()

    @torch.no_grad()
    def descent_step(self) -> None:
        """Let the base step on the fast weights; after the k-th time, follow with the slow ones."""
        backups = []
        for p, fast in zip(self.parameters, self.fast, strict=True):
            backup = torch.zeros_like(p)
            backup.copy_(p)
            backups.append(backup)
            p.copy_(fast)
        self.base.step()
        for p, fast, backup in zip(self.parameters, self.fast, backups, strict=True):
            fast.copy_(p)
            p.copy_(backup)
        self.base.zero_grad()
        self.descents += 1
        if self.descents % self.k == 0:
            self._follow()

    def _follow(self) -> None:
        for p, slow, fast in zip(self.parameters, self.slow, self.fast, strict=True):
            p.copy_(fast)
            p.copy_(self.alpha * p + (1 - self.alpha) * slow)
            fast.copy_(p)
            slow.copy_(p)
