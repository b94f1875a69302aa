"""All experiments by their ids: those of the paper, and what follows from them."""

from __future__ import annotations

from importlib import import_module

from lookbehind.experiments.paper.experiment import Experiment

IDS = (
    *("table1", "table2", "table3", "table4-translation", "table4-vit", "table5", "table8", "table9", "table10"),
    *("figure1", "figure3", "figure4", "figure5", "figure6", "figure7", "figure8", "figure9", "figure10"),
    *("figure13", "figure14"),
    "frontier",
)


def experiment(name: str) -> Experiment:
    """An experiment by its id, such as table1."""
    if name not in IDS:
        raise ValueError(f"experiment={name!r}: choose one of {', '.join(IDS)}")
    found: Experiment = import_module(f"lookbehind.experiments.paper.{name.replace('-', '_')}").EXPERIMENT
    return found
