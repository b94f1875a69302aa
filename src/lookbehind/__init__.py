"""Sharpness-aware training in PyTorch: SAM, ASAM, their multi-step forms, Lookahead and Lookbehind."""

from lookbehind.optim.accumulation import accumulated
from lookbehind.optim.clipping import clip_norm, clip_value
from lookbehind.optim.lookahead import Lookahead
from lookbehind.optim.methods import (
    ASAM,
    SAM,
    LookbehindASAM,
    LookbehindSAM,
    MultistepASAM,
    MultistepSAM,
    RepeatASAM,
    RepeatSAM,
)
from lookbehind.optim.passes import given, micro_batches, switching
from lookbehind.optim.precision import NonFiniteError
from lookbehind.optim.schedule import Schedule, linear, piecewise
from lookbehind.optim.sharpness_aware import SharpnessAware
from lookbehind.optim.statistics import held_statistics

__version__ = "0.1.0"

__all__ = [
    "ASAM",
    "SAM",
    "Lookahead",
    "LookbehindASAM",
    "LookbehindSAM",
    "MultistepASAM",
    "MultistepSAM",
    "NonFiniteError",
    "RepeatASAM",
    "RepeatSAM",
    "Schedule",
    "SharpnessAware",
    "accumulated",
    "clip_norm",
    "clip_value",
    "given",
    "held_statistics",
    "linear",
    "micro_batches",
    "piecewise",
    "switching",
]
