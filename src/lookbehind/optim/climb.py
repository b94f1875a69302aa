"""The walk over the ascent gradients of one step: evaluate, climb, hand the gradient on.

A walk is a generator that asks for an evaluation by yielding a ``Pass`` and is sent the
loss; whoever drives it (``step(closure)`` or the loop form) runs forward and backward in between. The gradient at a
point serves the descent there *and* the next ascent step, so a minibatch costs k + 1 evaluations and not 2k.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lookbehind.optim.ascent import Gradients, Leaf, Rule, Slope, reads_slow, sam
from lookbehind.optim.diagnostics import Diagnostics
from lookbehind.optim.exchange import Exchange
from lookbehind.optim.passes import HOW_TO_WRITE_A_CLOSURE, Itinerary, Loss, Pass, Walk
from lookbehind.optim.rng import Replay
from lookbehind.optim.statistics import held_statistics
from lookbehind.optim.treatment import Treatment
from lookbehind.optim.weights import Scratch, Vector, dot, norms, on, real, total, total_norm


@dataclass
class _Evaluation:
    gradients: Gradients
    norm: Tensor  # of the whole gradient
    scaled_norm: Tensor  # |T g|; the norm itself where no ascent step follows
    products: Gradients  # T g, where there was room for it


@dataclass(kw_only=True)
class Climb:
    """Walks the chains of one step and hands every gradient to ``receive(index, share, collect_only)``.

    With several chains the base steps wait for the last gradient of the last one: the memory of the point is then free
    for the fast weights, and k + 1 buffers suffice.
    """

    rule: Rule
    leaves: Sequence[Leaf]
    exchange: Exchange
    scratch: Scratch
    itinerary: Itinerary
    ascents: int
    last: Diagnostics
    treatment: Treatment
    cosine: str
    held_model: nn.Module | None  # whose running statistics perturbed passes must not change
    replay: Replay | None
    climbing: bool = False
    _first_gradient: Vector | None = None

    def walk(self, receive: Callable[[int, float, bool], None]) -> Walk:
        """All chains, one after the other."""
        for chain, share in enumerate(self.itinerary.shares):
            yield from self._chain(chain, share, receive)
        return None

    def _chain(self, chain: int, share: float, receive: Callable[[int, float, bool], None]) -> Walk:
        switches, chains = self.itinerary.switches, len(self.itinerary.shares)
        self.exchange.home()
        for point in range(self.ascents + 1):
            if switches and point > 1:  # the new minibatch has its own gradient at the point before
                here = yield from self._evaluate(point - 1, point - 1, chain, None, climbs=True)
                self._ascend(here, from_slow=False)
                del here  # its gradients must not outlive the next evaluation
            last = point == self.ascents
            climbs = not last and (not switches or point == 0)
            here = yield from self._evaluate(point, max(point - 1, 0) if switches else 0, chain, share, climbs=climbs)
            if point == 0:
                self._keep_first_gradient(here)
            if climbs:
                # before the gradient is handed on: the base optimizer may write into it
                self._ascend(here, from_slow=point == 0)
            elif last:
                self._record_cosine(share, here)
                self.exchange.point_is_over = chain + 1 == chains
            del here
            receive(point, share, chains > 1 and not self.exchange.point_is_over)
        return None

    def _evaluate(
        self, point: int, minibatch: int, chain: int, share: float | None, *, climbs: bool
    ) -> Generator[Pass, Loss | None, _Evaluation]:
        """Loss and gradient at a point; with ``share`` they are recorded as this chain's."""
        loss = yield from self._ask(point, minibatch, chain)
        evaluation = self._measured(climbs, from_slow=point == 0)
        if share is not None:
            self.last.record(point, share, loss, evaluation.norm)
        where = f"evaluation {self.last.evaluations} of the step"
        self.treatment.checked(loss, evaluation.norm, evaluation.scaled_norm, where)
        return evaluation

    def _ask(self, point: int, minibatch: int, chain: int) -> Generator[Pass, Loss | None, Loss | None]:
        """Let the driver run forward and backward at a point."""
        if point:
            self.exchange.show(self.exchange.point)
        first = self.last.evaluations == 0
        self.last.evaluations += 1
        if first and self.itinerary.loss is not None:
            self.treatment.received(given=True)
            return _scalar(self.itinerary.loss)
        for leaf in self.leaves:
            leaf.parameter.grad = None  # also where the closure forgets it
        request = Pass(self.last.evaluations - 1, point, minibatch, chain)
        with self._conditions(request):
            loss = yield request
        if point:
            self.exchange.settle()
        self.treatment.received(given=False)
        return _scalar(loss)

    def _measured(self, climbs: bool, *, from_slow: bool) -> _Evaluation:
        gradients = self._gradients()
        present = [g for g in gradients if g is not None]
        sizes = norms(present)
        norm = total_norm(sizes, present)
        if not climbs or (self.rule is sam and all(leaf.rho for leaf in self.leaves)):
            return _Evaluation(gradients, norm, norm, [None] * len(gradients))
        each = iter(sizes)
        aligned = [None if g is None else next(each) for g in gradients]
        if not self.exchange.held:
            self.exchange.hold()
        products: list[Tensor | None] = self.exchange.room if from_slow else [None] * len(gradients)
        size = self._slope(gradients, from_slow=from_slow).scaled_norm(aligned, products)
        return _Evaluation(gradients, norm, size, products)

    def _slope(self, gradients: Gradients, *, from_slow: bool) -> Slope:
        here = self.exchange.start if from_slow else self.exchange.point
        # only if the rule reads them: where the slow weights wait on the CPU, bringing them back takes time
        slow = self.exchange.slow if reads_slow(self.rule) else here
        return Slope(self.rule, self.leaves, slow, here, gradients, self.scratch)

    @contextmanager
    def _conditions(self, request: Pass) -> Iterator[None]:
        # autocast keeps half-precision copies of the weights until its outermost ``with`` ends: a step inside one would
        # evaluate every point at the first point's weights
        torch.clear_autocast_cache()
        replayed = nullcontext() if self.replay is None else self.replay((request.micro_batch, request.minibatch))
        held = self.held_model is not None and request.climbing
        with replayed, held_statistics(self.held_model) if held else nullcontext(), self.treatment.evaluated():
            self.climbing = request.climbing
            try:
                yield
            finally:
                self.climbing = False

    def _gradients(self) -> Gradients:
        gradients = [leaf.parameter.grad for leaf in self.leaves]
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                raise TypeError(
                    f"{leaf} has a gradient of layout {gradient.layout}: sparse gradients are not supported; "
                    "use nn.Embedding(..., sparse=False), or leave the parameter to an optimizer of its own"
                )
        if all(gradient is None for gradient in gradients):
            raise RuntimeError(
                f"no gradient after evaluation {self.last.evaluations} of the step: none of the "
                f"{len(gradients)} parameters has one. Call loss.backward(); and train the model whose parameters "
                f"the optimizer was given\n{HOW_TO_WRITE_A_CLOSURE}"
            )
        return gradients

    def _ascend(self, here: _Evaluation, *, from_slow: bool) -> None:
        if not self.exchange.held:
            self.exchange.hold()
        slope = self._slope(here.gradients, from_slow=from_slow)
        slope.ascend(here.scaled_norm, here.products, out=self.exchange.point)

    def _keep_first_gradient(self, here: _Evaluation) -> None:
        if self.cosine == "gradients" and self.ascents:
            self._first_gradient = self._first_gradient or self.scratch.take()
            for kept, gradient in zip(self._first_gradient, here.gradients, strict=True):
                kept.zero_() if gradient is None else kept.copy_(gradient)

    def _record_cosine(self, share: float, here: _Evaluation) -> None:
        """Between the last gradient and the way that led there (or the first gradient)."""
        if self.cosine == "none" or not self.ascents:
            return
        first = None if self._first_gradient is None else [real(g) for g in self._first_gradient]
        squares, products, owners, having = [], [], [], []
        for i, (leaf, gradient) in enumerate(zip(self.leaves, here.gradients, strict=True)):
            # no more evaluation in this chain: the point's memory may take the difference; one tensor at a time, while
            # it is in the cache
            way = first[i] if first else self.exchange.point[i].sub_(self.exchange.slow[i])
            squares.append(dot(way, way))
            owners.append(leaf.parameter)
            if gradient is not None:
                products.append(dot(way, real(gradient)))
                having.append(leaf.parameter)
        product = on(here.norm.device, total(products, having))
        size = on(here.norm.device, total(squares, owners)).sqrt() * here.norm
        self.last.record_cosine(share, torch.where(size > 0, product / size, 0.0))


def _scalar(loss: Loss | None) -> Loss | None:
    if loss is None:  # not reported, in the loop form
        return None
    if not isinstance(loss, Tensor):
        if isinstance(loss, str | bytes) or not hasattr(loss, "__float__"):
            raise TypeError(f"the closure returned a {type(loss).__name__}: return the loss itself, one number")
        return float(loss)
    if loss.numel() != 1:
        raise ValueError(
            f"the closure returned a tensor of shape {tuple(loss.shape)}: return one number, the mean loss"
        )
    loss = loss.detach().clone()  # a copy: the closure may use one tensor for all its losses
    return loss.reshape(()) if loss.dim() else loss
