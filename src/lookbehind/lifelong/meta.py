"""Meta-learning through an inner loop (C-MAML): what it is, and the gradient through it.

The way back through the inner loop is written by hand, as products of Hessians and vectors: differentiating the walk
itself would read and write all weights many times more, which here costs as much as the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lookbehind.lifelong.memory import Examples
from lookbehind.optim.checks import count, fraction, non_negative, one_of, positive
from lookbehind.optim.weights import Vector, dot, norms, total_norm

Answers = Callable[[Sequence[Tensor], Examples], tuple[Tensor, Tensor]]
"""The logits of examples at some weights, and the labels among them."""


@dataclass(frozen=True)
class Meta:
    """How C-MAML learns.

    The inner loop walks over the minibatch in ``chunks`` parts ``b_i``:

        ``f_0 = p_0 = w``; ``p_{i+1} = p_i + rho g_i / |g_i|`` with ``g_i = grad L(p_i; b_i)``;
        ``f_{i+1} = f_i - inner_lr clamp(grad L(p_{i+1}; b_i))``; then ``a(w) = w + alpha (f_k - w)``

    With ``rho = None`` there is no climb: ``f_{i+1} = f_i - inner_lr clamp(grad L(f_i; b_i))``. The meta-loss is
    ``M(w) = L(a(w); the minibatch and replayed examples)``, and the step goes along its gradient.

    Lookahead-C-MAML, the paper's algorithm 3: ``Meta()``. The same as the code of Gupta et al. has it, with the loss
    after every inner step: ``Meta(loss="mean")``. Lookbehind-C-MAML: ``Meta(rho=0.005, chunks=2)``; with ``rho = 0``,
    ``alpha = 1`` and ``outer = "meta"`` it is Lookahead-C-MAML, but only if ``climb = "fast"``, for a chain that begins
    at ``w`` and does not climb takes all its gradients there.
    """

    chunks: int = 5
    """Inner steps per minibatch."""
    rho: float | None = None
    """Radius of the ascent steps; None: there are none (Lookahead-C-MAML)."""
    climb: Literal["slow", "fast"] = "slow"
    """Do the ascent steps begin at ``w``, as Lookbehind's do, or are they added to the fast weights? The latter is
    Lookahead-C-MAML where rho is 0, alpha 1 and ``outer`` "meta"."""
    alpha: float = 1.0
    """How far the inner loop's result is followed."""
    inner_lr: float = 0.03
    inner_clip: float = 2.0
    """Every entry of an inner gradient is clamped to this."""
    loss: Literal["last", "mean"] = "last"
    """The meta-loss after the last inner step, or the mean over those after each (La-MAML's code)."""
    second_order: bool = True
    """Differentiate through the inner loop; else its gradients are taken for constants."""
    outer: Literal["printed", "meta"] = "printed"
    """With rho, the outer step's gradient is taken at ``w + rho m / |m|``, ``m = grad M(w)``. "printed", as in the
    paper's algorithm 4: of the plain loss there. "meta": of the meta-loss, the inner loop restarted there."""

    def __post_init__(self) -> None:
        count("chunks", self.chunks)
        if self.rho is not None:
            non_negative("rho", self.rho)
        fraction("alpha", self.alpha)
        non_negative("inner_lr", self.inner_lr)
        positive("inner_clip", self.inner_clip)
        one_of("climb", self.climb, ("slow", "fast"))
        one_of("loss", self.loss, ("last", "mean"))
        one_of("outer", self.outer, ("printed", "meta"))

    @property
    def gradients(self) -> int:
        """Gradients per minibatch: of the inner steps, and of the losses that the outer step is made from."""
        meta = self.chunks * (1 if self.rho is None else 2) + (self.chunks if self.loss == "mean" else 1)
        if self.rho is None:
            return meta
        return meta + (1 if self.outer == "printed" else meta)


class Evaluation:
    """The loss of examples at some weights, its gradient, and products with its Hessian.

    Args:
        answers: of the network.
        weights: where.
        examples: on which.
        twice: shall there be products with the Hessian? Each evaluation gives one, for which it keeps its graph.
    """

    def __init__(self, answers: Answers, weights: Vector, examples: Examples, *, twice: bool = False) -> None:
        self._point = [w.detach().requires_grad_() for w in weights]
        with torch.enable_grad():
            seen = answers(self._point, examples)
            loss = F.cross_entropy(*seen)
            found = torch.autograd.grad(loss, self._point, create_graph=twice, materialize_grads=True)
        self._graph = found if twice else ()
        self.loss, self.seen = loss.detach(), (seen[0].detach(), seen[1])
        self.gradient = [_as_its_weight(g.detach(), w) for g, w in zip(found, weights, strict=True)]

    def hessian_times(self, vector: Vector) -> Vector:
        """``H v``; once."""
        # a gradient that depends on no weight, as of a weight that is not used, has no second derivative
        both = [(g, v) for g, v in zip(self._graph, vector, strict=True) if g.requires_grad]
        self._graph = ()
        if not both:
            return [torch.zeros_like(v) for v in vector]
        gradients, along = zip(*both, strict=True)
        found = torch.autograd.grad(gradients, self._point, along, materialize_grads=True)
        return [_as_its_weight(h, w) for h, w in zip(found, self._point, strict=True)]


def _as_its_weight(gradient: Tensor, weight: Tensor) -> Tensor:
    """In the weight's order in memory: sums of tensors of different orders are several times as slow."""
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient).detach()


class Climb(Evaluation):
    """An evaluation from which ``rho g / |g|`` is climbed."""

    def __init__(self, rho: float, answers: Answers, weights: Vector, examples: Examples, *, twice: bool) -> None:
        super().__init__(answers, weights, examples, twice=twice)
        self._norm = length(self.gradient)
        self._reach = rho / self._norm

    def onwards(self, point: Vector) -> Vector:
        """``p + rho g / |g|``."""
        return _moved(point, self.gradient, self._reach)

    def back(self, slopes: Vector) -> Vector:
        """``C + H rho (C - n (n . C)) / |g|`` with ``n = g / |g|``: slopes ``C`` after the step, before it; once."""
        along = torch.stack([dot(g, s) for g, s in zip(self.gradient, slopes, strict=True)]).sum()
        across = _moved(slopes, self.gradient, -along / self._norm.square())
        return _moved(slopes, self.hessian_times(across), self._reach)


class InnerLoop:
    """The inner loop of ``Meta``, walked from some weights, and the way back.

    Args:
        meta: what it is.
        answers: of the network.
        weights: ``w``, where it begins.
        chunks: the minibatch in parts, one per step.
        back: is there a way back? Else nothing is kept for it.
    """

    def __init__(
        self, meta: Meta, answers: Answers, weights: Vector, chunks: Sequence[Examples], *, back: bool = True
    ) -> None:
        self.meta = meta
        self.results: list[Vector] = []
        """The fast weights ``f_i`` after every step."""
        self._steps: list[tuple[Climb | None, Evaluation, Vector]] = []
        twice, climb = back and meta.second_order, None
        fast = point = weights
        for chunk in chunks:
            if meta.rho is not None:
                climb = Climb(meta.rho, answers, point, chunk, twice=twice)
                point = climb.onwards(point)
            descent = Evaluation(answers, point, chunk, twice=twice)
            clamped = [g.clamp(-meta.inner_clip, meta.inner_clip) for g in descent.gradient]
            fast = list(torch._foreach_add(fast, clamped, alpha=-meta.inner_lr))
            if meta.rho is None:
                point = fast
            elif meta.climb == "fast":
                point = list(torch._foreach_add(point, clamped, alpha=-meta.inner_lr))
            self.results.append(fast)
            self._steps.append((climb, descent, clamped))

    def back(self, slopes: Sequence[Vector | None]) -> Vector:
        """The gradient of ``sum_i s_i . f_i`` in ``w``, for slopes ``s_i``, None for those that are zero; once.

        From the last step to the first, with the slopes ``F`` of the fast weights and ``P`` of the point:

            ``P <- P - inner_lr H(p_{i+1}) (F where nothing was clamped)``;
            ``P <- P + H(p_i) rho (P - n (n . P)) / |g_i|`` with ``n = g_i / |g_i|``

        where the point moves with the fast weights ``F + P`` is in place of ``F``. At the beginning both are ``w``, so
        the gradient is their sum. First order takes all gradients for constants.
        """
        together = self.meta.rho is None or self.meta.climb == "fast"
        fast: Vector | None = None
        point: Vector | None = None
        for (climb, descent, clamped), own in zip(reversed(self._steps), reversed(slopes), strict=True):
            fast = _sum(fast, own)
            moved = _sum(fast, point) if together else fast
            if moved is None or not self.meta.second_order:
                continue
            free = [torch.where(c == g, m, 0.0) for c, g, m in zip(clamped, descent.gradient, moved, strict=True)]
            found = descent.hessian_times(free)
            torch._foreach_mul_(found, -self.meta.inner_lr)
            point = _sum(point, found)
            if climb is not None and point is not None:
                point = climb.back(point)
        return _sum(fast, point) or []


def _moved(weights: Vector, direction: Vector, far: Tensor) -> Vector:
    """``w + far d``, in one pass."""
    return [torch.addcmul(w, d, far) for w, d in zip(weights, direction, strict=True)]


def _sum(one: Vector | None, other: Vector | None) -> Vector | None:
    """Of two vectors, of which None is zero."""
    if one is None or other is None:
        return other if one is None else one
    return list(torch._foreach_add(one, other))


def length(vector: Vector) -> Tensor:
    """The norm over all tensors, by which a direction is divided; 1 for that of zeros, which then stays zero."""
    norm = total_norm(norms(vector), vector)
    return torch.where(norm > 0, norm, 1.0)


def meta_gradient(
    meta: Meta, answers: Answers, weights: Vector, chunks: Sequence[Examples], everything: Examples
) -> tuple[Vector, Tensor, tuple[Tensor, Tensor]]:
    """The gradient of ``M(w)`` of ``Meta``, ``M(w)`` itself, and the last logits with the labels among them.

    ``grad M = sum_i ((1 - alpha) m_i + alpha (d f_i / d w)^T m_i) / n``, ``m_i = grad L(w + alpha (f_i - w))``, over
    the n inner steps whose loss counts: the last one, or all of them.
    """
    loop = InnerLoop(meta, answers, weights, chunks)
    ends = [Evaluation(answers, point, everything) for point in _followed(meta, weights, loop.results)]
    slopes: list[Vector | None] = [None] * (len(loop.results) - len(ends))
    found = loop.back([*slopes, *(end.gradient for end in ends)])
    if meta.alpha != 1.0:
        found = list(torch._foreach_mul(found, meta.alpha))  # not in place: it may be an end's own gradient
        for end in ends:
            torch._foreach_add_(found, end.gradient, alpha=1.0 - meta.alpha)
    if len(ends) > 1:
        torch._foreach_div_(found, len(ends))
    return found, torch.stack([end.loss for end in ends]).mean(), ends[-1].seen


def meta_loss(
    meta: Meta, answers: Answers, weights: Vector, chunks: Sequence[Examples], everything: Examples
) -> Tensor:
    """``M(w)`` of ``Meta``."""
    loop = InnerLoop(meta, answers, weights, chunks, back=False)
    with torch.no_grad():
        return torch.stack(
            [F.cross_entropy(*answers(point, everything)) for point in _followed(meta, weights, loop.results)]
        ).mean()


def _followed(meta: Meta, weights: Vector, results: Sequence[Vector]) -> list[Vector]:
    """``w + alpha (f - w)`` after those inner steps whose loss counts."""
    ends = results if meta.loss == "mean" else results[-1:]
    return [end if meta.alpha == 1.0 else list(torch._foreach_lerp(weights, end, meta.alpha)) for end in ends]
