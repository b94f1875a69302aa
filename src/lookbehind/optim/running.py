"""One step, from its parts: climb, descend, interpolate; put everything back where it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lookbehind.optim import descent as descents
from lookbehind.optim.ascent import COUNTERS, Leaf
from lookbehind.optim.climb import Climb
from lookbehind.optim.descent import Descender, Plan
from lookbehind.optim.diagnostics import Diagnostics
from lookbehind.optim.exchange import Exchange
from lookbehind.optim.fast import Fast
from lookbehind.optim.interpolation import none
from lookbehind.optim.passes import Itinerary, Walk
from lookbehind.optim.precision import NonFiniteError
from lookbehind.optim.ranks import forget_gathered_weights
from lookbehind.optim.rng import Replay
from lookbehind.optim.scaling import Overflowed
from lookbehind.optim.statistics import Statistics
from lookbehind.optim.treatment import Treatment

if TYPE_CHECKING:
    from lookbehind.optim.sharpness_aware import SharpnessAware


@dataclass(frozen=True)
class _Parts:
    """What one step is made of."""

    climb: Climb
    fast: Fast
    descender: Descender
    last: Diagnostics
    statistics: Statistics | None  # running statistics before the step


def run(optimizer: SharpnessAware, plan: Plan, leaves: list[Leaf], itinerary: Itinerary) -> Walk:
    """The evaluations that a step needs, as a generator; when it ends, the step is taken, skipped or undone."""
    scaling = optimizer._scaling
    if scaling is not None:
        scaling.begin(optimizer)
    parts = _assembled(optimizer, plan, leaves, itinerary)
    optimizer._climb, fast, last = parts.climb, parts.fast, parts.last
    counted = optimizer.steps
    try:
        yield from parts.climb.walk(parts.descender.receive)
    except BaseException as error:
        parts.climb.exchange.home()
        if not fast.taken:
            fast.restore_base()
            if parts.statistics is not None:
                parts.statistics.restore()
        skips = optimizer.nonfinite == "skip" and isinstance(error, NonFiniteError)
        if not (skips or isinstance(error, Overflowed)):
            raise
        last.skipped = True
        optimizer._set_counter("ascent_skipped", optimizer.skipped + 1)
    finally:
        optimizer._climb = None
        optimizer._set_counter("ascent_steps", counted + (fast.taken or last.skipped))
        optimizer._set_counter("ascent_evaluations", optimizer.evaluations + last.evaluations)
        for leaf in leaves:
            leaf.parameter.grad = None
        forget_gathered_weights(optimizer.model)
        last.record_alpha(fast.alpha)
        optimizer.last = last
    if scaling is not None:
        scaling.end()
    return last.clean_loss


def _assembled(optimizer: SharpnessAware, plan: Plan, leaves: list[Leaf], itinerary: Itinerary) -> _Parts:
    parameters = [leaf.parameter for leaf in leaves]
    scratch, scaling = optimizer._scratch, optimizer._scaling
    scratch.open(parameters)
    exchange = Exchange(parameters, scratch, offload=optimizer.offload)
    last = Diagnostics(descents.ascents(plan))
    treatment = Treatment(
        parameters=parameters,
        model=optimizer.model,
        check=optimizer.nonfinite != "propagate",
        apart=optimizer.ranks == "apart",
        clip=optimizer.clip,
        scaling=scaling,
    )
    climb = Climb(
        rule=optimizer.ascent,
        leaves=leaves,
        exchange=exchange,
        scratch=scratch,
        itinerary=itinerary,
        ascents=last.ascents,
        last=last,
        treatment=treatment,
        cosine=optimizer.cosine,
        held_model=optimizer.model if optimizer.batchnorm == "first" else None,
        replay=Replay(parameters) if optimizer.rng == "replay" else None,
    )
    interpolation = optimizer.interpolation if last.ascents else none
    fast = Fast(
        base=optimizer.base,
        interpolation=interpolation,
        exchange=exchange,
        scratch=scratch,
        in_place=len(plan) == 1 and interpolation == none and optimizer.restore == "weights",
        # an overflow is no accident: it must leave no trace of the base steps before it
        keeps_state=optimizer.restore == "all" or scaling is not None,
        counters=COUNTERS,
    )

    def step(final: bool) -> None:
        treatment.handed_on()
        fast.step(final)

    statistics = Statistics(optimizer.model) if optimizer.model is not None else None
    return _Parts(climb, fast, Descender(plan, parameters, scratch, step), last, statistics)
