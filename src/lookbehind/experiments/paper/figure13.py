"""Figure 13: Lookbehind over alpha and k."""

from __future__ import annotations

from lookbehind.experiments.paper.experiment import ALL_TASKS, Experiment
from lookbehind.experiments.paper.heatmaps import arms_of, heatmaps

EXPERIMENT = Experiment(
    id="figure13",
    title="Figure 13: Lookbehind over alpha and k",
    claim="Lookbehind over alpha and k on all models; small alpha with small k and large alpha with large k are worse.",
    tasks=ALL_TASKS,
    arms=arms_of("Lookbehind"),
    show=lambda findings: heatmaps(findings, "figure13", "Lookbehind"),
)
