"""The ascent step: how far and in which direction to climb from a gradient.

Every rule of the paper has the form ``rho * T^2 g / |T g|`` with a diagonal scaling ``T``, so a rule *is* its ``T``:
``sam`` has ``T = 1`` and ``asam`` has ``T = |w| + eta``. The step maximises the linearised loss over the
ellipsoid ``|e / T| <= rho``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lookbehind.optim.checks import non_negative, one_of
from lookbehind.optim.weights import Room, Scratch, Vector, on, overlapping, real, total_norm, widened

NAMES = "param_names"  # torch's, in a group of named parameters
COUNTERS = ("ascent_steps", "ascent_evaluations", "ascent_skipped")
KEYS = ("ascent_rho", "ascent_eta", *COUNTERS)
TINY = 1e-16  # keeps a zero gradient from dividing by zero: it then gives a zero perturbation


@dataclass(frozen=True, slots=True)
class Leaf:
    """A parameter and what its group says about climbing."""

    parameter: Tensor
    name: str | None
    rho: float
    eta: float | None = None
    sign: float = 1.0  # -1 where the base optimizer maximises: the worst neighbour is then the lowest one

    def __str__(self) -> str:
        return f"parameter {self.name!r}" if self.name else f"parameter of shape {tuple(self.parameter.shape)}"


def check_keys(groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a misspelt setting: torch would keep it and nobody would read it."""
    for number, group in enumerate(groups):
        for key in group:
            if str(key).startswith("ascent_") and key not in KEYS:
                raise ValueError(f"param_groups[{number}][{key!r}]: no such setting; there are ascent_rho, ascent_eta")


def leaves_of(groups: Sequence[Mapping[str, Any]], rho: float, factor: float = 1.0) -> list[Leaf]:
    """The parameters that can have a gradient, each with its group's radius (or ``rho``) times ``factor``."""
    leaves = []
    for number, group in enumerate(groups):
        own_rho, eta = group.get("ascent_rho"), group.get("ascent_eta")
        radius = rho if own_rho is None else non_negative(f"param_groups[{number}]['ascent_rho']", own_rho)
        eta = None if eta is None else non_negative(f"param_groups[{number}]['ascent_eta']", eta)
        names = group.get(NAMES) or [None] * len(group["params"])
        if len(names) != len(group["params"]):
            raise ValueError(
                f"param_groups[{number}] has {len(group['params'])} params and {len(names)} param_names: "
                "change both together"
            )
        sign = -1.0 if group.get("maximize") else 1.0
        leaves += [
            Leaf(parameter, name, radius * factor, eta, sign)
            for parameter, name in zip(group["params"], names, strict=True)
            if parameter.requires_grad
        ]
    if not leaves:
        raise RuntimeError("no parameter of the base optimizer has requires_grad=True: there is nothing to train")
    return leaves


class Rule(Protocol):
    """A diagonal scaling. Scalings of your own are functions of this form."""

    def __call__(self, leaf: Leaf, slow: Tensor, point: Tensor, room: Room) -> Tensor | None:
        """``T`` of one tensor, or None for the identity; its signs do not matter, for it is used as ``T^2``.

        Args:
            leaf: the parameter.
            slow: its values before the step.
            point: its values where the gradient was taken.
            room: gives scratch memory like a tensor, to put ``T`` in; valid until it is asked again, and the same
                tensor object each time, so change nothing of it but its values. A tensor of any other memory is left
                as it is.
        """
        ...


def sam(leaf: Leaf, slow: Tensor, point: Tensor, room: Room) -> None:
    """SAM: ``T = 1``, so that ``e = rho * g / |g|`` (Foret et al., 2021)."""


@dataclass(frozen=True)
class asam:  # noqa: N801, a value with arguments, used like a function: ascent=asam(eta=0.01)
    """ASAM: ``T = |w| + eta`` element by element, so that ``e = rho * T^2 g / |T g|`` (Kwon et al., 2021).

    Args:
        eta: keeps ``T`` away from zero; a group's ``ascent_eta`` takes precedence.
        scale: which parameters are scaled; ``T = 1`` for the others.
            ``"auto"``: those whose name contains "weight" (norm layers included, biases not) where the base optimizer
            was given ``named_parameters()``, else those with two or more dimensions;
            ``"names"``, ``"dimensions"``: one of the two, always; ``"all"``; or a function of (name, parameter).
        at: ``"point"`` takes the weights where the gradient was taken, ``"slow"`` those before the step.

    Examples:
        >>> SharpnessAware(base, ascent=asam(eta=0.01), rho=0.5)
    """

    eta: float = 0.01
    scale: str | Callable[[str | None, Tensor], bool] = "auto"
    at: str = "point"

    def __post_init__(self) -> None:
        non_negative("eta", self.eta)
        if not callable(self.scale):
            one_of("scale", self.scale, ("auto", "names", "dimensions", "all"), "or a function of (name, parameter)")
        one_of("at", self.at, ("point", "slow"))

    def scales(self, leaf: Leaf) -> bool:
        """Is this parameter scaled by its own size?"""
        if callable(self.scale):
            return bool(self.scale(leaf.name, leaf.parameter))
        if self.scale == "names" and leaf.name is None:
            raise ValueError(
                f"scale='names', but {leaf} has no name: give the base optimizer model.named_parameters(), "
                "or choose scale='dimensions'"
            )
        if self.scale in ("auto", "names") and leaf.name is not None:
            return "weight" in leaf.name
        return self.scale == "all" or leaf.parameter.dim() >= 2

    def __call__(self, leaf: Leaf, slow: Tensor, point: Tensor, room: Room) -> Tensor | None:
        """``|w| + eta`` (``w`` itself where ``eta = 0``), or None where ``T = 1``."""
        if not self.scales(leaf):
            return None
        weight = widened(slow if self.at == "slow" else point)
        eta = self.eta if leaf.eta is None else leaf.eta
        return torch.abs(weight, out=room(weight)).add_(eta) if eta else weight


def reads_slow(rule: Rule) -> bool:
    """May a rule read the weights before the step? Those may wait on the CPU; a rule of your own is taken to."""
    return rule is not sam and getattr(rule, "at", "slow") == "slow"


def refuse_gradients(leaves: Sequence[Leaf]) -> None:
    """A gradient before the step is a forgotten ``zero_grad``, or one that should have been announced."""
    for leaf in leaves:
        if leaf.parameter.grad is not None:
            raise RuntimeError(
                f"{leaf} has a gradient before the step: call optimizer.zero_grad() first; or, if it is the "
                "gradient of this minibatch at the current weights, announce it: step(given(loss, closure)). "
                "For gradient accumulation let the closure run over all micro-batches"
            )


def refuse_shared_memory(leaves: Sequence[Leaf]) -> None:
    """Two parameters over the same memory would be perturbed twice, or once by the wrong one."""
    shared = overlapping([leaf.parameter for leaf in leaves])
    if shared:
        raise ValueError(
            f"{leaves[shared[0]]} and {leaves[shared[1]]} are two parameters over the same memory: each would be "
            "moved twice. Tie them as one: module_b.weight = module_a.weight, not .data"
        )


Gradients = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class Slope:
    """The gradients at a point, with the rule that makes an ascent step of them."""

    rule: Rule
    leaves: Sequence[Leaf]
    slow: Sequence[Tensor]
    """The weights before the step."""
    point: Vector
    """Where the gradients were taken."""
    gradients: Gradients
    scratch: Scratch

    def scaled_norm(self, norms: Sequence[Tensor | None], products: list[Tensor | None]) -> Tensor:
        """``|T g|``: one norm over all parameters with a gradient and ``rho > 0``.

        Args:
            norms: the ``|g|`` of each parameter, which serve where ``T = 1``.
            products: memory for the ``T g`` that ``ascend`` may go on from, or None; what is left in it was used.
        """
        parts: list[Tensor] = []
        owners: list[Tensor] = []
        for i, (leaf, here, gradient, norm) in enumerate(
            zip(self.leaves, self.point, self.gradients, norms, strict=True)
        ):
            room, products[i] = products[i], None
            if gradient is None or norm is None or leaf.rho == 0:
                continue
            scaling = self._scaling(i, here)
            if scaling is not None:
                self._check_shape(scaling, leaf, here)
                if room is not None and room.dtype is scaling.dtype:  # not where half precision would round it
                    products[i] = room
                else:
                    room = self.scratch.temporary(scaling)
                norm = torch.linalg.vector_norm(torch.mul(scaling, real(gradient), out=room))
            parts.append(norm)
            owners.append(gradient)
        return total_norm(parts, owners)

    def _scaling(self, i: int, here: Tensor) -> Tensor | None:
        # the slow weights without a name: they are let go of, should they be a copy that came back from the CPU
        return self.rule(self.leaves[i], self.slow[i], here, self.scratch.temporary)

    def _check_shape(self, scaling: Tensor, leaf: Leaf, here: Tensor) -> None:
        if scaling.shape != here.shape:
            raise ValueError(
                f"ascent={self.rule!r} gave a T of shape {tuple(scaling.shape)} for {leaf} of shape "
                f"{tuple(here.shape)}: give one of that shape, for example T.expand_as(point)"
            )

    def ascend(self, scaled_norm: Tensor, products: Gradients, out: Vector) -> None:
        """``out <- point + rho * T^2 g / |T g|``; where nothing climbs, ``out <- point``.

        Args:
            scaled_norm: ``|T g|``.
            products: the ``T g`` of each parameter where ``scaled_norm`` has kept it, or None.
            out: where to; it may be the memory of ``point``.
        """
        scales: dict[tuple[float, torch.device, torch.dtype], Tensor] = {}
        for i, (leaf, origin, gradient, product, target) in enumerate(
            zip(self.leaves, self.point, self.gradients, products, out, strict=True)
        ):
            if gradient is None or leaf.rho == 0:
                if target is not origin:
                    target.copy_(origin)
                continue
            direction, wide_origin = gradient, origin
            if not (type(gradient) is Tensor and gradient.dtype is origin.dtype is torch.float32):  # asked before calls
                # half precision is widened: its scale rho / |g| may overflow, and the sum is rounded only once
                direction, wide_origin = widened(real(gradient)), widened(origin)
            key = (leaf.sign * leaf.rho, direction.device, wide_origin.dtype)
            if key not in scales:
                scales[key] = on(direction.device, key[0] / (scaled_norm + TINY)).to(wide_origin.dtype)
            scaling = self._scaling(i, origin)
            if scaling is not None:
                direction = self._scaled(scaling, direction, product).mul_(scaling)
            if wide_origin is origin:
                if direction.dtype != origin.dtype:  # asked first: `to` takes a microsecond to do nothing
                    direction = direction.to(origin.dtype)
                torch.addcmul(origin, direction, scales[key], out=target)
            else:
                target.copy_(torch.addcmul(wide_origin, direction, scales[key]))

    def _scaled(self, scaling: Tensor, direction: Tensor, product: Tensor | None) -> Tensor:
        """``T g``, computed again where it was not kept, in memory where ``T`` is not."""
        if product is not None:
            return product
        room = self.scratch.temporary(scaling)
        if room.untyped_storage()._cdata == scaling.untyped_storage()._cdata:
            room = self.scratch.temporary(scaling, 1)
        return torch.mul(scaling, direction, out=room)
