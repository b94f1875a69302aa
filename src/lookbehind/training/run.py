"""A training run as a value: everything that decides its outcome, and an id that follows from it."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from lookbehind.optim.checks import count, one_of
from lookbehind.training.methods import Method, Phase, phases
from lookbehind.training.settings import Settings, resolved, usual

FORMAT = 1  # of the id: raised when a default changes, or the same settings come to mean something else


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """One training: settings, a method and a seed.

    The seed draws the slice, the validation part, the first weights, the order of the images, the augmentation and the
    dropout masks, in the same way for every method.

    Example:
        >>> Run(data="cifar10", model="resnet18", method="lookbehind-sam", k=5, alpha=0.5, seed=0).id
        'lookbehind-sam-seed0-...'
    """

    method: str = "sgd"
    """A method by name: `lookbehind list` shows them. sam+lookbehind-sam@20 switches after epoch 20."""
    seed: int = 0
    """Draws the images, the first weights, their order and all else that is random."""
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    """Under torchrun: every process has the whole network (ddp, usual there) or a part of it (fsdp)."""
    ranks: Literal["together", "apart"] = "together"
    """Under torchrun with ddp: do the processes climb together, or each along its own gradient (m-SAM)?"""
    processes: int = 1
    """Filled in under torchrun: each has its own part of a minibatch, for BatchNorm and for climbs apart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("parallel", self.parallel, ("none", "ddp", "fsdp"))
        one_of("ranks", self.ranks, ("together", "apart"))
        count("processes", self.processes)
        if self.ranks == "apart" and self.parallel != "ddp":
            raise ValueError(f"ranks='apart' with parallel={self.parallel!r}: only ddp can climb apart")
        if self.parallel != "none" and self.ranks == "together" and any(method.micro for method in self.methods):
            raise ValueError(
                f"method={self.method} with parallel={self.parallel!r}: every micro-batch climbs on its own, so the "
                "processes must too; give --parallel ddp --ranks apart"
            )
        if count("seed", self.seed, at_least=0) >= 2**63:
            raise ValueError(f"seed={self.seed}: give a number below 2^63")
        for method in self.methods:
            if method.needs_a_number_for_alpha and isinstance(self.alpha, str):
                raise ValueError(
                    f"alpha={self.alpha!r} with {method.name}: it needs a number; write {method.name}:alpha=0.5"
                )

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The methods, each with the epoch where it begins."""
        return phases(self.method)

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods in the order of their phases."""
        return tuple(phase.method for phase in self.phases)

    def radius(self, ascent: str) -> float:
        """Rho for this kind of ascent."""
        return float(self.filled.asam_rho if ascent == "asam" else self.filled.rho)  # type: ignore[arg-type]

    def lr_factor(self, method: Method) -> float:
        """What the learning rate is multiplied by while a method is used: ``alpha k`` for a long step."""
        return float(self.alpha) * self.k if method.long_step else 1.0

    @cached_property
    def filled(self) -> Run:
        """The same run with every None replaced by what is usual."""
        base = next((m.base for m in self.methods if m.base), self.base)
        missing = {name: value for name, value in usual(self.data, base).items() if getattr(self, name) is None}
        found: dict[str, Any] = {**missing, "base": base, "device": resolved(self.device)}
        return replace(self, **found)

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that decide the outcome, and no others: SGD's do not have a rho."""
        read = {name for method in self.methods for name in method.numbers}
        ascents = {method.ascent for method in self.methods}
        conditions = {
            **{name: name in read for name in ("eta", "k", "alpha", "micro_batch")},
            "rho": "sam" in ascents,
            "asam_rho": "asam" in ascents,
            "batchnorm": ascents != {""},
            "epochs": self.gradients is None,
            "gradients": self.gradients is not None,
            "nesterov": self.filled.base == "sgd",
            "milestones": self.schedule == "multistep",
            "step_size": self.schedule == "step",
            "gamma": self.schedule in ("step", "multistep"),
            "lr_changes": self.schedule == "cosine",
        }
        unread = {name for name, matters in conditions.items() if not matters}
        values = {f.name: getattr(self.filled, f.name) for f in fields(self) if f.name not in unread}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    @cached_property
    def id(self) -> str:
        """A name for the run's files that follows from its identity.

        Settings at their default are left out, so that a setting which is added later does not change it.
        """
        defaults = {f.name: f.default for f in fields(self)}
        own = {name: value for name, value in self.identity.items() if value != defaults[name]}
        content = json.dumps({"format": FORMAT, **own}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        return f"{re.sub('[^a-z0-9-]+', '_', self.method)[:60]}-seed{self.seed}-{digest}"


def run_from(identity: dict[str, Any]) -> Run:
    """The run that an identity, as it was saved, stands for."""
    known = {f.name for f in fields(Run)}
    if unknown := sorted(set(identity) - known):
        raise ValueError(f"a run saved with {', '.join(unknown)}: another version of lookbehind made it")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in identity.items()}
    return Run(**values)


ONE_METHOD = ("data", "train_images", "validation", "pool")  # the same for all methods, or nothing can be compared


def with_overrides(settings: Settings, text: str, seed: int) -> Run:
    """The run for a method as people write it: ``lookbehind-sam:k=2,alpha=adaptive``."""
    name, _, rest = text.partition(":")
    ascents = {phase.method.ascent for phase in phases(name)} - {""}
    values = {f.name: getattr(settings, f.name) for f in fields(Settings)}
    kinds = {f.name: str(f.type) for f in fields(Settings)}
    own = []
    for part in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.replace("-", "_")
        if not equals:
            raise ValueError(
                f"method={text!r}: write settings as NAME=VALUE, such as lookbehind-sam:k=2,alpha=adaptive"
            )
        if key not in kinds or key in ONE_METHOD:
            near = difflib.get_close_matches(key, kinds, n=1)
            hint = (
                "; it must be the same for all methods"
                if key in ONE_METHOD
                else f"; did you mean {near[0]}?"
                if near
                else ""
            )
            raise ValueError(f"method={text!r}: {key} is not a setting of a method{hint}")
        if key == "rho" and ascents == {"asam"}:
            key = "asam_rho"  # the method's own radius
        values[key] = setting_from_text(key, value, kinds[key])
        own.append(key)
    run = Run(**values, method=name, seed=seed)
    if unread := [key for key in own if key not in run.identity]:
        raise ValueError(f"method={text!r}: {name} does not read {unread[0]}; leave it out")
    return run


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
