"""One step, from its parts: climb, descend, interpolate; put everything back where it fails."""

from __future__ import annotations

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


def run(optimizer: SharpnessAware, plan: Plan, leaves: list[Leaf], itinerary: Itinerary) -> Walk:
    """The evaluations that a step needs, as a generator; when it ends, the step is taken, skipped or undone."""
    parameters = [leaf.parameter for leaf in leaves]
    scratch, scaling = optimizer._scratch, optimizer._scaling
    scratch.open(parameters)
    exchange = Exchange(parameters, scratch, offload=optimizer.offload)
    last = Diagnostics(descents.ascents(plan))
    statistics = Statistics(optimizer.model) if optimizer.model is not None else None
    if scaling is not None:
        scaling.begin(optimizer)
    treatment = Treatment(
        parameters=parameters,
        model=optimizer.model,
        check=optimizer.nonfinite != "propagate",
        apart=optimizer.ranks == "apart",
        clip=optimizer.clip,
        scaling=scaling,
    )
    optimizer._climb = climb = Climb(
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

    descender = Descender(plan, parameters, scratch, step)
    counted = optimizer.steps
    try:
        yield from climb.walk(descender.receive)
    except BaseException as error:
        exchange.home()
        if not fast.taken:
            fast.restore_base()
            if statistics is not None:
                statistics.restore()
        skips = optimizer.nonfinite == "skip" and isinstance(error, NonFiniteError)
        if not (skips or isinstance(error, Overflowed)):
            raise
        last.skipped = True
        optimizer._set_counter("ascent_skipped", optimizer.skipped + 1)
    finally:
        optimizer._climb = None
        optimizer._set_counter("ascent_steps", counted + (fast.taken or last.skipped))
        optimizer._set_counter("ascent_evaluations", optimizer.evaluations + last.evaluations)
        for parameter in parameters:
            parameter.grad = None
        forget_gathered_weights(optimizer.model)
        last.record_alpha(fast.alpha)
        optimizer.last = last
    if scaling is not None:
        scaling.end()
    return last.clean_loss
