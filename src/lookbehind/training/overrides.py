"""Settings of one method, written behind its name: ``lookbehind-sam:k=2,alpha=adaptive``."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from lookbehind.optim.checks import one_of


def overrides(settings: Any, text: str, ascents: Collection[str], fixed: Collection[str]) -> dict[str, Any]:
    """What is written behind the colon, as values.

    Args:
        settings: a dataclass with all settings that there are.
        text: the method as people write it.
        ascents: of the method, "sam" or "asam": ``rho`` is its own radius.
        fixed: settings that must be the same for all methods.
    """
    kinds = {f.name: str(f.type) for f in fields(settings) if f.name not in ("method", "seed")}
    values: dict[str, Any] = {}
    for part in filter(None, text.partition(":")[2].split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.replace("-", "_")
        if not equals:
            raise ValueError(
                f"method={text!r}: write settings as NAME=VALUE, such as lookbehind-sam:k=2,alpha=adaptive"
            )
        if key in fixed:
            raise ValueError(
                f"method={text!r}: {key} is not a setting of a method; it must be the same for all methods"
            )
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"method={text!r}: {key} is not a setting of a method{hint}")
        if key == "rho" and set(ascents) - {""} == {"asam"}:
            key = "asam_rho"  # the method's own radius
        values[key] = setting_from_text(key, value, kinds[key])
    return values


def check_read(run: Any, text: str, own: Collection[str]) -> None:
    """Refuse a setting that the method does not read."""
    if unread := [key for key in own if key not in run.identity]:
        raise ValueError(f"method={text!r}: {run.method} does not read {unread[0]}; leave it out")


def setting_from_text(key: str, value: str, kind: str) -> Any:
    """A setting from its text, by the kind of the field."""
    if kind.startswith("bool"):
        one_of(key, value, ("true", "false"))
        return value == "true"
    try:
        if kind.startswith("tuple"):
            return tuple(int(part) for part in value.split("/"))
        return int(value) if kind.startswith("int") else float(value) if kind.startswith("float") else value
    except ValueError:
        if "Literal" in kind:
            return value  # a word; the settings know which
        wanted = {"t": "whole numbers, such as 50/100", "i": "a whole number", "f": "a number"}[kind[0]]
        raise ValueError(f"{key}={value!r}: give {wanted}") from None
