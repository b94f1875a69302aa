"""What the options of an optimizer may be."""

from __future__ import annotations

from inspect import isclass

from torch import nn
from torch.optim import Optimizer

from lookbehind.optim.checks import one_of, shown
from lookbehind.optim.wrapper import all_parameters

WORDS = {
    "reach": ("per-step", "total"),
    "batchnorm": ("all", "first"),
    "rng": ("fresh", "replay"),
    "nonfinite": ("raise", "skip", "propagate"),
    "restore": ("weights", "all"),
    "cosine": ("none", "climb", "gradients"),
    "ranks": ("together", "apart"),
}


def check_words(**options: str) -> None:
    """Each option must be one of its words."""
    for name, value in options.items():
        one_of(name, value, WORDS[name])


def check_parts(**parts: object) -> None:
    """Each part must be a value that can be called."""
    for name, part in parts.items():
        if isclass(part):
            raise TypeError(f"{name}={part.__name__}: give a value of it, {name}={part.__name__}(...)")
        if not callable(part):
            raise TypeError(f"{name}={shown(part)}: give one of the parts in lookbehind.optim.{name}")


def check_model(model: object, base: Optimizer, *, needed: bool) -> None:
    """The model must be the one whose parameters the base optimizer has."""
    if model is None:
        if needed:
            raise ValueError("batchnorm='first': give model=, whose running statistics are to be held")
        return
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={shown(model)}: give the torch.nn.Module that is trained")
    if not {id(p) for p in model.parameters()} & {id(p) for p in all_parameters(base)}:
        raise ValueError("model=: it has none of the parameters of the base optimizer; give the model that is trained")
