"""How a network learns from a minibatch of the present task: alone, with replay, or by meta-learning (C-MAML)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer

from lookbehind.lifelong.heads import own_head
from lookbehind.lifelong.memory import Examples, Reservoir, joined
from lookbehind.lifelong.meta import Evaluation, Meta, length, meta_gradient
from lookbehind.optim.checks import count
from lookbehind.optim.clipping import clip_norm
from lookbehind.optim.precision import NonFiniteError
from lookbehind.optim.weights import Vector

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
        self._names = [name for name, _ in network.named_parameters()]
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
        for parameter, value in zip(self.network.parameters(), gradient, strict=True):
            parameter.grad = value
        if self.clip is not None:
            self.clip(gradient)
        self.base.step()
        self.base.zero_grad()

    def gradient(self, chunks: Sequence[Examples], everything: Examples) -> Vector:
        """Of the outer step, before clipping.

        Args:
            chunks: the minibatch in parts, one per inner step.
            everything: the minibatch and the replayed examples.
        """
        weights = [p.detach() for p in self.network.parameters()]
        found, loss, seen = meta_gradient(self.meta, self._answers, weights, chunks, everything)
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the loss after the inner steps is {float(loss)}; lower lr or inner_lr")
        self._watch(loss, *seen)
        if self.meta.rho is None:
            return found
        climbed = list(torch._foreach_add(weights, torch._foreach_mul(found, self.meta.rho / length(found))))
        if self.meta.outer == "meta":
            return meta_gradient(self.meta, self._answers, climbed, chunks, everything)[0]
        return Evaluation(self._answers, climbed, everything).gradient

    def _answers(self, weights: Sequence[Tensor], examples: Examples) -> tuple[Tensor, Tensor]:
        """Logits of every example's own head, and its label among them."""
        by_name = dict(zip(self._names, weights, strict=True))
        return own_head(functional_call(self.network, by_name, (examples[0],)), examples[1], self.classes_per_task)


def _parts(batch: Tensor, parts: int) -> tuple[Tensor, ...]:
    """As many parts as there are, or an example each where there are fewer; their sizes differ by 1 at most."""
    return batch.tensor_split(min(parts, len(batch)))
