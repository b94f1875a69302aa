"""What a scale is: the tasks, what is searched over there, and changes to their settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lookbehind.data.tasks import STREAMS
from lookbehind.experiments.paper.checkpoints import Checkpoint
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.training.measuring import Measures
from lookbehind.training.overrides import setting_from_text
from lookbehind.training.settings import Settings
from lookbehind.translation.run import TranslationSettings


@dataclass(frozen=True)
class Task:
    """A data set and a network: a column of the paper's tables."""

    key: str
    """Short, for files."""
    name: str | Callable[[Any], str]
    """What it is called, which may follow from its settings: they can be changed."""
    settings: Settings | LifelongSettings | TranslationSettings
    stands_for: str
    """The column of the paper whose numbers are shown beside ours."""
    one_k: bool = False
    """Only k = 2 was run there."""
    checkpoint: Checkpoint | None = None
    """The network to fine-tune, made before the first run; its settings then name no other."""
    search: LifelongSettings | None = None
    """What the settings of its rows are searched with, where that is shorter than the task itself."""

    @property
    def title(self) -> str:
        """What it is called, with its settings as they are."""
        return self.name if isinstance(self.name, str) else self.name(self.settings)

    @property
    def searched(self) -> Task:
        """The task that settings are searched on."""
        return self if self.search is None else replace(self, settings=self.search, search=None)

    @property
    def images(self) -> Settings:
        """The settings of a task of image classification."""
        if not isinstance(self.settings, Settings):
            raise TypeError(f"{self.title} is not a task of image classification")
        return self.settings

    @property
    def translation(self) -> TranslationSettings:
        """The settings of a task of translation."""
        if not isinstance(self.settings, TranslationSettings):
            raise TypeError(f"{self.title} is not a task of translation")
        return self.settings

    @property
    def plain_method(self) -> str:
        """The base optimizer alone, by whose trainings costs are told."""
        return "adamw" if isinstance(self.settings, TranslationSettings) else "sgd"

    @property
    def held_out(self) -> bool:
        """Are there images that settings can be chosen on, without the test images?"""
        return bool(self.settings.validation) if isinstance(self.settings, Settings) else True


@dataclass(frozen=True)
class LifelongGrid:
    """The streams of tasks of lifelong learning, and what is searched over there."""

    tasks: tuple[Task, ...]
    lrs: tuple[float, ...]
    rhos: tuple[float, ...]
    ks: tuple[int, ...]
    alphas: tuple[float, ...]
    meta_ks: tuple[int, ...]
    """Inner steps of C-MAML."""
    meta_rhos: tuple[float, ...]
    """Radii of Lookbehind-C-MAML, whose steps cost seven to fourteen times those of replay."""


@dataclass(frozen=True)
class TranslationGrid:
    """The texts to translate, and what is searched over there."""

    tasks: tuple[Task, ...]
    rhos: tuple[float, ...] = (1.0,)
    """In units of the default radii, for SAM and ASAM and for Lookbehind alike."""
    lrs: tuple[float, ...] = (1.0,)
    """In units of the usual learning rate, for all rows alike: Lookbehind moves about alpha k times as far with it."""


@dataclass(frozen=True)
class Scale:
    """Tasks, grids and the number of seeds."""

    name: str
    about: str
    tasks: tuple[Task, ...]
    rhos: tuple[float, ...]
    """The grid of SAM's radius, in units of the task's default radius; ASAM's is the same."""
    few_rhos: tuple[float, ...]
    """The few of the figures: 1, 2 and 4 times the default in the paper."""
    ks: tuple[int, ...]
    alphas: tuple[float, ...]
    few_alphas: tuple[float, ...]
    """The alphas of figures and tables that already vary rho, the epoch of a switch or the micro-batch."""
    larger_k: int | None
    """A further k of Lookbehind, at one alpha only and as a line of its own, for its cost."""
    switches: tuple[float, ...]
    """Where figure 8 switches the method, as parts of the training."""
    seeds: int
    measures: Measures
    lifelong: LifelongGrid
    translation: TranslationGrid
    judges: bool = True
    """Do its networks learn enough for verdicts to mean something?"""

    def task(self, key: str) -> Task:
        """The task of the paper, or the only one that stands for all."""
        tasks = self.tasks
        for begins, others in (("split-", self.lifelong.tasks), ("translation", self.translation.tasks)):
            tasks = others if key.startswith(begins) else tasks
        return {task.key: task for task in tasks}.get(key, tasks[0])

    def tasks_of(self, keys: Sequence[str]) -> list[Task]:
        """The tasks that an experiment of the paper has, each once."""
        return list({self.task(key).key: self.task(key) for key in keys}.values())

    def values_of_k(self, task: Task) -> tuple[int, ...]:
        """All values of k that are run on a task."""
        return (2,) if task.one_k else self.ks


def changed(scale: Scale, words: Sequence[str], keys: Collection[str]) -> Scale:
    """The scale with settings of these of its tasks replaced: ``weight_decay=5e-4 batchnorm=first``.

    These are the paper's ambiguities: it does not say, or says one thing where the authors' code does another.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if not equals or all(key not in _kinds(kind) for kind in (Settings, LifelongSettings, TranslationSettings)):
            raise ValueError(f"change={word!r}: give NAME=VALUE with the name of a setting, such as weight_decay=5e-4")
        values[key] = value

    def with_values(tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(
            replace(task, settings=_replaced(task.settings, values)) if task.key in keys else task for task in tasks
        )

    lifelong = replace(scale.lifelong, tasks=with_values(scale.lifelong.tasks))
    translation = replace(scale.translation, tasks=with_values(scale.translation.tasks))
    return replace(scale, tasks=with_values(scale.tasks), lifelong=lifelong, translation=translation)


def with_search(scale: Scale, tasks: int) -> Scale:
    """The scale with the settings of lifelong learning searched on the first tasks of each stream."""

    def shorter(task: Task) -> Task:
        if not isinstance(task.settings, LifelongSettings):
            raise TypeError(f"{task.title} is not a stream of tasks")
        own = task.settings.tasks or STREAMS[task.settings.data].tasks
        if tasks >= own:
            raise ValueError(f"search_tasks={tasks}: {task.title} has {own} tasks; give fewer, or leave it out")
        return replace(task, search=replace(task.settings, tasks=tasks))

    return replace(scale, lifelong=replace(scale.lifelong, tasks=tuple(map(shorter, scale.lifelong.tasks))))


def with_checkpoints(scale: Scale, out: Path) -> Scale:
    """The scale with the networks that are made in ``out``, where a task has one and no change names another."""

    def located(task: Task) -> Task:
        if task.checkpoint is None or task.images.model is not None:
            return task
        return replace(task, settings=replace(task.images, model=task.checkpoint.model(out)))

    return replace(scale, tasks=tuple(map(located, scale.tasks)))


def _kinds(settings: Any) -> dict[str, str]:
    """The settings of a class, with their types."""
    return {f.name: str(f.type) for f in fields(settings)}


def _replaced(settings: Any, texts: dict[str, str]) -> Any:
    """Those that these settings have."""
    kinds = _kinds(settings)
    return replace(settings, **{n: setting_from_text(n, text, kinds[n]) for n, text in texts.items() if n in kinds})
