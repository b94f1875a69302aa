"""Which method saved a state: written beside it, compared when it is loaded."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

KEY = "sharpness_aware"
PARTS = ("ascent", "descent", "interpolation")


def signature(settings: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The kinds of the parts, all settings and the shapes, as plain types that ``weights_only=True`` loads."""
    return {
        "format": 1,
        "kinds": {name: _kind(settings[name]) for name in PARTS},
        "settings": {name: in_words(value) for name, value in settings.items()},
        "shapes": [list(p.shape) for group in groups for p in group["params"]],
    }


def check_signature(saved: Mapping[str, Any], mine: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse the state of another method or of other shapes, and warn of other settings; each with the difference."""
    kinds = _differences(saved["kinds"], mine["kinds"])
    if kinds:
        raise ValueError(
            f"this state was saved by another method: {kinds}. Make the same optimizer, or load only the base "
            "optimizer's part: optimizer.base.load_state_dict(state)"
        )
    if saved["shapes"] != mine["shapes"]:
        names = [name for g in groups for name in g.get("param_names") or [None] * len(g["params"])]
        raise ValueError(
            f"this state was saved for other parameters: {_shape_difference(saved['shapes'], mine['shapes'], names)}"
        )
    settings = _differences(saved["settings"], mine["settings"])
    if settings:
        warnings.warn(
            f"this state was saved with other settings: {settings}. Training goes on with this optimizer's own",
            stacklevel=4,
        )


def in_words(value: Any) -> Any:
    """A setting as plain types."""
    if isinstance(value, int | float | str):
        return value
    if is_dataclass(value):
        inner = ", ".join(f"{f.name}={in_words(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({inner})"
    if hasattr(value, "__name__"):
        return value.__name__
    words = repr(value)
    return type(value).__name__ if " at 0x" in words else words  # an address would differ every time


def _kind(part: object) -> str:
    return str(getattr(part, "__name__", type(part).__name__))


def _differences(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    # of what both know: an older state lacks the settings that have come since
    keys = [key for key in mine if key in saved and saved[key] != mine[key]]
    return "; ".join(f"{key} was {saved[key]}, here it is {mine[key]}" for key in keys)


def _shape_difference(saved: Sequence[Any], mine: Sequence[Any], names: Sequence[str | None]) -> str:
    if len(saved) != len(mine):
        return f"{len(saved)} of them, this optimizer has {len(mine)}"
    number = next(i for i, (before, now) in enumerate(zip(saved, mine, strict=True)) if before != now)
    name = repr(names[number]) if names[number] else f"number {number}"
    return f"parameter {name} had the shape {saved[number]}, here it is {mine[number]}"
