"""Checks of arguments: an error names the argument, its value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real


def shown(value: object) -> str:
    """A value for an error message: in full if that is short, else its kind."""
    words = repr(value)
    if len(words) <= 60 and "\n" not in words:
        return words
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}>"


def number(name: str, value: object, remedy: str) -> float:
    """A finite number that is not a truth value."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={shown(value)}: {remedy}")
    if not math.isfinite(value):
        raise ValueError(f"{name}={shown(value)}: {remedy}")
    return float(value)


def non_negative(name: str, value: object) -> float:
    """A finite number >= 0."""
    remedy = f"give a finite number >= 0, for example {name}=0.05"
    if number(name, value, remedy) < 0:
        raise ValueError(f"{name}={shown(value)}: {remedy}")
    return float(value)  # type: ignore[arg-type]


def positive(name: str, value: object) -> float:
    """A finite number > 0."""
    remedy = "give a number above 0"
    if number(name, value, remedy) <= 0:
        raise ValueError(f"{name}={shown(value)}: {remedy}")
    return float(value)  # type: ignore[arg-type]


def fraction(name: str, value: object, also: str = "") -> float:
    """A number in [0, 1]."""
    remedy = f"give a number from 0 to 1{also}"
    if not 0 <= number(name, value, remedy) <= 1:
        raise ValueError(f"{name}={shown(value)}: {remedy}")
    return float(value)  # type: ignore[arg-type]


def count(name: str, value: object, at_least: int = 1) -> int:
    """An integer of a given size at least."""
    remedy = f"give an integer >= {at_least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={shown(value)}: {remedy}")
    if value < at_least:
        raise ValueError(f"{name}={shown(value)}: {remedy}")
    return int(value)


def one_of(name: str, value: object, words: Sequence[str], also: str = "") -> None:
    """One of a few words."""
    if value not in words:
        choices = ", ".join(repr(word) for word in words)
        raise ValueError(f"{name}={shown(value)}: choose one of {choices}{' ' + also if also else ''}")
