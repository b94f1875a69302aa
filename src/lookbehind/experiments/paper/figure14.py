"""Figure 14: Lookahead over alpha and k."""

from __future__ import annotations

from lookbehind.experiments.paper.experiment import ALL_TASKS, Experiment
from lookbehind.experiments.paper.heatmaps import arms_of, heatmaps

EXPERIMENT = Experiment(
    id="figure14",
    title="Figure 14: Lookahead over alpha and k",
    claim="Lookahead over alpha and k on all models: it depends less on them, and gains less.",
    tasks=ALL_TASKS,
    arms=arms_of("Lookahead"),
    show=lambda findings: heatmaps(findings, "figure14", "Lookahead"),
)
