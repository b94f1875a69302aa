"""A lifelong training as a value: all that decides its outcome, and an id that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lookbehind.data.tasks import STREAMS
from lookbehind.data.vision import VisionData
from lookbehind.lifelong.memory import LAWS
from lookbehind.lifelong.meta import Meta
from lookbehind.optim.checks import count, non_negative, one_of, positive
from lookbehind.optim.clipping import clip_norm
from lookbehind.optim.interpolation import following
from lookbehind.training.job import Derived
from lookbehind.training.methods import METHODS, Method, unknown_method
from lookbehind.training.overrides import check_read, overrides
from lookbehind.training.settings import as_plain_numbers, check_device, resolved

if TYPE_CHECKING:
    from lookbehind.lifelong.protocol import LifelongTraining

REPLAY = "er+"
META = ("lookahead-c-maml", "lookbehind-c-maml")
COMMON: dict[str, Any] = {"memory": 200, "epochs": 10, "lr": 0.03, "width": 160, "hidden": 320}
USUAL: dict[str, dict[str, Any]] = {
    "split-digits": {"memory": 20, "epochs": 2, "width": 16, "hidden": 32},
    "split-tiny-imagenet": {"memory": 400, "hidden": 640},
}


@dataclass(frozen=True, kw_only=True)
class LifelongSettings:
    """What a lifelong training is made of, but for its method and its seed. None stands for what is usual."""

    data: str = "split-digits"
    """split-cifar100 (20 tasks of 5 classes), split-tiny-imagenet (40 of 5) or split-digits (5 of 2)."""
    tasks: int | None = None
    """Learn the first so many tasks only."""
    epochs: int | None = None
    """Passes over the images of each task. Usual for the data if not given: 10."""
    batch_size: int = 10
    """New images per step; replayed ones come on top."""

    lr: float | None = None
    """Learning rate of SGD, and of C-MAML's outer step. 0.03 if not given."""
    rho: float = 0.05
    """Radius of an ascent step of SAM and its relatives."""
    asam_rho: float = 0.5
    """Radius of an ascent step of ASAM and its relatives."""
    eta: float = 0.01
    """ASAM scales by |w| + eta."""
    k: int = 5
    """Ascent steps of Multistep and Lookbehind, fast steps of Lookahead, inner steps of C-MAML (parts of a batch)."""
    alpha: float | Literal["adaptive", "adaptive-per-tensor"] = 0.5
    """How far the slow weights follow, from 0 to 1, or adaptive."""
    clip: float | None = 2.0
    """Clip the norm of the gradient of every step (of the outer steps of C-MAML)."""
    clip_ascent: bool = False
    """Clip every gradient that is evaluated, as La-MAML's code would; else those of the descent only."""

    memory: int | None = None
    """Images that are remembered, of all tasks together. Usual for the data if not given: 200 or 400."""
    replay: int = 10
    """Remembered images per step; La-MAML's code takes 1 for experience replay."""
    reservoir: Literal["uniform", "la-maml"] = "uniform"
    """How the memory draws: exactly uniform, or as La-MAML's code does it, which favours the first images a little."""

    inner_lr: float | None = None
    """C-MAML: of the inner steps; the learning rate if not given."""
    meta_loss: Literal["last", "mean"] = "last"
    """C-MAML: the loss after the last inner step, or the mean over all of them as in La-MAML's code."""
    second_order: bool = True
    """C-MAML: differentiate through the inner steps?"""
    outer: Literal["printed", "meta"] = "printed"
    """Lookbehind-C-MAML: the outer gradient as the paper prints it, or through the inner loop at the climbed point."""
    climb: Literal["slow", "fast"] = "slow"
    """Lookbehind-C-MAML: does the climb begin at the slow weights, or is it added to the fast ones?"""

    width: int | None = None
    """Channels of the network's convolutions. Usual for the data if not given: 160."""
    hidden: int | None = None
    """Units of its hidden layers. Usual for the data if not given: 320 or 640."""
    evaluate: Literal["seen", "all"] = "all"
    """After each task measure on the tasks so far, or on all of them."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: int = 1
    """CPU threads of a run. They are part of it: float32 sums depend on them."""

    def __post_init__(self) -> None:
        one_of("data", self.data, tuple(STREAMS))
        for name in ("batch_size", "k", "threads"):
            count(name, getattr(self, name))
        for name in ("tasks", "epochs", "width", "hidden"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        if self.tasks is not None and self.tasks > STREAMS[self.data].tasks:
            raise ValueError(f"tasks={self.tasks}: {self.data} has {STREAMS[self.data].tasks}")
        count("replay", self.replay, at_least=0)
        if self.memory is not None:
            count("memory", self.memory, at_least=0)
        for name in ("rho", "asam_rho", "eta"):
            non_negative(name, getattr(self, name))
        for name in ("lr", "inner_lr"):
            if getattr(self, name) is not None:
                non_negative(name, getattr(self, name))
        if self.clip is not None:
            positive("clip", self.clip)
        following(self.alpha)
        one_of("reservoir", self.reservoir, LAWS)
        one_of("meta_loss", self.meta_loss, ("last", "mean"))
        one_of("outer", self.outer, ("printed", "meta"))
        one_of("climb", self.climb, ("slow", "fast"))
        one_of("evaluate", self.evaluate, ("seen", "all"))
        as_plain_numbers(self)
        check_device(self.device)

    def run(self, text: str, seed: int) -> LifelongRun:
        """The run for a method as people write it: ``er+lookbehind-sam:k=2,lr=0.03``."""
        name = text.partition(":")[0]
        of_optimizer = _optimizing(name)
        own = overrides(self, text, {of_optimizer.ascent if of_optimizer else "sam"}, ONE_METHOD)
        values = {f.name: getattr(self, f.name) for f in fields(LifelongSettings)} | own
        run = LifelongRun(**values, method=name, seed=seed)
        check_read(run, text, own)
        return run


def _optimizing(name: str) -> Method | None:
    """How the optimizer of a method is made; None for those with an inner loop of their own."""
    if name in META:
        return None
    plain = name.removeprefix(REPLAY)
    if plain not in METHODS:
        raise unknown_method(name, [*META, *METHODS, *(f"{REPLAY}{one}" for one in METHODS)])
    return METHODS[plain]


ONE_METHOD = ("data", "tasks", "epochs", "evaluate")  # the same for all methods, or nothing can be compared


@dataclass(frozen=True, kw_only=True)
class LifelongRun(LifelongSettings, Derived):
    """One lifelong training: settings, a method and a seed.

    The seed draws the order of the classes, what is held out, the first weights, the order of the images and their
    augmentation alike for all methods; and what is remembered and replayed.

    Examples:
        >>> LifelongRun(data="split-cifar100", method="er+lookbehind-sam", k=10, alpha=0.2, seed=0).id
        'er_lookbehind-sam-seed0-...'
    """

    method: str = "er+sgd"
    """A method as in `lookbehind list methods`; er+METHOD replays old images; lookahead-c-maml, lookbehind-c-maml."""
    seed: int = 0
    """Draws the classes, the first weights, the order of the images and all else that is random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count("seed", self.seed, at_least=0)
        if self.meta is None:
            found = self.optimizing
            if found.micro or found.switching or found.base not in ("", "sgd"):
                raise ValueError(f"method={self.method!r}: a learner's base is SGD, with one whole minibatch per step")
            if found.needs_a_number_for_alpha and isinstance(self.alpha, str):
                raise ValueError(f"alpha={self.alpha!r} with {self.method}: it needs a number, such as 0.5")
        elif self.k > self.batch_size:
            raise ValueError(
                f"k={self.k} with batch_size={self.batch_size}: {self.method} takes every inner step on images of its "
                "own; give a smaller k, or larger minibatches"
            )

    @cached_property
    def meta(self) -> Meta | None:
        """The meta-learning, if it is one of the C-MAML methods."""
        if self.method not in META:
            return None
        climbs = self.method == "lookbehind-c-maml"
        alpha = self.alpha if climbs else 1.0
        if isinstance(alpha, str):
            raise ValueError(f"alpha={self.alpha!r} with {self.method}: it needs a number, such as 1")
        lr = self.lr if self.lr is not None else COMMON["lr"]
        return Meta(
            chunks=self.k,
            rho=self.rho if climbs else None,
            climb=self.climb,
            alpha=alpha,
            inner_lr=float(lr if self.inner_lr is None else self.inner_lr),
            loss=self.meta_loss,
            second_order=self.second_order,
            outer=self.outer,
        )

    @property
    def optimizing(self) -> Method:
        """How the learner's optimizer is made."""
        found = _optimizing(self.method)
        if found is None:
            raise ValueError(f"{self.method} has an inner loop of its own")
        return found

    @property
    def base_lr(self) -> float:
        """The learning rate of the base; times ``alpha k`` for a long step."""
        return float(self.filled.lr or 0.0) * (1.0 if self.meta is not None else self.optimizing.lr_factor(self))

    @property
    def replays(self) -> bool:
        """Does it have a memory?"""
        return self.method in META or self.method.startswith(REPLAY)

    def radius(self, ascent: str) -> float:
        """Rho for this kind of ascent."""
        return self.asam_rho if ascent == "asam" else self.rho

    @property
    def batchnorm(self) -> str:
        """The network has none."""
        return "all"

    @property
    def gradients_per_minibatch(self) -> int:
        """Gradient evaluations of a whole one."""
        return self.meta.gradients if self.meta is not None else self.optimizing.gradients(self.k)

    @property
    def cost(self) -> float:
        """Of the whole run, in some unit: epochs times gradients."""
        return float(self.filled.epochs or 0) * self.gradients_per_minibatch

    @property
    def numbers(self) -> dict[str, Any]:
        """What tells it from other runs of its method, in short."""
        names = ("lr", "rho", "asam_rho", "k", "alpha", "outer", "replay")
        return {name: value for name, value in self.identity.items() if name in names}

    @property
    def source(self) -> str:
        """The data set with the images."""
        return STREAMS[self.data].source

    @property
    def clipping(self) -> clip_norm | None:
        """Of the gradients."""
        return None if self.clip is None else clip_norm(self.clip, ascent=self.clip_ascent)

    @cached_property
    def filled(self) -> LifelongRun:
        """The same run with every None replaced by what is usual."""
        usual = {**COMMON, **USUAL.get(self.data, {})}
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return replace(self, **missing, device=resolved(self.device))

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that decide the outcome, and no others."""
        meta = self.meta is not None
        climbs = self.method == "lookbehind-c-maml"
        read = () if self.meta is not None else self.optimizing.numbers
        ascent = "sam" if climbs else "" if meta else self.optimizing.ascent
        conditions = {
            "rho": ascent == "sam",
            "asam_rho": ascent == "asam",
            "eta": "eta" in read,
            "k": meta or "k" in read,
            "alpha": climbs or "alpha" in read,
            "clip_ascent": not meta,
            "memory": self.replays,
            "replay": self.replays,
            "reservoir": self.replays,
            **dict.fromkeys(("inner_lr", "meta_loss", "second_order"), meta),
            **dict.fromkeys(("outer", "climb"), climbs),
        }
        unread = {name for name, matters in conditions.items() if not matters}
        return {f.name: getattr(self.filled, f.name) for f in fields(self) if f.name not in unread}

    @property
    def whole_epochs(self) -> int:
        """Of all tasks together."""
        return int(self.filled.epochs or 0) * (self.tasks or STREAMS[self.data].tasks)

    def begin(self, data: VisionData) -> LifelongTraining:
        """The training, at its beginning."""
        from lookbehind.lifelong.protocol import LifelongTraining  # which needs this module

        return LifelongTraining(self, data)
