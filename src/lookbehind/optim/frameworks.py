"""What frameworks would do silently wrong with a step, noticed without importing them."""

from __future__ import annotations

import sys
from typing import Any


def asked_by_an_unknown_scaler(optimizer: Any) -> bool:
    """The answer to "does your step support scaling?", from inside the property ``_step_supports_amp_scaling``.

    ``GradScaler.step`` asks. To one that we do not know we say yes: it then sets ``found_inf``, by which we notice
    that it called. Others, who ask because they want to clip gradients, hear no.
    """
    asking = sys._getframe(2).f_globals.get("__name__")
    return optimizer.scaler is None and asking == "torch.amp.grad_scaler"


def refuse_what_frameworks_do_wrong(optimizer: Any) -> None:
    """Raise where gradients would be scaled without our knowing, or batches would vanish."""
    if optimizer.scaler is None and hasattr(optimizer, "found_inf"):  # set by GradScaler.step while it runs
        raise RuntimeError(
            "scaler.step(optimizer, ...): the optimizer does not know of the scaler, and would take scaled gradients "
            "for true ones. Give it scaler= when you make it"
        )
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and _accumulates(accelerate.GradientState):
        raise RuntimeError(
            "Accelerator(gradient_accumulation_steps=...): inside accumulate() only the last closure of several would "
            "be evaluated. Leave it at 1 and give step(lookbehind.accumulated(loss, micro_batches, model=model))"
        )


def _accumulates(state: Any) -> bool:
    return int(state._shared_state.get("plugin_kwargs", {}).get("num_steps") or 1) > 1
