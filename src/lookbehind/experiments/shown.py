"""What a page shows, whatever it is about: tables, figures, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lookbehind.experiments.claims import NOT_RUN, Verdict
from lookbehind.experiments.measure_tables import Grid

if TYPE_CHECKING:  # matplotlib takes long to import, and the worker processes have no use for it
    from lookbehind.experiments.pictures import Picture


@dataclass
class Output:
    """What an experiment shows."""

    tables: list[Grid] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)
    """Each with where it was judged: task and protocol."""

    def without_others(self, rows: Collection[str]) -> Output:
        """Without what was neither asked for nor run: rows of tables, and claims that need such a row."""
        tables = [
            replace(table, lines=[line for line in table.lines if line[0] in rows or NOT_RUN not in line])
            for table in self.tables
        ]
        kept = [(where, one) for where, one in self.verdicts if one.verdict != NOT_RUN or one.claim.names <= set(rows)]
        return Output(tables, self.pictures, kept)


@dataclass(frozen=True)
class Heading:
    """What a page is about."""

    id: str
    title: str
    claim: str
    """What the paper says of it, in our words; or, behind "Not in the paper: ", what we asked."""

    @property
    def said(self) -> str:
        """The claim, and whose it is."""
        return self.claim if not self.claim or self.claim.startswith("Not in the paper") else f"The paper: {self.claim}"
