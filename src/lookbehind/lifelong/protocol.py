"""The course of a lifelong training: task after task, and after each the accuracy on the others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lookbehind.data.batches import Batches, seed_for
from lookbehind.data.tasks import STREAMS, Task, task_stream
from lookbehind.data.vision import ImageSource, VisionData
from lookbehind.lifelong import metrics
from lookbehind.lifelong.heads import OneHead
from lookbehind.lifelong.learners import Learner, MetaLearner, ReplayLearner
from lookbehind.lifelong.memory import Reservoir
from lookbehind.lifelong.run import LifelongRun
from lookbehind.measures.accuracy import score
from lookbehind.models.convnet import StridedConvNet
from lookbehind.optim.lookahead import slow_weights_of
from lookbehind.optim.precision import NonFiniteError
from lookbehind.training.methods import base_optimizer
from lookbehind.training.parallel import team
from lookbehind.training.records import Record
from lookbehind.training.tally import Tally


class LifelongTraining:
    """A lifelong run in progress: network, learner, memory and accuracies. It knows nothing of files."""

    def __init__(self, run: LifelongRun, data: VisionData) -> None:
        self.run = run = run.filled
        split = STREAMS[run.data]
        self.stream = task_stream(data, split.classes_per_task, run.seed, tasks=run.tasks)
        self._train = [self._batches(task.train, split.augmentation, task) for task in self.stream.tasks]
        torch.manual_seed(seed_for(run.seed, "weights"))
        network = StridedConvNet(
            self.stream.classes,
            channels=self.stream.channels,
            size=self.stream.size,
            width=int(run.width or 0),
            hidden=int(run.hidden or 0),
        )
        self.model = network.to(run.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.manual_seed(seed_for(run.seed, "dropout"))
        self.team = team()
        if self.team.world > 1:
            raise ValueError("a lifelong training runs in one process: start it without torchrun")
        self.base = base_optimizer("sgd", self.model, lr=run.base_lr, momentum=0.0, weight_decay=0.0)
        self.optimizer = self.base if run.meta else run.optimizing.optimizer(self.base, self.model, run)
        self.memory = Reservoir(int(run.memory or 0) if run.replays else 0, run.reservoir)
        self.learner = self._learner()
        self.matrix: list[list[float]] = []
        self.step, self.evaluations, self.seconds, self.diverged = 0, 0, 0.0, False
        self.tally = Tally(run.device)

    def _learner(self) -> Learner:
        run, n = self.run, self.stream.classes_per_task
        if run.meta is not None:
            return MetaLearner(
                self.model,
                self.base,
                self.memory,
                classes_per_task=n,
                meta=run.meta,
                replay=run.replay,
                clip=run.clip,
                watch=self._note,
            )
        return ReplayLearner(
            self.model,
            self.optimizer,
            self.memory,
            classes_per_task=n,
            replay=run.replay,
            watch=self._note,
        )

    def _batches(self, images: ImageSource, augmentation: str, task: Task) -> Batches:
        # its own seed for every task, as order and augmentation are drawn by seed and epoch
        seed = seed_for(self.run.seed, "task", task.number)
        return self.stream.batches(images, self.run.batch_size, seed, augmentation, self.run.device)

    def _note(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.tally.add(loss, logits, labels)

    # --- where it is

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return sum(len(batches) for batches in self._train) * int(self.run.epochs or 0)

    @property
    def place(self) -> tuple[int, int, int]:
        """The task, the epoch in it and the minibatch that come next, from 0 on."""
        left = self.step
        for task, batches in enumerate(self._train):
            whole = len(batches) * int(self.run.epochs or 0)
            if left < whole:
                return task, left // len(batches), left % len(batches)
            left -= whole
        return len(self._train), 0, 0

    @property
    def finished(self) -> bool:
        """Have all tasks been learned, or has the loss ceased to be finite?"""
        return self.diverged or self.step >= self.steps

    # --- learning

    def train_epoch(self, after_step: Callable[[], bool]) -> bool:
        """Learn to the end of the epoch; False if ``after_step`` asked to stop before."""
        self.model.train()
        task, epoch, start = self.place
        batches = self._train[task]
        for number, (inputs, labels) in enumerate(batches.epoch(epoch, start), start):
            began = perf_counter()
            draws = random.Random(seed_for(self.run.seed, "memory", self.step))
            self.step += 1
            try:
                self.learner.learn(inputs, labels, draws, first_epoch=epoch == 0)
            except NonFiniteError:
                self.diverged = True
                return True
            finally:
                self.seconds += perf_counter() - began
                self.evaluations += self.learner.evaluations
            if number + 1 < len(batches) and not after_step():
                return False
        return True

    # --- measuring

    def epoch_record(self) -> Record:
        """What is known at the end of an epoch; after a task's last also the accuracy on the tasks."""
        tally, self.tally = self.tally, Tally(self.run.device)
        self.diverged = self.diverged or not math.isfinite(tally.loss)
        epochs = int(self.run.epochs or 0)
        task, epoch, minibatch = self.place
        done = task * epochs + epoch + (1 if minibatch else 0)  # a loss that is not finite ends an epoch early
        row: list[float] | None = None
        if epoch == 0 and not self.diverged:  # the next is another task's first
            row = self._accuracies(task)
            self.matrix.append(row)
        return {
            "event": "epoch",
            "epoch": done,
            "task": (done - 1) // epochs + 1,
            "epoch_of_task": (done - 1) % epochs + 1,
            "step": self.step,
            "loss": tally.loss,
            "train_accuracy": tally.accuracy,
            "test_accuracy": None if row is None else sum(row[:task]) / task,
            "test_accuracies": row,
            "remembered": len(self.memory),
            "gradient_evaluations": self.evaluations,
            "seconds": round(self.seconds, 3),
        }

    def _accuracies(self, learned: int) -> list[float]:
        seen = learned if self.run.evaluate == "seen" else len(self.stream.tasks)
        return [self.accuracy(task, task.test) for task in self.stream.tasks[:seen]]

    def accuracy(self, task: Task, images: ImageSource) -> float:
        """On images of a task, in percent; the task is known, so only its classes are in question."""
        batches = self._batches(images, "none", task)
        with slow_weights_of(self.optimizer):
            head = OneHead(self.model, task.first, self.stream.classes_per_task)
            return score(head, _labelled_from(task.first, batches.plain())).accuracy

    def end_record(self, epochs: list[Record]) -> Record:
        """What is known in the end; ``best_test_accuracy`` is the last one, by which the paper chose its settings."""
        keys = ("test_accuracy", "forgetting", "backward_transfer", "learning_accuracy", "validation_accuracy")
        found: Record = dict.fromkeys((*keys, "best_test_accuracy", "matrix", "forgetting_per_task"))
        if not self.diverged:
            held_out = [self.accuracy(task, task.validation) for task in self.stream.tasks]
            found |= {
                "test_accuracy": metrics.average_accuracy(self.matrix),
                "forgetting": metrics.forgetting(self.matrix),
                "backward_transfer": metrics.backward_transfer(self.matrix),
                "learning_accuracy": metrics.learning_accuracy(self.matrix),
                "validation_accuracy": sum(held_out) / len(held_out),
                "best_test_accuracy": metrics.average_accuracy(self.matrix),
                "forgetting_per_task": metrics.forgetting_per_task(self.matrix),
                "matrix": self.matrix,
            }
        return {
            "event": "end",
            "diverged": self.diverged,
            "steps": self.step,
            "gradient_evaluations": self.evaluations,
            "seconds": round(self.seconds, 3),
            "images_per_task": min(len(task.train) for task in self.stream.tasks),
            **found,
        }

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        """All that the future of the run depends on; what is drawn follows from the step."""
        return {
            "step": self.step,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "diverged": self.diverged,
            "matrix": self.matrix,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memory": self.memory.state(),
            "tally": self.tally.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.step, self.evaluations, self.seconds = state["step"], state["evaluations"], state["seconds"]
        self.diverged, self.matrix = state["diverged"], state["matrix"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory.load(state["memory"])
        self.tally.load(state["tally"])

    def weights(self) -> dict[str, Any]:
        """The network to keep."""
        with slow_weights_of(self.optimizer):
            return {name: value.clone() for name, value in self.model.state_dict().items()}


def _labelled_from(first: int, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """With labels that count from the task's first class on."""
    for inputs, labels in batches:
        yield inputs, labels - first
