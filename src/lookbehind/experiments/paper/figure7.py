"""Figure 7: Lookbehind over alpha and k."""

from __future__ import annotations

from lookbehind.experiments.paper.experiment import Experiment
from lookbehind.experiments.paper.heatmaps import arms_of, heatmaps

EXPERIMENT = Experiment(
    id="figure7",
    title="Figure 7: Lookbehind over alpha and k",
    claim="Lookbehind is above SAM and ASAM at all alpha and k, but for k = 2 with SAM.",
    tasks=("c10-rn34",),
    arms=arms_of("Lookbehind"),
    show=lambda findings: heatmaps(findings, "figure7", "Lookbehind", lambda family, k: (family, k) != ("sam", 2)),
)
