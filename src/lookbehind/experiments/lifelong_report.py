"""The page of a lifelong run: its numbers, and how accuracy came and went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lookbehind.data.tasks import STREAMS
from lookbehind.experiments.lifelong_pictures import lifelong_pictures
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.output import about_run
from lookbehind.experiments.pages import write_pages
from lookbehind.experiments.shown import Heading, Output
from lookbehind.experiments.table import accuracy, count
from lookbehind.lifelong.run import LifelongRun
from lookbehind.training.records import Record


def summary(end: Record, whole: int | None) -> dict[str, str]:
    """What came out, in words and numbers; ``whole`` is how many images a task has where none are missing."""
    images = count(end["images_per_task"])
    return {
        "average accuracy %": accuracy(end["test_accuracy"]),
        "forgetting, from the best time on": accuracy(end["forgetting"]),
        "forgetting, from when it was learned": accuracy(-end["backward_transfer"]),
        "accuracy when a task was just learned %": accuracy(end["learning_accuracy"]),
        "average accuracy on held-out images %": accuracy(end["validation_accuracy"]),
        "gradients": count(end["gradient_evaluations"]),
        "training images per task": images
        if whole in (None, end["images_per_task"])
        else f"{images} of {count(whole)}",
    }


def write_report(out: Path, run: LifelongRun, records: Sequence[Record], command: str, began: float) -> dict[str, str]:
    """Write the page, its numbers and its figures into the directory of a finished run; the summary."""
    end = records[-1]
    told = summary(end, STREAMS[run.data].images)
    label = f"{run.method}, seed {run.seed}"
    per_task = [
        [str(task + 1), accuracy(row[task]), accuracy(end["matrix"][-1][task]), _lost(end, task)]
        for task, row in enumerate(end["matrix"])
    ]
    output = Output(
        tables=[
            Grid(
                "What came out",
                "Of the network after the last task.",
                ["", "value"],
                [*map(list, told.items())],
            ),
            Grid(
                "Every task",
                "Accuracy when it had just been learned and in the end; what was lost since its best time before "
                "the last task (negative: gained).",
                ["task", "when learned %", "in the end %", "lost"],
                per_task,
            ),
        ],
        pictures=list(lifelong_pictures({label: [end["matrix"]]})),
    )
    about = about_run(run, command, began)
    write_pages(out, Heading("lifelong", about.title, ""), output, about)
    return told


def _lost(end: Record, task: int) -> str:
    lost = end["forgetting_per_task"]
    return accuracy(lost[task]) if task < len(lost) else ""
