"""The training loop: one for all data, networks and methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from lookbehind.data.batches import Batch, Batches, pooled, seed_for
from lookbehind.data.preparation import prepared
from lookbehind.data.vision import VisionData, hold_out, reduced
from lookbehind.measures.accuracy import score
from lookbehind.measures.batchnorm import recalibrated
from lookbehind.models import build
from lookbehind.optim.lookahead import PHASE, Lookahead, slow_weights_of
from lookbehind.optim.passes import micro_batches, switching
from lookbehind.training.averaging import Average
from lookbehind.training.methods import Method, Phase, base_optimizer
from lookbehind.training.parallel import load_model, load_optimizer, model_state, optimizer_state, team
from lookbehind.training.records import Record
from lookbehind.training.run import Run
from lookbehind.training.schedules import Course
from lookbehind.training.stepping import autocast, random_state, set_random_state, through_the_epoch
from lookbehind.training.tally import Tally, mean_alpha


class Parts:
    """The images of a run: training, validation (if any) and test minibatches."""

    def __init__(self, run: Run, data: VisionData) -> None:
        run = run.filled
        data = prepared(pooled(data, run.pool), run.preparation)
        if run.reserved:
            data = _without_reserved(data, run.reserved)
        available = len(data.train)
        if run.train_images is not None and run.train_images > available:
            raise ValueError(f"train_images={run.train_images}: there are only {available} training images")
        if run.validation >= (run.train_images or available):
            raise ValueError(
                f"validation={run.validation}: none of {run.train_images or available} would be left to train"
            )
        if run.train_images is not None:
            data = reduced(data, run.train_images, _slice_seed(run.seed))
        train, validation = data.train, None
        if run.validation:
            train, validation = hold_out(train, run.validation, seed_for(run.seed, "validation"))

        def batches(images: Any, augmentation: str = "none") -> Batches:
            size = int(run.batch_size or 0)
            return Batches(images.to(run.device), data.mean, data.std, size, run.seed, augmentation, run.device)

        self.train = batches(train, str(run.augmentation))
        self.validation = batches(validation) if validation is not None else None
        self.test = batches(data.test)
        self.classes, self.channels = data.classes, data.channels


def _slice_seed(seed: int) -> int:
    return seed_for(seed, "slice")


def _without_reserved(data: VisionData, count: int) -> VisionData:
    """The data without the training images of a run of seed 0 with ``train_images=count``."""
    if count >= len(data.train):
        raise ValueError(f"reserved={count}: none of {len(data.train)} training images would be left")
    return replace(data, train=hold_out(data.train, count, _slice_seed(0))[0])


class Training:
    """A run in progress: network, optimizer, images and sums. It knows nothing of files."""

    def __init__(self, run: Run, data: VisionData) -> None:
        self.run = run = run.filled
        self.parts = Parts(run, data)
        self.course = Course(run, len(self.parts.train))
        torch.manual_seed(seed_for(run.seed, "weights"))
        model = build(
            str(run.model),
            classes=self.parts.classes,
            channels=self.parts.channels,
            checkpointing=run.checkpointing,
        )
        self.model = model.to(run.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.team = team()
        self.sharded = self.team.world > 1 and run.parallel == "fsdp"
        self._check_parts()
        self.network = self.team.wrapped(self.model, run.parallel)  # to run forward passes with
        torch.manual_seed(seed_for(run.seed, "dropout", *([self.team.rank] if self.team.rank else [])))
        self.base = base_optimizer(
            run.base,
            self.model,
            lr=float(run.lr or 0.0),
            momentum=run.momentum,
            weight_decay=float(run.weight_decay or 0.0),
            nesterov=run.nesterov,
        )
        self.step, self.seconds = 0, 0.0
        self.evaluations: float = 0
        self.tally = Tally(run.device)
        self.scaler = torch.amp.GradScaler(torch.device(run.device).type, enabled=run.precision == "fp16")
        self.phase = self.course.phase(0)
        self.optimizer = self._optimizer()
        self.average = Average(self.model, run.average) if run.average else None
        self.diverged = False

    def _check_parts(self) -> None:
        last = len(self.parts.train.images) % self.parts.train.size or self.parts.train.size
        if min(last, self.parts.train.size) < self.team.world:
            images = "1 image" if last == 1 else f"{last} images"
            raise ValueError(
                f"{self.team.world} processes, but the smallest minibatch has {images}: give another --batch-size "
                "or --train-images, so that each has a part of it"
            )
        widest = max(method.minibatches(self.run.k) for method in self.run.methods)
        if widest > self.course.steps_per_epoch:
            raise ValueError(
                f"k={self.run.k} with {self.run.method}: a step takes as many minibatches, but an epoch has "
                f"{self.course.steps_per_epoch}; give a smaller k or --batch-size"
            )

    # --- where it is

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to, from 0 on."""
        return self.step // self.course.steps_per_epoch

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.course.steps

    @property
    def finished(self) -> bool:
        """Have all steps been taken, or has the loss ceased to be finite?"""
        return self.diverged or self.step + self.minibatches > self.course.steps

    # --- steps

    def train_epoch(self, after_step: Callable[[], bool]) -> bool:
        """Train to the end of the epoch; False if ``after_step`` asked to stop before."""
        self.model.train()
        return through_the_epoch(self, self.parts.train.onwards(self.step), after_step)

    @property
    def minibatches(self) -> int:
        """That the next step takes."""
        return self.course.phase(self.step).method.minibatches(self.run.k)

    def take_step(self, batches: Sequence[Batch]) -> None:
        """One step of the method in use, on this process's part of every minibatch."""
        self._step([self.team.part(batch) for batch in batches])

    def _step(self, batches: Sequence[tuple[Tensor, Tensor, float]]) -> None:
        self._follow_the_course()
        climbs = getattr(self.optimizer, "ascents", 1) > 0
        closures = [self._closure(*batch) for batch in batches]
        if self.method.micro:
            size = self.run.micro_batch
            inputs, labels, weight = batches[0]
            pairs = zip(inputs.split(size), labels.split(size), strict=True)
            self.optimizer.step(micro_batches(*((len(y), self._closure(x, y, weight)) for x, y in pairs)))
        else:
            self.optimizer.step(switching(*closures) if self.method.switching else closures[0])
        self.evaluations += self.run.gradients_of(self.method, climbs=climbs) * len(batches)
        if self.average is not None:
            with slow_weights_of(self.optimizer):  # of Lookahead's weights the slow ones are its result
                self.average.update()
        alpha = self.optimizer.last.alpha if self.method.interpolates else None  # type: ignore[attr-defined]
        if alpha is not None:  # a step that was skipped has none, nor has one that goes all the way
            self.tally.add_alpha(alpha)
        self.step += len(batches)

    def note_failed_step(self, batches: Sequence[Batch]) -> None:
        """The run ends here; what the step has evaluated counts."""
        self.step, self.diverged = self.step + len(batches), True
        part = -(-len(batches[0][1]) // self.team.world)
        chains = -(-part // self.run.micro_batch) if self.method.micro else 1
        self.evaluations += round(self.optimizer.last.evaluations / chains)  # type: ignore[attr-defined]

    def _closure(self, inputs: Tensor, labels: Tensor, weight: float) -> Callable[[], Any]:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            some = self._ascent_images(len(labels))
            with self.autocast():
                logits = self.network(inputs[:some])
                loss = F.cross_entropy(logits, labels[:some], label_smoothing=self.run.label_smoothing)
            self.scaler.scale(loss if weight == 1.0 else loss * weight).backward()
            if not getattr(self.optimizer, "climbing", False):
                self.tally.add(loss, logits, labels[:some])
            return loss

        return closure

    def _ascent_images(self, images: int) -> int:
        """How many images of a minibatch an evaluation takes: of the first in a step that climbs, perhaps a part."""
        optimizer: Any = self.optimizer
        if self.run.ascent_part == 1 or not self.method.can_spare or optimizer.climbing or not optimizer.ascents:
            return images
        return max(1, round(self.run.ascent_part * images))

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of a forward pass."""
        return autocast(self.run.precision, self.run.device)

    def _follow_the_course(self) -> None:
        before, self.phase = self.phase, self.course.phase(self.step)
        if self.phase is not before and self._is_another(before):
            self._settle()
            self.base.zero_grad()  # a plain optimizer leaves its last gradients
            self.optimizer = self._optimizer()
        for group in self.base.param_groups:
            group["lr"] = self.course.lr(self.step)

    @property
    def method(self) -> Method:
        """The method in use."""
        return self.phase.method

    def _optimizer(self) -> Optimizer:
        numbers = self.run.during(self.phase)
        scaler = self.scaler if self.scaler.is_enabled() else None
        ranks = self.run.ranks if self.team.world > 1 else "together"
        return self.method.optimizer(
            self.base, self.network, numbers, scaler, ranks, offload=self.run.offload, every=self.run.every
        )

    def _is_another(self, before: Phase) -> bool:
        return self.method != before.method or self.run.during(self.phase) != self.run.during(before)

    def _settle(self) -> None:
        """Before another method takes over: the weights are the slow ones of Lookahead."""
        if isinstance(self.optimizer, Lookahead):
            with self.optimizer.slow_weights():
                slow = [p.detach().clone() for p in self.model.parameters()]
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), slow, strict=True):
                    parameter.copy_(value)
            for group in self.base.param_groups:
                group[PHASE] = 0  # the next Lookahead begins a period of its own

    # --- measuring

    def slow_weights(self) -> AbstractContextManager[None]:
        """The weights to measure and keep: those of the model, Lookahead's slow ones, or the average of these."""
        return slow_weights_of(self.optimizer) if self.average is None else self.average.shown()

    def epoch_record(self) -> Record:
        """What is known at the end of an epoch; starts the sums of the next."""
        tally, self.tally = self.tally.of_all(self.team), Tally(self.run.device)
        self.diverged = self.diverged or not math.isfinite(tally.loss)
        whole, begun = divmod(self.step, self.course.steps_per_epoch)
        epoch = whole + 1 if begun and self.finished else whole  # what was begun is the next one's, if there is one
        record: Record = {
            "event": "epoch",
            "epoch": epoch,
            "step": self.step,
            "passes": self.step / self.course.steps_per_epoch,
            "lr": self.base.param_groups[0]["lr"],
            "loss": tally.loss,
            "train_accuracy": tally.accuracy,
        }
        due = epoch % self.run.evaluate_every == 0 or self.finished
        record |= self._measured("validation", self.parts.validation if due else None)
        record |= self._measured("test", self.parts.test if due else None)
        return record | {
            "gradient_evaluations": round(self.evaluations),
            "alpha": tally.alpha,
            "seconds": round(self.seconds, 3),
        }

    def end_record(self, epochs: list[Record]) -> Record:
        """What is known at the end of the run, at its final weights and without augmentation."""
        record: Record = {
            "event": "end",
            "diverged": False,
            "steps": self.step,
            "passes": self.step / self.course.steps_per_epoch,
            "gradient_evaluations": round(self.evaluations),
            "seconds": round(self.seconds, 3),
        }
        scores = self.scores()
        self.diverged = self.diverged or scores["train_loss"] is None  # the very last step broke the weights
        record |= dict.fromkeys(scores) if self.diverged else scores
        known = (
            []
            if self.diverged
            else [(r["test_accuracy"], -r["epoch"]) for r in epochs if r["test_accuracy"] is not None]
        )
        best = max(known, default=(None, None))
        return record | {
            "diverged": self.diverged,
            "best_test_accuracy": best[0],
            "best_epoch": None if best[1] is None else -best[1],
            "alpha": mean_alpha(epochs),
        }

    def scores(self) -> Record:
        """Loss and accuracy on all parts of the data, and on the test images with BatchNorm re-estimated."""
        parts = self.parts
        found = self._measured("train", parts.train) | self._measured("validation", parts.validation)
        found |= self._measured("test", parts.test)
        # in random order: with a class per minibatch, as files are sorted, variances would be those within a class
        batches = None if self.diverged else parts.train.plain(shuffled=True)
        with self.slow_weights(), recalibrated(self.model, batches, self.autocast):
            return found | self._measured("recalibrated_test", parts.test)

    def _measured(self, name: str, batches: Batches | None) -> Record:
        if batches is None or self.diverged:
            return {f"{name}_loss": None, f"{name}_accuracy": None}
        self.team.agree_on_statistics(self.model)
        with self.slow_weights():
            found = score(self.model, batches.plain(), self.autocast)
        finite = math.isfinite(found.loss)  # the largest of logits that are not numbers is no answer
        return {f"{name}_loss": found.loss if finite else None, f"{name}_accuracy": found.accuracy if finite else None}

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        """All that the future of the run depends on. Order and augmentation of the images follow from the step.

        Every process takes part; the first one's is complete.
        """
        own = {"tally": self.tally.state(), **random_state()}
        return {
            "step": self.step,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "diverged": self.diverged,
            "phase": self.run.phases.index(self.phase),
            "model": model_state(self.model, sharded=self.sharded),
            "optimizer": optimizer_state(self.model, self.optimizer, sharded=self.sharded),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "ranks": self.team.gathered(own),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        if len(state["ranks"]) != self.team.world:
            raise ValueError(
                f"a checkpoint of {len(state['ranks'])} processes, but now there are {self.team.world}: each goes on "
                "with its own sums and random numbers, so start as many as before"
            )
        self.step, self.evaluations, self.seconds = state["step"], state["evaluations"], state["seconds"]
        self.diverged = state["diverged"]
        load_model(self.model, state["model"], sharded=self.sharded)
        self.phase = self._phase_of(state)
        self.optimizer = self._optimizer()
        load_optimizer(self.model, self.optimizer, state["optimizer"], sharded=self.sharded)
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load(state["average"])
        own = state["ranks"][self.team.rank]
        self.tally.load(own["tally"])
        set_random_state(own)

    def _phase_of(self, state: dict[str, Any]) -> Phase:
        """The one of the last step: a switch of methods comes with the next."""
        if "phase" in state:
            return self.run.phases[int(state["phase"])]
        # checkpoints of before named the method; the last step may have gone on into the epoch of the next one
        reached = [phase for phase in self.run.phases if phase.start <= self.course.phase(max(self.step - 1, 0)).start]
        return next((phase for phase in reached[::-1] if phase.method.name == state.get("method")), reached[-1])

    def weights(self) -> dict[str, Any]:
        """The network to keep; every process takes part, the first one's is complete."""
        self.team.agree_on_statistics(self.model)
        with self.slow_weights():
            state = model_state(self.model, sharded=self.sharded)
            return {name: value.clone() for name, value in state.items()}
