"""The files of a comparison: results.json, results.md, report.html and every figure as SVG and PDF."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from lookbehind.data.files import written_whole
from lookbehind.experiments.markdown import markdown
from lookbehind.experiments.pictures import NAMES, Picture, pictures
from lookbehind.experiments.report import About, render
from lookbehind.experiments.results import Curve, Row
from lookbehind.training.job import Job


def write_results(out: Path, about: About, rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]]) -> None:
    """Write what is known; ``rows[0]`` is the baseline, ``curves`` has the runs by method. Every file whole or not."""
    files: dict[str, str | bytes] = {"results.json": _json(rows), "comparison.json": _json(about.__dict__)}
    if rows:
        drawn = pictures(rows, curves)
        files["results.md"] = markdown(about, rows)
        files["report.html"] = render(about, rows, drawn)
        files |= figure_files(drawn)
    write_files(out, files)
    for old in (out / "figures").iterdir():  # of an earlier call with other measures
        if old.stem in NAMES and f"figures/{old.name}" not in files:
            old.unlink()


def figure_files(pictures: Sequence[Picture]) -> dict[str, bytes]:
    """The files of all figures by their names."""
    return {f"figures/{one.name}.{kind}": content for one in pictures for kind, content in one.files.items()}


def write_files(out: Path, files: Mapping[str, str | bytes], *, figures: bool = True) -> None:
    """Write files by their names below a directory, most with figures; each is whole or not there."""
    (out / "figures" if figures else out).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with written_whole(out / name) as file:
            # a path may not be Unicode
            file.write(content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, allow_nan=False)


def versions() -> dict[str, str]:
    """Of what the numbers may depend on."""
    packages = {name: version(name) for name in ("lookbehind", "numpy")}
    return {"python": sys.version.split()[0], "torch": torch.__version__, **packages}


def about_run(run: Job, command: str, began: float) -> About:
    """What is to be said of the page of one run, which began at this time of the monotonic clock."""
    return About(
        title=f"{run.data}: {run.method}, seed {run.seed}",
        command=command,
        settings={name: value for name, value in run.identity.items() if name != "method"},
        versions=versions(),
        machine=machine(run.place),
        started=time_of(began),
        seconds=monotonic() - began,
        notices=[],
    )


def time_of(began: float) -> str:
    """The time of day at a time of the monotonic clock."""
    return (datetime.now(timezone.utc) - timedelta(seconds=monotonic() - began)).isoformat(timespec="seconds")


def machine(device: str) -> str:
    """Where the numbers were made."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {device}"
