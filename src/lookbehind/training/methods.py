"""Methods by name, and the optimizer that a name stands for.

    sgd, adam, adamw                    the optimizer alone; lookahead-sgd, ... inside Lookahead
    sam, asam                           around the run's base optimizer; and for each of the two
    multistep-sam, multistep-sam-mean   k ascent steps, descent with the last gradient or their mean
    lookahead-sam                       inside Lookahead
    lookbehind-sam                      descent with each of the k gradients, then interpolation
    m-sam, multistep-m-sam, lookbehind-m-sam    every micro-batch climbs on its own
    lookbehind-sam-switching            a new minibatch per ascent step
    sam-long-step, sam-matched, repeat-sam      controls for Lookbehind's longer step

``sam+lookbehind-sam@20`` switches after epoch 20, with the state of the base optimizer kept. Settings of one method are
written behind it: ``lookbehind-sam:k=2,alpha=adaptive``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from lookbehind.optim import descent as descents
from lookbehind.optim.ascent import asam, sam
from lookbehind.optim.clipping import clip_norm
from lookbehind.optim.descent import Descent
from lookbehind.optim.interpolation import following, none
from lookbehind.optim.lookahead import Lookahead
from lookbehind.optim.schedule import Schedule
from lookbehind.optim.sharpness_aware import SharpnessAware

BASES = ("sgd", "adam", "adamw")


class Numbers(Protocol):
    """What a method's optimizer is made from; every ``Run`` has it."""

    def radius(self, ascent: str) -> float:
        """Rho for "sam" or "asam"."""
        ...

    @property
    def eta(self) -> float:
        """ASAM's."""
        ...

    @property
    def k(self) -> int:
        """Steps."""
        ...

    @property
    def alpha(self) -> float | str:
        """How far the slow weights follow."""
        ...

    @property
    def batchnorm(self) -> str:
        """Which passes count for running statistics."""
        ...

    @property
    def clipping(self) -> clip_norm | None:
        """Of the gradient of every base step."""
        ...


@dataclass(frozen=True)
class Method:
    """The parts that a name stands for."""

    name: str
    about: str
    ascent: str = ""
    """"sam" or "asam"; empty for a method that does not climb."""
    descent: Descent = descents.clean
    multistep: bool = False
    """Does it take ``k`` ascent or base steps (or Lookahead steps)? Else one."""
    interpolates: bool = False
    lookahead: bool = False
    micro: bool = False
    switching: bool = False
    """Does every ascent step take a new minibatch?"""
    base: str = ""
    """The base optimizer, where the name says it; else the run's."""
    long_step: bool = False
    """A control: the learning rate times ``alpha k``."""
    wide: bool = False
    """A control: rho times ``(k + 1) / 2``, the mean reach of a climb of ``k`` steps."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """The settings that this method reads."""
        read = {
            "rho": bool(self.ascent),
            "eta": self.ascent == "asam",
            "k": self.multistep or self.lookahead or self.long_step,
            "alpha": self.interpolates or self.lookahead or self.long_step,
            "micro_batch": self.micro,
            "every": self.can_spare,
            "ascent_part": self.can_spare,
        }
        return tuple(name for name, is_read in read.items() if is_read)

    @property
    def can_spare(self) -> bool:
        """Can it climb now and then only, or on a part of the minibatch?"""
        return bool(self.ascent) and not (self.micro or self.switching or self.lookahead)

    @property
    def needs_a_number_for_alpha(self) -> bool:
        """Lookahead and the controls cannot use an adaptive alpha."""
        return self.lookahead or self.long_step

    def gradients(self, k: int) -> int:
        """Gradient evaluations per minibatch."""
        if self.switching:
            return 2  # nothing can be used again: both gradients of a step are of its own minibatch
        return descents.ascents(self.descent(k if self.multistep else 1)) + 1

    def minibatches(self, k: int) -> int:
        """That one step takes."""
        return k if self.switching else 1

    def rho(self, numbers: Numbers) -> float:
        """The radius of its ascent steps."""
        if not self.ascent:
            return 0.0
        return numbers.radius(self.ascent) * ((numbers.k + 1) / 2 if self.wide else 1.0)

    def lr_factor(self, numbers: Numbers) -> float:
        """What the learning rate is multiplied by while it is used: ``alpha k`` for a long step."""
        return float(numbers.alpha) * numbers.k if self.long_step else 1.0

    def optimizer(
        self,
        base: Optimizer,
        model: nn.Module,
        numbers: Numbers,
        scaler: torch.amp.GradScaler | None = None,
        ranks: str = "together",
        rng: str = "fresh",
        offload: bool = False,
        every: int = 1,
    ) -> Optimizer:
        """The optimizer around a base that may have been in use before: its state is kept."""
        optimizer = base
        if self.ascent or self.micro or scaler is not None or numbers.clipping is not None:
            optimizer = SharpnessAware(
                base,
                rho=self.rho(numbers),
                k=numbers.k if self.multistep else 1,
                ascent=asam(numbers.eta) if self.ascent == "asam" else sam,
                descent=self.descent,
                interpolation=following(numbers.alpha) if self.interpolates else none,
                model=model,
                batchnorm=numbers.batchnorm,
                rng=rng,
                clip=numbers.clipping,
                scaler=scaler,
                ranks=ranks,
                offload=offload,
                schedule=Schedule(every=every) if self.can_spare else None,
            )
        if not self.lookahead:
            return optimizer
        return Lookahead(optimizer, k=numbers.k, alpha=float(numbers.alpha), model=model, offload=offload)


def _methods() -> Iterator[Method]:
    for base in BASES:
        name = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[base]
        yield Method(base, f"{name} alone", base=base)
        yield Method(f"lookahead-{base}", f"{name} inside Lookahead (k, alpha)", lookahead=True, base=base)
    yield Method("m-sgd", "control: BatchNorm sees micro-batches, as in m-SAM", micro=True, base="sgd")
    last, mean, each, repeat = descents.last, descents.mean, descents.each, descents.repeat
    for a in ("sam", "asam"):
        upper = a.upper()
        yield Method(a, f"climb once, descend with the gradient there ({upper})", a, last)
        for m, words in (("", ""), ("m-", ", every micro-batch on its own")):
            micro = bool(m)
            if micro:
                yield Method(f"m-{a}", f"{upper}{words}", a, last, micro=True)
            yield Method(
                f"multistep-{m}{a}",
                f"climb k times, use the last gradient{words}",
                a,
                last,
                multistep=True,
                micro=micro,
            )
            yield Method(
                f"multistep-{m}{a}-mean",
                f"climb k times, use the mean gradient{words}",
                a,
                mean,
                multistep=True,
                micro=micro,
            )
            yield Method(
                f"lookbehind-{m}{a}",
                f"climb k times, descend with each, interpolate{words}",
                a,
                each,
                multistep=True,
                interpolates=True,
                micro=micro,
            )
        yield Method(f"lookahead-{a}", f"{upper} inside Lookahead (k, alpha)", a, last, lookahead=True)
        yield Method(
            f"{a}-long-step", f"control: {upper} with the learning rate times alpha k", a, last, long_step=True
        )
        yield Method(
            f"{a}-matched",
            "control: learning rate times alpha k, rho times (k + 1) / 2",
            a,
            last,
            long_step=True,
            wide=True,
        )
        yield Method(
            f"lookbehind-{a}-switching",
            "Lookbehind with a new minibatch per ascent step: the cost of SAM",
            a,
            each,
            multistep=True,
            interpolates=True,
            switching=True,
        )
        yield Method(
            f"repeat-{a}",
            "control: Lookbehind with its first gradient k times; begin with 3 times its rho",
            a,
            repeat,
            multistep=True,
            interpolates=True,
        )


METHODS: dict[str, Method] = {method.name: method for method in _methods()}


def method(name: str) -> Method:
    """A method by its name."""
    if name not in METHODS:
        raise unknown_method(name, METHODS)
    return METHODS[name]


def unknown_method(name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not among the known ones, with those that are near."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return ValueError(f"method={name!r}: {hint}`lookbehind list` shows the {len(METHODS)} methods")


@dataclass(frozen=True)
class Phase:
    """A method from an epoch on."""

    start: int
    method: Method


def phases(text: str) -> tuple[Phase, ...]:
    """The methods of a training: ``sam+lookbehind-sam@20+sam@60``, one or several with the epochs where they begin."""
    first, *later = text.split("+")
    if "@" in first:
        raise ValueError(f"method={text!r}: the first method begins at once; epochs are for later ones: sgd+sam@3")
    found = [Phase(0, method(first))]
    for part in later:
        match = re.fullmatch(r"([\w-]+)@(\d+)", part)
        if match is None:
            raise ValueError(f"method={text!r}: write the later parts as NAME@EPOCH, such as sam+lookbehind-sam@20")
        phase = Phase(int(match[2]), method(match[1]))
        if phase.start <= found[-1].start:
            raise ValueError(f"method={text!r}: the epochs where methods begin must grow, from 1 on")
        found.append(phase)
    if len({phase.method.base for phase in found} - {""}) > 1:
        raise ValueError(f"method={text!r}: the base optimizer is kept over a switch, so it must be the same")
    return tuple(found)


def base_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool = False,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> Optimizer:
    """SGD, Adam or AdamW over the named parameters; ``momentum`` is SGD's, or the first of Adam's betas."""
    parameters = list(model.named_parameters())
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(parameters, lr=lr, betas=(momentum, beta2), eps=eps, weight_decay=weight_decay)
