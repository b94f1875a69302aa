"""The torch Optimizer that wires ascent, descent and interpolation to a base optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lookbehind.optim import descent as descents
from lookbehind.optim.ascent import (
    COUNTERS,
    NAMES,
    Leaf,
    Rule,
    check_keys,
    leaves_of,
    refuse_gradients,
    refuse_shared_memory,
    sam,
)
from lookbehind.optim.checks import count, non_negative, one_of, shown
from lookbehind.optim.climb import Climb
from lookbehind.optim.clipping import Clip, check_clip
from lookbehind.optim.descent import Descent, Plan
from lookbehind.optim.diagnostics import Diagnostics
from lookbehind.optim.frameworks import asked_by_an_unknown_scaler, refuse_what_frameworks_do_wrong
from lookbehind.optim.interpolation import Interpolation, none
from lookbehind.optim.options import check_model, check_parts, check_words
from lookbehind.optim.passes import (
    HOW_TO_WRITE_A_CLOSURE,
    Itinerary,
    Passes,
    Walk,
    drive,
    loop_itinerary,
    planned,
)
from lookbehind.optim.ranks import check_ranks
from lookbehind.optim.running import run
from lookbehind.optim.scaling import Scaling, check_scaler
from lookbehind.optim.schedule import Schedule
from lookbehind.optim.signature import KEY, check_signature, in_words, signature
from lookbehind.optim.weights import Scratch
from lookbehind.optim.wrapper import Wrapper, all_parameters, checked_base


class SharpnessAware(Wrapper):
    """Climb ``k`` times, descend on the gradients found there, and move the slow weights towards the fast ones.

    ::

        point <- slow <- fast <- w
        for i = 1..k:  point <- point + rho T^2 g(point) / |T g(point)|          (ascent)
                       fast  <- base optimizer's step on fast with g(point)      (descent)
        w <- slow + alpha (fast - slow)                                          (interpolation)

    The methods with names (``SAM``, ``LookbehindSAM``, ...) pick the parts; this class
    is for what has no name yet.

    Args:
        base: the optimizer to wrap, an instance; its groups and state are this optimizer's.
        rho: radius of an ascent step; ``ascent_rho`` in a group takes precedence, and 0 there leaves the group's
            parameters unperturbed and out of the norm.
        k: number of ascent steps.
        ascent: the scaling ``T``: ``sam`` or ``asam``.
        descent: which gradients the base optimizer steps with: ``last``, ``mean``, ``mean_with_clean``, ``each``,
            ``repeat`` of ``lookbehind.optim.descent``, or a function of your own.
        interpolation: ``none``, ``constant(alpha)`` or ``adaptive(per_tensor=...)``.
        reach: ``"per-step"``: every ascent step has the size rho; ``"total"``: rho / k, to stay within rho.
        schedule: when to climb, and k and rho over time.
        model: the model, where its normalisation layers matter (``batchnorm``, and restoring their running statistics
            when a step fails; buffers of another kind are left as the closure left them), and with FSDP2 where modules
            keep gathered weights after the backward pass (``set_reshard_after_backward(False)``).
        batchnorm: running statistics are updated in ``"all"`` passes, or only in the ``"first"``, at the unperturbed
            weights (recommended; needs ``model``).
        rng: ``"fresh"`` random numbers in every evaluation, or ``"replay"``: the same dropout masks in all
            evaluations of a minibatch, so that reusing a gradient is exact.
        nonfinite: what a NaN or infinite loss or gradient does: ``"raise"``, ``"skip"`` the step (counted in
            ``skipped``; base steps that Lookbehind had taken by then stay in the base's momentum unless
            ``restore="all"``), or ``"propagate"`` (no check, and nothing in a step waits for the device).
        restore: what is put back when a step fails: the ``"weights"``, or ``"all"``, the base optimizer's state too
            (which costs a copy of it per step).
        clip: ``clip_norm`` or ``clip_value``, of the gradient of every base step.
        scaler: a ``torch.amp.GradScaler``, for fp16. The closure calls ``scaler.scale(loss).backward()`` and returns
            the unscaled loss; the optimizer unscales, and calls ``scaler.update()``. An overflow in any evaluation
            skips the whole step (the base's state is put back too) and lowers the scale. Give every optimizer a
            scaler of its own.
        ranks: of several processes with DistributedDataParallel: they climb ``"together"``, along the gradient of the
            whole minibatch, or ``"apart"``, each along its own, which is m-SAM with the ranks' parts as micro-batches
            and saves all-reduces: only the descent's gradients are averaged (needs ``model``, the DDP one).
        cosine: the cosine in ``last``: ``"none"``, between the last gradient and the whole ``"climb"`` (a difference
            and two products of all weights per step), or between the first and last ``"gradients"`` (one more buffer).
        offload: let the slow weights wait in the CPU's memory while the other two vectors are used, to the same bits.
            On a GPU this saves one parameter-sized buffer of those beside the parameters (all that SAM has; one of
            Lookbehind's two, or of three with an adaptive alpha), for copying the weights out once and back one to
            four times per step, which nothing waits for (pinned memory). On a CPU it saves nothing.

    Attributes:
        last: diagnostics of the last step (``Diagnostics``): losses, gradient norms,
            alpha, cosine; ``last.to_dict()`` for a log.
        evaluations, steps, skipped: counters, saved with the state.
        climbing: true while a perturbed point is evaluated.

    After a step every ``p.grad`` is None.

    Examples:
        >>> from lookbehind.optim.descent import mean
        >>> from lookbehind.optim.interpolation import constant
        >>> base = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
        >>> optimizer = SharpnessAware(base, rho=0.05, k=3, descent=mean, interpolation=constant(0.5))
        >>> loss = optimizer.step(closure)
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: float = 0.05,
        k: int = 1,
        ascent: Rule = sam,
        descent: Descent = descents.last,
        interpolation: Interpolation = none,
        reach: str = "per-step",
        schedule: Schedule | None = None,
        model: nn.Module | None = None,
        batchnorm: str = "all",
        rng: str = "fresh",
        nonfinite: str = "raise",
        restore: str = "weights",
        cosine: str = "none",
        clip: Clip | None = None,
        scaler: torch.amp.GradScaler | None = None,
        ranks: str = "together",
        offload: bool = False,
    ) -> None:
        checked_base(base, "SharpnessAware")
        check_parts(ascent=ascent, descent=descent, interpolation=interpolation)
        check_words(reach=reach, batchnorm=batchnorm, rng=rng, nonfinite=nonfinite, restore=restore, cosine=cosine)
        check_words(ranks=ranks)
        check_model(model, base, needed=batchnorm == "first")
        check_ranks(ranks, model, all_parameters(base))
        check_clip(clip)
        one_of("offload", offload, (False, True))  # type: ignore[arg-type]
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(f"schedule={shown(schedule)}: give a lookbehind.Schedule(...)")
        self.rho = non_negative("rho", rho)
        self.k = count("k", k)
        self.ascent = ascent
        self.descent = descent
        self.interpolation = interpolation
        self.reach = reach
        self.schedule = schedule or Schedule()
        self.model = model
        self.batchnorm = batchnorm
        self.rng = rng
        self.nonfinite = nonfinite
        self.restore = restore
        self.cosine = cosine
        self.clip = clip
        self.ranks = ranks
        self.offload = offload
        self.name = type(self).__name__  # of the method, for people; the parts decide
        self.last: Diagnostics | None = None
        self._climb: Climb | None = None
        self._scaling: Scaling | None = None
        self.scaler = scaler
        self._scratch = Scratch()
        super().__init__(base)
        check_keys(self.param_groups)
        self._plan(self.k)  # a wrong descent is found here, not at the first step
        for name in COUNTERS:
            self._set_counter(name, self._counter(name))

    # --- what a user reads

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The GradScaler, if there is one that is enabled."""
        return None if self._scaling is None else self._scaling.scaler

    @scaler.setter
    def scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        check_scaler(scaler)
        self._scaling = Scaling(scaler) if scaler is not None and scaler.is_enabled() else None

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return asked_by_an_unknown_scaler(self)

    @property
    def evaluations(self) -> int:
        """Gradients computed so far, over the whole training; saved with the state."""
        return self._counter("ascent_evaluations")

    @property
    def steps(self) -> int:
        """Steps so far, plain and skipped ones included; the schedule counts them."""
        return self._counter("ascent_steps")

    @property
    def skipped(self) -> int:
        """Steps that were skipped because of a non-finite loss or gradient."""
        return self._counter("ascent_skipped")

    @property
    def climbing(self) -> bool:
        """True while the gradient at a perturbed point is evaluated: ask it before you log from inside the closure."""
        return self._climb is not None and self._climb.climbing

    @property
    def ascents(self) -> int:
        """How many ascent steps the next step takes, 0 for a plain step; ``switching`` needs as many closures, or 1."""
        return descents.ascents(self._plan(self.schedule.steps(self.steps, self.k)))

    def free_buffers(self) -> None:
        """Let the scratch buffers go, for example before a long evaluation. The next step makes new ones."""
        if self._climb is not None:
            raise RuntimeError("free_buffers() inside a step: its buffers are in use; call it between steps")
        self._scratch.free()

    # --- a step

    def step(self, closure: Any = None) -> Any:
        """Take a step and return the loss at the weights before it.

        Args:
            closure: zeroes the gradients, runs forward and backward and returns the loss. Or one of
                ``switching(...)``, ``micro_batches(...)``, ``given(...)`` in its place.
        """
        if closure is None:
            return self._step_without_closure()
        itinerary, evaluate = planned(closure, self.ascents)
        walk = self._walk(itinerary)
        try:
            return drive(walk, evaluate)
        finally:
            self._climb = None  # a second time, should an interrupt come at the very end of the walk

    def passes(self, *, switching: bool = False, micro_batches: Sequence[float] | None = None) -> Passes:
        """The same step as a loop, for people without closures; see ``Passes``.

        Args:
            switching: a new minibatch per ascent step; each pass says which by its ``minibatch``.
            micro_batches: their sizes, for m-SAM; each pass says which by its ``micro_batch``.
        """
        itinerary = loop_itinerary(switching, micro_batches, self.ascents)
        walk = self._walk(itinerary)
        self._run_hooks_around_loop(before=True)
        return Passes(walk, itinerary.evaluations(self.ascents), self._leave_loop)

    def _leave_loop(self, taken: bool) -> None:
        self._climb = None
        if taken:
            self._run_hooks_around_loop(before=False)

    def _step_without_closure(self) -> None:
        if self._climb is not None:
            raise RuntimeError("step() inside `for _ in passes`: the loop takes the step by itself; remove step()")
        # torch.distributed.checkpoint fills the state of a fresh optimizer by a step with lr 0 and no closure
        if all(float(group.get("lr", 1.0)) == 0.0 for group in self.param_groups):
            self.base.step()
            return
        raise TypeError(
            "step() without a closure: the gradient is needed at more than one point, so the optimizer has to evaluate "
            f"the loss itself. Write\n\n{HOW_TO_WRITE_A_CLOSURE}\n\nor use the loop `with optimizer.passes() as "
            "passes: for _ in passes: ...`; if loss.backward() has been called already, step(given(loss, closure)). "
            "For Lightning, Hugging Face's Trainer and Accelerate see lookbehind.integrations."
        )

    def _walk(self, itinerary: Itinerary) -> Walk:
        """One step, as a generator of the evaluations that it needs; nothing is touched before it is started."""
        if self._climb is not None:
            raise RuntimeError("step() was called inside a step: call it after the closure or the loop has ended")
        refuse_what_frameworks_do_wrong(self)
        if itinerary.loss is not None and self.ranks == "apart":
            raise ValueError(
                "ranks='apart' with given(...): the gradient that was given is averaged over the ranks already; give a "
                "closure"
            )
        plan = self._plan(self.schedule.steps(self.steps, self.k))
        leaves = self._leaves(descents.ascents(plan))
        refuse_shared_memory(leaves)
        if itinerary.loss is None:
            refuse_gradients(leaves)
        elif self.rng == "replay":
            raise ValueError(
                "rng='replay' with given(...): the random numbers of the first pass are gone; give a closure"
            )
        return run(self, plan, leaves, itinerary)

    # --- the pieces of a step

    def _plan(self, k: int) -> Plan:
        return descents.checked(self.descent(k), self.descent, k) if k else descents.clean(0)

    def _leaves(self, ascents: int) -> list[Leaf]:
        factor = self.schedule.factor(self.steps) if ascents else 1.0
        if self.reach == "total" and ascents:
            factor /= ascents
        return leaves_of(self.param_groups, self.rho, factor)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the base optimizer; ``ascent_rho`` and ``ascent_eta`` may be among the settings."""
        check_keys([param_group])
        super().add_param_group(param_group)

    # --- saving, loading, copying

    def _settings(self) -> dict[str, Any]:
        """What decides the trajectory; ``nonfinite``, ``restore``, ``cosine`` and ``offload`` do not."""
        names = (
            "rho",
            "k",
            "ascent",
            "descent",
            "interpolation",
            "reach",
            "schedule",
            "batchnorm",
            "rng",
            "clip",
            "ranks",
        )
        # whether names are known decides what ASAM scales
        named = all(NAMES in group for group in self.param_groups)
        return {**{name: getattr(self, name) for name in names}, "named": named}

    def _load(self, state_dict: dict[str, Any]) -> None:
        before = [{key: g[key] for key in ("ascent_rho", "ascent_eta", NAMES) if key in g} for g in self.param_groups]
        super()._load(state_dict)
        for group, own in zip(self.param_groups, before, strict=True):
            group.pop(NAMES, None)  # they decide what ASAM scales: this optimizer's own, not those of the state
            group.update({key: value for key, value in own.items() if key not in group})  # a plain state lacks them

    def _saved(self) -> dict[str, Any]:
        return {KEY: signature(self._settings(), self.param_groups)}

    def _check_saved(self, state_dict: dict[str, Any]) -> None:
        if KEY in state_dict:  # else: a plain state of the base optimizer, or a distributed checkpoint
            check_signature(state_dict[KEY], self._saved()[KEY], self.param_groups)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_scratch": Scratch(), "_climb": None}

    def __repr__(self) -> str:
        usual = {"reach": "per-step", "schedule": Schedule(), "batchnorm": "all", "rng": "fresh", "ranks": "together"}
        settings = {k: v for k, v in self._settings().items() if k != "named" and usual.get(k) != v and v is not None}
        return (
            f"{self.name}({type(self.base).__name__}, {', '.join(f'{k}={in_words(v)}' for k, v in settings.items())})"
        )
