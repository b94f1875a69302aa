"""Robustness: what is left of the accuracy when the weights are noisy or coarse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from lookbehind.measures.accuracy import score
from lookbehind.measures.batchnorm import recalibrated
from lookbehind.measures.unchanged import minibatches_of, several, unchanged
from lookbehind.optim.checks import count, non_negative, one_of

SIGMAS = tuple(step / 20 for step in range(11))
"""0, 0.05, ..., 0.5."""

MOST_BITS = 24
"""The bits of a float32's digits: more would not round anything."""

Noise = Callable[[Tensor, Tensor, float], Tensor]
"""Of a weight tensor, standard normal numbers like it, and a level: the weights that the hardware would have."""


def multiplicative(weight: Tensor, normal: Tensor, sigma: float) -> Tensor:
    """``w (1 + sigma z)``: the paper's."""
    return weight * (1 + sigma * normal)


def relative(weight: Tensor, normal: Tensor, sigma: float) -> Tensor:
    """``w + sigma max|w| z``, the maximum over the tensor: what analog hardware adds, whatever the weight."""
    return weight + sigma * weight.abs().max() * normal


def bits(value: float) -> int:
    """A number of bits per weight."""
    if value not in range(2, MOST_BITS + 1):
        raise ValueError(f"bits={value}: give an integer from 2 to {MOST_BITS}")
    return int(value)


def quantised(weight: Tensor, normal: Tensor, level: float) -> Tensor:
    """``s round(w / s)`` with ``s = max|w| / (2^(level - 1) - 1)``, per tensor: no noise, but coarse weights."""
    levels = 2 ** (bits(level) - 1) - 1
    step = weight.abs().max() / levels
    return torch.where(step > 0, (weight / step).round() * step, weight)


KINDS: dict[str, Noise] = {"multiplicative": multiplicative, "relative": relative, "quantised": quantised}


@dataclass(frozen=True)
class Robustness:
    """Accuracy in percent at every level of noise."""

    kind: str
    levels: tuple[float, ...]
    """Sigma, or the number of bits."""
    values: tuple[tuple[float, ...], ...]
    """For each level one accuracy per draw."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Over the draws."""
        return tuple(map(fmean, self.values))

    @property
    def std(self) -> tuple[float | None, ...]:
        """Sample standard deviation over the draws; None for a single one."""
        return tuple(stdev(values) if len(values) > 1 else None for values in self.values)


def robustness(
    model: nn.Module,
    test: Callable[[], Iterable[Any]],
    levels: Sequence[float] = SIGMAS,
    *,
    kind: str = "multiplicative",
    draws: int = 10,
    seed: int = 0,
    weights: str = "all",
    statistics: Callable[[], Iterable[Any]] | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Robustness:
    """Accuracy under noise in the weights; the model is the same afterwards.

    For each draw the normal numbers ``z`` are drawn once and used at every level, so that the curves of a draw are
    smooth; they depend on ``seed`` and on the shapes of the parameters only.

    Args:
        model: a classifier.
        test: gives the minibatches (inputs, labels) to measure on, anew at every call.
        levels: sigmas, or numbers of bits for ``"quantised"``.
        kind: ``"multiplicative"``, ``"relative"`` or ``"quantised"``.
        draws: how many; quantisation needs one.
        seed: of the draws.
        weights: ``"all"`` parameters, or ``"matrices"``: those of two or more dimensions, of convolutions and linear
            layers.
        statistics: gives training minibatches; BatchNorm statistics are re-estimated on them after the noise, as a
            cumulative average. None leaves the statistics.
        autocast: around the forward passes, for a network that was trained so.

    Examples:
        >>> robustness(model, lambda: test_loader, (0.1, 0.2), statistics=lambda: train_loader).mean
    """
    one_of("kind", kind, tuple(KINDS))
    one_of("weights", weights, ("all", "matrices"))
    count("draws", draws)
    levels = tuple(non_negative("level", level) for level in several("levels", levels))
    if kind == "quantised":
        draws = 1  # nothing is drawn
        for level in levels:
            bits(level)
    found: list[list[float]] = [[] for _ in levels]
    with unchanged(model) as kept, torch.no_grad():
        chosen = [(p, w) for p, w in zip(model.parameters(), kept, strict=True) if weights == "all" or p.dim() > 1]
        for draw in range(draws):
            normals = _normals([w for _, w in chosen], seed, draw)
            for values, level in zip(found, levels, strict=True):
                for (parameter, weight), normal in zip(chosen, normals, strict=True):
                    parameter.copy_(KINDS[kind](weight, normal, level))
                with recalibrated(model, minibatches_of(statistics) if statistics is not None else None, autocast):
                    values.append(score(model, minibatches_of(test), autocast).accuracy)
    return Robustness(kind, levels, tuple(map(tuple, found)))


def _normals(weights: Sequence[Tensor], seed: int, draw: int) -> list[Tensor]:
    """Standard normal numbers like each tensor; on the CPU, so that they are the same on every device."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + draw) % 2**63)
    return [torch.randn(w.shape, generator=generator, dtype=torch.float32).to(w) for w in weights]
