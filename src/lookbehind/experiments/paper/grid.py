"""The rows of the paper's tables, each with the settings that it is searched over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lookbehind.experiments.paper.scale import Scale, Task
from lookbehind.training.job import Job

FAMILIES = ("sam", "asam")
ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class Arm:
    """A row: one name, and the methods among which the best is chosen."""

    name: str
    """As the paper calls it."""
    candidates: tuple[str, ...]
    """Methods with their settings, as ``compare`` takes them."""

    def runs(self, task: Task, seeds: range) -> list[Job]:
        """All runs, candidate by candidate."""
        return [task.settings.run(one, seed) for one in self.candidates for seed in seeds]

    def search(self, task: Task, seeds: range) -> list[Job]:
        """The runs by which its settings are chosen; none where there is no choice."""
        return [] if len(self.candidates) == 1 else self.runs(task.searched, seeds)


def radius(task: Task, family: str, factor: float = 1.0) -> float:
    """A multiple of the task's default radius."""
    run = task.images.run(family, 0)
    return float(f"{run.radius(family) * factor:.6g}")


def written(method: str, **settings: float | str) -> str:
    """A method with its settings, as people write it."""
    inner = ",".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()
    )
    return f"{method}:{inner}" if inner else method


def in_words(**searched: Sequence[float]) -> str:
    """What a row is searched over, for a caption: ``the best k, alpha 0.5`` where only k has several values."""
    several = [name for name, values in searched.items() if len(values) > 1]
    words = [f"the best {' and '.join(several)}"] if several else []
    return ", ".join(words + [f"{name} {values[0]:g}" for name, values in searched.items() if len(values) == 1])


def plain(family: str, task: Task, scale: Scale) -> Arm:
    """SAM or ASAM, at the best of all radii."""
    radii = dict.fromkeys(radius(task, family, factor) for factor in (1.0, *scale.rhos))
    return Arm(family.upper(), tuple(written(family, rho=rho) for rho in radii))


def default(family: str, task: Task) -> Arm:
    """SAM or ASAM at its default radius."""
    return Arm(f"{family.upper()}, default rho", (written(family, rho=radius(task, family)),))


def over_k(name: str, method: str, task: Task, scale: Scale, **settings: float | str) -> Arm:
    """A method at every k."""
    return Arm(name, tuple(written(method, k=k, **settings) for k in scale.values_of_k(task)))


def over_k_and_alpha(name: str, method: str, task: Task, scale: Scale, **settings: float | str) -> Arm:
    """A method at every k with every static alpha."""
    return Arm(
        name,
        tuple(written(method, k=k, alpha=alpha, **settings) for k in scale.values_of_k(task) for alpha in scale.alphas),
    )


def lookbehind(family: str, task: Task, scale: Scale, **settings: float | str) -> Arm:
    """Lookbehind with a static alpha."""
    return over_k_and_alpha(f"Lookbehind-{family.upper()}", f"lookbehind-{family}", task, scale, **settings)


def larger_k(family: str, task: Task, scale: Scale) -> Iterator[Arm]:
    """Lookbehind with a k that is too costly for a search, at one alpha."""
    if scale.larger_k is not None and not task.one_k:
        settings = {"k": scale.larger_k, "alpha": scale.alphas[0]}
        name = f"Lookbehind-{family.upper()}, k = {scale.larger_k}, alpha = {scale.alphas[0]:g}"
        yield Arm(name, (written(f"lookbehind-{family}", **settings),))


def adaptive(family: str, task: Task, scale: Scale) -> Arm:
    """Lookbehind with an adaptive alpha."""
    name = f"Lookbehind-{family.upper()}, adaptive alpha"
    return over_k(name, f"lookbehind-{family}", task, scale, alpha=ADAPTIVE)


def family_of_table_1(family: str, task: Task, scale: Scale) -> Iterator[Arm]:
    """The rows of one family in table 1."""
    upper = family.upper()
    yield plain(family, task, scale)
    yield over_k(f"Multistep-{upper}", f"multistep-{family}", task, scale)
    yield over_k(f"Multistep-{upper}, average", f"multistep-{family}-mean", task, scale)
    yield over_k_and_alpha(f"Lookahead-{upper}", f"lookahead-{family}", task, scale)
    yield lookbehind(family, task, scale)
    yield from larger_k(family, task, scale)


def rows_at_radius(family: str, task: Task, scale: Scale, rho: float) -> list[Arm]:
    """The methods of a family, all trained with the same radius."""
    upper, scale = family.upper(), replace(scale, alphas=scale.few_alphas)
    return [
        Arm(upper, (written(family, rho=rho),)),
        over_k(f"Multistep-{upper}", f"multistep-{family}", task, scale, rho=rho),
        over_k_and_alpha(f"Lookahead-{upper}", f"lookahead-{family}", task, scale, rho=rho),
        lookbehind(family, task, scale, rho=rho),
    ]


def rows_at_radii(task: Task, scale: Scale, factors: Sequence[float]) -> list[Arm]:
    """The methods of either family at each of some multiples of its default radius."""
    return [
        arm
        for family in FAMILIES
        for factor in factors
        for arm in rows_at_radius(family, task, scale, radius(task, family, factor))
    ]


def controls(family: str, task: Task, scale: Scale) -> Iterator[Arm]:
    """What moves as far per minibatch as Lookbehind, and could explain its gain. Not in the paper."""
    upper = family.upper()
    yield over_k_and_alpha(f"{upper}, matched step and radius", f"{family}-matched", task, scale)
    yield over_k_and_alpha(f"{upper}, first gradient repeated", f"repeat-{family}", task, scale)


def stretched(task: Task, factor: float) -> dict[str, float | str]:
    """The settings of a training that is so many times as long, its milestones where they were."""
    longer: dict[str, float | str] = {"epochs": str(round((task.images.epochs or 0) * factor))}
    if task.images.milestones:
        longer["milestones"] = "/".join(str(round(epoch * factor)) for epoch in task.images.milestones)
    return longer


def budget_k(task: Task, scale: Scale) -> int:
    """The k of Lookbehind whose gradients others are given too: 5, or the largest that there is."""
    ks = scale.values_of_k(task)
    return 5 if 5 in ks else max(ks)


def same_budget(task: Task, scale: Scale) -> Iterator[Arm]:
    """SGD, SAM and ASAM for as many gradients as Lookbehind computes with k = 5 (or the k that there is).

    Not in the paper, which compares at an equal number of epochs.
    """
    k = budget_k(task, scale)
    for method, cost in (("sgd", 1), ("sam", 2), ("asam", 2)):
        factor = (k + 1) / cost
        radii: dict[str, float | str] = {} if method == "sgd" else {"rho": radius(task, method)}
        longer = written(method, **radii, **stretched(task, factor))
        yield Arm(f"{method.upper()}, {factor:g} times the epochs", (longer,))


def table_1(task: Task, scale: Scale) -> list[Arm]:
    """All rows of table 1, in the order of the paper, with the controls behind them."""
    return [
        Arm("SGD", ("sgd",)),
        over_k_and_alpha("Lookahead-SGD", "lookahead-sgd", task, scale),
        *(arm for family in FAMILIES for arm in family_of_table_1(family, task, scale)),
        *(arm for family in FAMILIES for arm in controls(family, task, scale)),
        *same_budget(task, scale),
    ]
