"""A comparison that takes seconds: its settings, also as words of a command, and what of its rows is the same again."""

from __future__ import annotations

from lookbehind.training.settings import Settings

QUICK = Settings(epochs=2, batch_size=100, k=2, validation=60, pool=2)
QUICK_WORDS = ["--epochs", "2", "--batch-size", "100", "--k", "2", "--validation", "60", "--pool", "2"]


def without_seconds(rows):
    return [{key: value for key, value in r.items() if key != "seconds"} for r in rows]
