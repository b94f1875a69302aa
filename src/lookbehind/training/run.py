"""A training run as a value: everything that decides its outcome, and an id that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lookbehind.data.vision import VisionData
from lookbehind.optim.checks import count, one_of
from lookbehind.training.job import Derived
from lookbehind.training.methods import Method, Phase, phases
from lookbehind.training.overrides import check_read, overrides
from lookbehind.training.settings import Settings, resolved, usual

if TYPE_CHECKING:
    from lookbehind.training.loop import Training


DEFAULTS = {f.name: f.default for f in fields(Settings)}


@dataclass(frozen=True, kw_only=True)
class Run(Settings, Derived):
    """One training: settings, a method and a seed.

    The seed draws the slice, the validation part, the first weights, the order of the images, the augmentation and the
    dropout masks, in the same way for every method.

    Examples:
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
        if self.parallel == "fsdp" and self.average:
            raise ValueError(f"average={self.average} with parallel='fsdp': give --parallel ddp, or leave it out")
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

    def during(self, phase: Phase) -> Run:
        """The run with the radii that a phase climbs with: in the first as they are, in all later ones widened."""
        if phase.start == 0 or self.widen == 1:
            return self
        sam, asam = self.widen * self.radius("sam"), self.widen * self.radius("asam")
        return replace(self.filled, rho=sam, asam_rho=asam)

    def gradients_of(self, method: Method, *, climbs: bool) -> float:
        """Gradient evaluations of a minibatch: of a step that climbs, or of a plain one in between."""
        if not climbs:
            return 1
        return method.gradients(self.k) - (1 - self.ascent_part if method.can_spare else 0)

    def mean_gradients(self, method: Method) -> float:
        """Gradient evaluations per minibatch, over many."""
        plain = self.every - 1 if method.can_spare else 0
        return (self.gradients_of(method, climbs=True) + plain) / (1 + plain)

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
            **{name: name in read for name in ("eta", "k", "alpha", "micro_batch", "every", "ascent_part")},
            "widen": any(phase.method.ascent for phase in self.phases[1:]),
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
            # they save memory and change no bit, so that a run may go on with them
            "checkpointing": False,
            "offload": False,
        }
        unread = {name for name, matters in conditions.items() if not matters}
        values = {f.name: getattr(self.filled, f.name) for f in fields(self) if f.name not in unread}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    @property
    def numbers(self) -> dict[str, Any]:
        """What tells it from other runs of its method, in short."""
        shown = {"rho": "rho", "asam_rho": "rho", "k": "k", "alpha": "alpha", "micro_batch": "micro_batch"}
        shown |= {
            name: name for name in ("every", "ascent_part", "widen", "average") if getattr(self, name) != DEFAULTS[name]
        }
        identity = self.identity
        return {word: identity[name] for name, word in shown.items() if name in identity}

    @property
    def cost(self) -> float:
        """Gradients of the whole run, in some unit: a budget, or epochs times the cost of a step."""
        if self.gradients is not None:
            return self.gradients
        epochs = int(self.filled.epochs or 0)
        ends = [*(min(phase.start, epochs) for phase in self.phases[1:]), epochs]
        return sum(
            (end - min(p.start, epochs)) * self.mean_gradients(p.method)
            for p, end in zip(self.phases, ends, strict=True)
        )

    @property
    def whole_epochs(self) -> int:
        """Of the run; with a budget of gradients, about."""
        return int(self.filled.epochs or 0)

    def begin(self, data: VisionData) -> Training:
        """The training, before its first step."""
        from lookbehind.training.loop import Training  # which needs this module

        return Training(self, data)


def run_from(identity: dict[str, Any]) -> Run:
    """The run that an identity, as it was saved, stands for."""
    known = {f.name for f in fields(Run)}
    if unknown := sorted(set(identity) - known):
        raise ValueError(f"a run saved with {', '.join(unknown)}: another version of lookbehind made it")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in identity.items()}
    return Run(**values)


# the same for all methods, or nothing can be compared
ONE_METHOD = ("data", "train_images", "validation", "reserved", "pool", "preparation", "checkpointing", "offload")


def with_overrides(settings: Settings, text: str, seed: int) -> Run:
    """The run for a method as people write it: ``lookbehind-sam:k=2,alpha=adaptive``."""
    name = text.partition(":")[0]
    own = overrides(settings, text, {phase.method.ascent for phase in phases(name)}, ONE_METHOD)
    values = {f.name: getattr(settings, f.name) for f in fields(Settings)} | own
    run = Run(**values, method=name, seed=seed)
    check_read(run, text, own)
    return run
