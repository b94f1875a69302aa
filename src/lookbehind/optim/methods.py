"""The methods of the paper by name: constructors that pick parts.

Every one takes the options of ``SharpnessAware`` beside its own arguments: ``reach``, ``schedule``,
``model``, ``batchnorm``, ``rng``, ``nonfinite``, ``restore``, ``cosine``, ``clip``, ``scaler``, ``ranks``, ``offload``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Unpack  # torch needs it too

from lookbehind.optim.ascent import asam
from lookbehind.optim.checks import one_of, shown
from lookbehind.optim.clipping import Clip
from lookbehind.optim.descent import Descent, each, last, mean, mean_with_clean, repeat
from lookbehind.optim.interpolation import following
from lookbehind.optim.schedule import Schedule
from lookbehind.optim.sharpness_aware import SharpnessAware
from lookbehind.optim.wrapper import checked_base

Scale = str | Callable[[str | None, Tensor], bool]


class Options(TypedDict, total=False):
    """The options that all methods share; ``SharpnessAware`` explains them."""

    reach: str
    schedule: Schedule | None
    model: nn.Module | None
    batchnorm: str
    rng: str
    nonfinite: str
    restore: str
    cosine: str
    clip: Clip | None
    scaler: torch.amp.GradScaler | None
    ranks: str
    offload: bool


P = ParamSpec("P")


def _method(make: Callable[P, SharpnessAware]) -> Callable[P, SharpnessAware]:
    """Check what Python's own errors would say less clearly, and give the optimizer its method's name."""
    name = make.__name__
    own = [key for key, p in signature(make).parameters.items() if p.kind is Parameter.KEYWORD_ONLY]
    known = [*own, *Options.__annotations__]

    @wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> SharpnessAware:
        if len(args) > 1:
            raise TypeError(
                f"{name}(base, {shown(args[1])}): give the base optimizer as an instance and the rest by name, such as "
                f"{name}(torch.optim.SGD(model.named_parameters(), lr=0.1), rho=0.05)"
            )
        for key in kwargs:
            if key not in known and key != "base":
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise TypeError(f"{name}({key}=...): no such argument; {hint}there are {', '.join(known)}")
        checked_base(args[0] if args else kwargs.get("base"), name)
        optimizer = make(*args, **kwargs)
        optimizer.name = name
        return optimizer

    checked.__doc__ = (
        f"{make.__doc__}\n    Options, explained at SharpnessAware: {', '.join(Options.__annotations__)}.\n    "
    )
    return checked


@_method
def SAM(base: Optimizer, *, rho: float = 0.05, **options: Unpack[Options]) -> SharpnessAware:
    """SAM (Foret et al., 2021): climb once, descend with the gradient found there. 2 evaluations per step.

    ``w <- base step on w with g(w + rho g(w) / |g(w)|)``

    Examples:
        >>> optimizer = SAM(torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9), rho=0.05)
        >>> loss = optimizer.step(closure)
    """
    return SharpnessAware(base, rho=rho, **options)


@_method
def ASAM(
    base: Optimizer,
    *,
    rho: float = 0.5,
    eta: float = 0.01,
    scale: Scale = "auto",
    at: str = "point",
    **options: Unpack[Options],
) -> SharpnessAware:
    """ASAM (Kwon et al., 2021): SAM in a neighbourhood that scales with the weights. 2 evaluations per step.

    ``w <- base step on w with g(w + rho T^2 g / |T g|)``, ``T = |w| + eta`` for the parameters that
    ``asam`` scales (``scale``, ``at``: explained there).
    """
    return SharpnessAware(base, rho=rho, ascent=asam(eta, scale, at), **options)


@_method
def MultistepSAM(
    base: Optimizer, *, rho: float = 0.05, k: int = 5, average: bool | str = False, **options: Unpack[Options]
) -> SharpnessAware:
    """Multistep-SAM: climb ``k`` times, descend with the last gradient, or their average. k + 1 evaluations per step.

    Args:
        average: False descends on the last gradient, True on the mean of the ``k`` perturbed points,
            ``"with-clean"`` on the mean of all ``k + 1`` points.
    """
    return SharpnessAware(base, rho=rho, k=k, descent=_averaging(average), **options)


@_method
def MultistepASAM(
    base: Optimizer,
    *,
    rho: float = 0.5,
    k: int = 5,
    eta: float = 0.01,
    average: bool | str = False,
    scale: Scale = "auto",
    at: str = "point",
    **options: Unpack[Options],
) -> SharpnessAware:
    """Multistep-ASAM: ``MultistepSAM`` with ASAM's ascent steps; ``at="slow"`` takes ``T`` before the climb."""
    return SharpnessAware(base, rho=rho, k=k, ascent=asam(eta, scale, at), descent=_averaging(average), **options)


@_method
def LookbehindSAM(
    base: Optimizer, *, rho: float = 0.05, k: int = 5, alpha: float | str = 0.5, **options: Unpack[Options]
) -> SharpnessAware:
    """Lookbehind-SAM: climb ``k`` times, let the fast weights descend on each gradient, follow with the slow ones.

    ``w <- w + alpha (fast_k - w)``; k + 1 evaluations per step.

    Args:
        alpha: a number in [0, 1]; ``"adaptive"``: ``(c + 1) / 2`` with the cosine ``c`` between the first base step and
            all ``k`` of them, one over the whole vector; ``"adaptive-per-tensor"``: one per tensor.

    At the same learning rate it moves about ``alpha k`` times as far per minibatch as SAM.

    Examples:
        >>> base = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
        >>> optimizer = LookbehindSAM(base, rho=0.05, k=5, alpha="adaptive", model=model, batchnorm="first")
        >>> loss = optimizer.step(closure)
    """
    return SharpnessAware(base, rho=rho, k=k, descent=each, interpolation=following(alpha), **options)


@_method
def LookbehindASAM(
    base: Optimizer,
    *,
    rho: float = 0.5,
    eta: float = 0.01,
    k: int = 5,
    alpha: float | str = 0.5,
    scale: Scale = "auto",
    at: str = "point",
    **options: Unpack[Options],
) -> SharpnessAware:
    """Lookbehind-ASAM: ``LookbehindSAM`` with ASAM's ascent steps, ``rho T^2 g / |T g|`` with ``T = |w| + eta``.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of an ascent step, about ten times SAM's.
        eta: keeps ``T`` away from zero.
        k: number of ascent steps, and of base steps.
        alpha: as for ``LookbehindSAM``.
        scale: which parameters are scaled; see ``asam``.
        at: ``"slow"`` takes ``T`` at the weights before the climb, in place of those of each ``"point"``.
    """
    ascent, follow = asam(eta, scale, at), following(alpha)
    return SharpnessAware(base, rho=rho, k=k, ascent=ascent, descent=each, interpolation=follow, **options)


@_method
def RepeatSAM(
    base: Optimizer, *, rho: float = 0.15, k: int = 5, alpha: float | str = 0.5, **options: Unpack[Options]
) -> SharpnessAware:
    """Lookbehind-SAM with one gradient in place of ``k``: climb once, and farther. 2 evaluations per step.

    The fast weights take ``k`` base steps with ``g(w + rho g(w) / |g(w)|)``, and ``w <- w + alpha (fast_k - w)``.

    Args:
        rho: radius of the one ascent step. Lookbehind's points lie ``(k + 1) / 2`` of its radii away in the mean, so
            begin with three times its rho for k = 5.
        k: number of base steps.
        alpha: as for ``LookbehindSAM``.

    Not in the paper. On our networks it ended no lower than Lookbehind-SAM, see docs/results/repeated.md.

    Examples:
        >>> base = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
        >>> optimizer = RepeatSAM(base, rho=0.15, k=5, alpha=0.5)
        >>> loss = optimizer.step(closure)
    """
    return SharpnessAware(base, rho=rho, k=k, descent=repeat, interpolation=following(alpha), **options)


@_method
def RepeatASAM(
    base: Optimizer,
    *,
    rho: float = 1.5,
    eta: float = 0.01,
    k: int = 5,
    alpha: float | str = 0.5,
    scale: Scale = "auto",
    **options: Unpack[Options],
) -> SharpnessAware:
    """Lookbehind-ASAM with one gradient in place of ``k``: ``RepeatSAM`` with ASAM's ascent step.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the one ascent step, about ten times ``RepeatSAM``'s.
        eta: keeps ``T`` away from zero.
        k: number of base steps.
        alpha: as for ``LookbehindSAM``.
        scale: which parameters are scaled; see ``asam``.
    """
    ascent, follow = asam(eta, scale), following(alpha)
    return SharpnessAware(base, rho=rho, k=k, ascent=ascent, descent=repeat, interpolation=follow, **options)


def _averaging(average: bool | str) -> Descent:
    one_of("average", average, (False, True, "with-clean"))  # type: ignore[arg-type]
    return mean_with_clean if average == "with-clean" else mean if average else last
