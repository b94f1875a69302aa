"""How long a run is, and its learning rate: pure functions of the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from lookbehind.training.methods import Method, Phase
from lookbehind.training.run import Run


@dataclass(frozen=True)
class Course:
    """A run laid out in steps, for a given number of minibatches per epoch."""

    run: Run
    steps_per_epoch: int

    @cached_property
    def steps(self) -> int:
        """The number of minibatches of the whole run: all epochs, or as many as the gradient budget pays for."""
        run, per_epoch = self.run.filled, self.steps_per_epoch
        if run.gradients is None:
            return int(run.epochs or 0) * per_epoch
        steps, left = 0, float(run.gradients)
        for number, phase in enumerate(run.phases):
            later = run.phases[number + 1].start if number + 1 < len(run.phases) else math.inf
            room = (later - phase.start) * per_epoch
            taken = int(min(room, self._affordable(phase.method, left)))
            steps, left = steps + taken, left - self._price(phase.method, taken)
            if taken < room:  # the next method would begin at an epoch that is never reached
                break
        if not steps:
            raise ValueError(f"gradients={run.gradients}: not enough for one step of {run.method}; give more")
        return steps

    def _price(self, method: Method, steps: int) -> float:
        """Gradients of so many steps of a method, of which the first climbs."""
        every = self.run.every if method.can_spare else 1
        climbing = -(-steps // every)
        return climbing * self.run.gradients_of(method, climbs=True) + (steps - climbing)

    def _affordable(self, method: Method, gradients: float) -> int:
        """The most steps that cost no more."""
        steps = int(gradients / self.run.mean_gradients(method))
        while steps and self._price(method, steps) > gradients:
            steps -= 1
        return steps

    @property
    def length(self) -> float:
        """In epochs; with a gradient budget the last may be a part of one."""
        return self.steps / self.steps_per_epoch

    def phase(self, step: int) -> Phase:
        """The method in use at a step."""
        epoch = step // self.steps_per_epoch
        return self.run.phases[bisect_right([phase.start for phase in self.run.phases], epoch) - 1]

    def lr(self, step: int) -> float:
        """``lr * schedule * warm-up * factor of the method`` at a step.

        cosine: ``(1 + cos(pi t)) / 2`` with ``t`` from 0 to 1 over the training; step and multistep: ``gamma`` to the
        number of falls so far; warm-up: ``(step + 1) / steps of the warm-up``.
        """
        run = self.run.filled
        factor = self._schedule(step) * self.phase(step).method.lr_factor(run)
        rising = run.warmup * self.steps_per_epoch
        return float(run.lr or 0.0) * factor * (min(1.0, (step + 1) / rising) if rising else 1.0)

    def _schedule(self, step: int) -> float:
        run = self.run
        epoch = step // self.steps_per_epoch
        if run.schedule == "cosine":
            place = epoch if run.lr_changes == "epoch" else step / self.steps_per_epoch
            return (1 + math.cos(math.pi * place / self.length)) / 2
        if run.schedule == "multistep":
            milestones: tuple[float, ...] = run.milestones or tuple(self.length * quarter / 4 for quarter in (1, 2, 3))
            return float(run.gamma ** bisect_right(milestones, step / self.steps_per_epoch))
        if run.schedule == "step":
            return float(run.gamma ** (epoch // (run.step_size or math.ceil(self.length / 3))))
        return 1.0
