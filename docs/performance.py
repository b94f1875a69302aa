"""Put what `lookbehind bench` measured into docs/performance.md: python docs/performance.py out/bench

The tables between the two marks are replaced; what is written by hand around them stays as it is.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from lookbehind.bench.run import growth_rounds
from lookbehind.bench.timing import Measured

PAGE = Path(__file__).parent / "performance.md"
BEGIN, END = "<!-- measured -->", "<!-- end -->"


def put(directory: Path) -> None:
    """The table, how much of it is reached, and where it was measured."""
    found = json.loads((directory / "results.json").read_text())
    about = found["about"]
    every = [Measured(**{key: value for key, value in one.items() if key != "reached"}) for one in found["measured"]]
    judged = [one for one in every if one.reached is not None]
    also = sum(replace(one, value=one.whole or one.value).reached or False for one in judged)
    kept = "glibc keeps its memory" if about["keeps_memory"] else "the C library's allocator as it is"
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    growth = growth_rounds(about["rounds"])
    reached = sum(one.reached or False for one in judged)
    words = (
        f"{reached} of {len(judged)} of what was wanted is reached; by whole times {also}. In brackets what must be "
        f"reached; bold is not. {about['rounds']} rounds ({growth} for growth, at most 3 for sharpness) of "
        f"{about['repetitions']} repetitions and {about['seconds']:g} seconds or more, {about['threads']} thread, "
        f"{kept}. {versions}; {about['machine']}; {about['when']}."
    )
    tables = (directory / "results.md").read_text().strip()
    text, replaced = re.subn(
        f"(?s){BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{words}\n\n{tables}\n\n{END}", PAGE.read_text()
    )
    if replaced != 1:
        raise SystemExit(f"{PAGE}: lacks {BEGIN} or {END}")
    PAGE.write_text(text)


if __name__ == "__main__":
    put(Path(sys.argv[1]))
