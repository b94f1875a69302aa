"""How a network learns from a minibatch of the present task: alone, with replay, or by meta-learning (C-MAML)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value
from torch.nn import functional as F
from torch.optim import Optimizer

from lookbehind.lifelong.heads import own_head
from lookbehind.lifelong.memory import Examples, Reservoir, joined
from lookbehind.optim.checks import count, fraction, non_negative, one_of, positive
from lookbehind.optim.clipping import clip_norm
from lookbehind.optim.precision import NonFiniteError

Weights = dict[str, Tensor]
Watch = Callable[[Tensor, Tensor, Tensor], None]
"""Told of every minibatch: loss, logits of the own head, labels among them. At the weights before the step; C-MAML's
after the inner steps."""


class Learner(Protocol):
    """Learns one minibatch after the other."""

    @property
    def evaluations(self) -> int:
        """Gradients that the last minibatch took."""
        ...

    def learn(self, inputs: Tensor, labels: Tensor, draws: random.Random, *, first_epoch: bool) -> None:
        """Take a step on a minibatch of the present task.

        Args:
            inputs: images as the network sees them; they go into the memory like this.
            labels: classes of the whole stream.
            draws: decides what is replayed and what is kept.
            first_epoch: is it the task's first? Some remember only then.
        """
        ...


class ReplayLearner:
    """Experience replay around any optimizer; with an empty memory, learning without one.

    ``w <- step on L(w; new examples and replayed ones together)``, then the new examples are offered to the memory.

    Args:
        network: with an output for every class of every task.
        optimizer: takes the step: SGD, SAM, Lookbehind, ...
        memory: of capacity 0 for learning without one.
        classes_per_task: of every task.
        replay: how many examples are drawn from the memory for every minibatch.
        watch: told of every minibatch.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        memory: Reservoir,
        *,
        classes_per_task: int,
        replay: int = 10,
        watch: Watch = lambda *told: None,
    ) -> None:
        self.network, self.optimizer, self.memory = network, optimizer, memory
        self.classes_per_task, self.replay = classes_per_task, count("replay", replay, at_least=0)
        self.evaluations = 0
        self._watch = watch

    def learn(self, inputs: Tensor, labels: Tensor, draws: random.Random, *, first_epoch: bool) -> None:
        """Step on the new examples with some old ones, and remember the new."""
        both = joined([(inputs, labels), self.memory.sample(self.replay, draws)])
        self.evaluations = 0

        def closure() -> Tensor:
            self.evaluations += 1
            self.optimizer.zero_grad()
            logits, own = own_head(self.network(both[0]), both[1], self.classes_per_task)
            loss = F.cross_entropy(logits, own)
            loss.backward()
            if not getattr(self.optimizer, "climbing", False):
                self._watch(loss, logits, own)
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        self.memory.add(inputs, labels, draws)


@dataclass(frozen=True)
class Meta:
    """How C-MAML learns.

    The inner loop walks over the minibatch in ``chunks`` parts ``b_i``:

        ``f_0 = p_0 = w``; ``p_{i+1} = p_i + rho g_i / |g_i|`` with ``g_i = grad L(p_i; b_i)``;
        ``f_{i+1} = f_i - inner_lr clamp(grad L(p_{i+1}; b_i))``; then ``a(w) = w + alpha (f_k - w)``

    With ``rho = None`` there is no climb: ``f_{i+1} = f_i - inner_lr clamp(grad L(f_i; b_i))``. The meta-loss is
    ``M(w) = L(a(w); the minibatch and replayed examples)``, and the step goes along its gradient.

    Lookahead-C-MAML, which is the C-MAML of Gupta et al.: ``Meta()``. Lookbehind-C-MAML: ``Meta(rho=0.005, chunks=2)``.
    """

    chunks: int = 5
    """Inner steps per minibatch."""
    rho: float | None = None
    """Radius of the ascent steps; None: there are none (Lookahead-C-MAML)."""
    climb: Literal["slow", "fast"] = "slow"
    """Do the ascent steps begin at ``w``, as Lookbehind's do, or are they added to the fast weights? The latter is
    Lookahead-C-MAML where rho is 0."""
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


class MetaLearner:
    """C-MAML with a memory (Gupta et al., 2020), its inner loop Lookahead's or Lookbehind's: ``Meta``.

    Replayed examples are drawn before the minibatch is remembered, which it is in a task's first epoch only.

    Args:
        network: with an output for every class of every task.
        base: takes the outer step, with the network's gradients.
        memory: of old examples.
        classes_per_task: of every task.
        meta: the inner loop and the meta-loss.
        replay: how many examples are drawn from the memory for every meta-loss.
        clip: the largest norm of the outer gradient; None for no limit.
        watch: told of every minibatch.
    """

    def __init__(
        self,
        network: nn.Module,
        base: Optimizer,
        memory: Reservoir,
        *,
        classes_per_task: int,
        meta: Meta,
        replay: int = 10,
        clip: float | None = 2.0,
        watch: Watch = lambda *told: None,
    ) -> None:
        self.network, self.base, self.memory, self.meta = network, base, memory, meta
        self.classes_per_task, self.replay = classes_per_task, count("replay", replay, at_least=0)
        self.clip = None if clip is None else clip_norm(clip)
        self.evaluations = 0
        self._watch = watch

    def learn(self, inputs: Tensor, labels: Tensor, draws: random.Random, *, first_epoch: bool) -> None:
        """One outer step."""
        order = torch.tensor(draws.sample(range(len(labels)), len(labels)), device=labels.device)
        inputs, labels = inputs[order], labels[order]
        everything = joined([self.memory.sample(self.replay, draws), (inputs, labels)])
        if first_epoch:
            self.memory.add(inputs, labels, draws)
        chunks = list(zip(_parts(inputs, self.meta.chunks), _parts(labels, self.meta.chunks), strict=True))
        self.evaluations = replace(self.meta, chunks=len(chunks)).gradients
        gradient = self.gradient(chunks, everything)
        parameters = dict(self.network.named_parameters())
        for name, value in gradient.items():
            parameters[name].grad = value
        if self.clip is not None:
            self.clip(list(gradient.values()))
        self.base.step()
        self.base.zero_grad()

    def gradient(self, chunks: Sequence[Examples], everything: Examples) -> Weights:
        """Of the outer step, before clipping.

        Args:
            chunks: the minibatch in parts, one per inner step.
            everything: the minibatch and the replayed examples.
        """
        weights = {name: p.detach() for name, p in self.network.named_parameters()}
        of_meta_loss = grad_and_value(self.meta_loss, has_aux=True)
        found: Weights
        found, (loss, seen) = of_meta_loss(weights, chunks, everything)
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the loss after the inner steps is {float(loss)}; lower lr or inner_lr")
        self._watch(loss, *seen)
        if self.meta.rho is None:
            return found
        climbed = _moved(weights, found, self.meta.rho)
        if self.meta.outer == "meta":
            found, _ = of_meta_loss(climbed, chunks, everything)
            return found
        return self._gradient(climbed, everything)

    def meta_loss(
        self, weights: Weights, chunks: Sequence[Examples], everything: Examples
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """``M(w)`` of ``Meta``; beside it the last logits, with the labels among them."""
        points = self.adapted(weights, chunks)
        losses = []
        for fast in points if self.meta.loss == "mean" else points[-1:]:
            seen = self._answers(_between(weights, fast, self.meta.alpha), everything)
            losses.append(F.cross_entropy(*seen))
        return torch.stack(losses).mean(), seen

    def adapted(self, weights: Weights, chunks: Sequence[Examples]) -> list[Weights]:
        """The fast weights after every inner step."""
        rho, limit, lr = self.meta.rho, self.meta.inner_clip, self.meta.inner_lr
        fast, found = weights, list[Weights]()
        climbed = {name: torch.zeros_like(w) for name, w in weights.items()}
        for chunk in chunks:
            origin = weights if rho is not None and self.meta.climb == "slow" else fast
            point = {name: w + climbed[name] for name, w in origin.items()}
            if rho is not None:
                climbed = _moved(climbed, self._inner_gradient(point, chunk), rho)
                point = {name: w + climbed[name] for name, w in origin.items()}
            gradient = self._inner_gradient(point, chunk)
            fast = {name: w - lr * gradient[name].clamp(-limit, limit) for name, w in fast.items()}
            found.append(fast)
        return found

    def _inner_gradient(self, weights: Weights, chunk: Examples) -> Weights:
        gradient = self._gradient(weights, chunk)
        return gradient if self.meta.second_order else {name: g.detach() for name, g in gradient.items()}

    def _gradient(self, weights: Weights, examples: Examples) -> Weights:
        found: Weights = grad(self._loss)(weights, examples)
        return found

    def _loss(self, weights: Weights, examples: Examples) -> Tensor:
        return F.cross_entropy(*self._answers(weights, examples))

    def _answers(self, weights: Weights, examples: Examples) -> tuple[Tensor, Tensor]:
        """Logits of every example's own head, and its label among them."""
        return own_head(functional_call(self.network, weights, (examples[0],)), examples[1], self.classes_per_task)


def _moved(weights: Weights, direction: Weights, rho: float) -> Weights:
    """``w + rho d / |d|``, the norm over all tensors."""
    squared = torch.stack([d.square().sum() for d in direction.values()]).sum()
    norm = torch.where(squared > 0, squared, 1.0).sqrt()  # at zero a root has no derivative, and 0 / 1 is 0 as well
    return {name: w + rho / (norm + 1e-16) * direction[name] for name, w in weights.items()}


def _between(weights: Weights, fast: Weights, alpha: float) -> Weights:
    """``w + alpha (f - w)``."""
    if alpha == 1.0:
        return fast
    return {name: w + alpha * (fast[name] - w) for name, w in weights.items()}


def _parts(batch: Tensor, parts: int) -> tuple[Tensor, ...]:
    """As many parts as there are, or an example each where there are fewer; their sizes differ by 1 at most."""
    return batch.tensor_split(min(parts, len(batch)))
