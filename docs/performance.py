"""Put what `lookbehind bench` measured into docs/performance.md: python docs/performance.py out/bench

The table between the two marks is replaced; what is written by hand around it stays as it is.
"""

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "performance.md"
BEGIN, END = "<!-- measured -->", "<!-- end -->"


def put(directory: Path) -> None:
    """The table, how much of it is reached, and where it was measured."""
    found = json.loads((directory / "results.json").read_text())
    about, judged = found["about"], [one for one in found["measured"] if one["reached"] is not None]
    medians = [one["value"] if one["whole"] is None else one["whole"] for one in judged]
    also = sum(
        m >= one["at_least"] if one["at_most"] is None else m <= one["at_most"]
        for m, one in zip(medians, judged, strict=True)
    )
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    words = (
        f"{sum(one['reached'] for one in judged)} of {len(judged)} of what was wanted is reached, {also} also by whole "
        f"times. {about['rounds']} rounds (3 for growth and sharpness) of {about['repetitions']} repetitions and "
        f"{about['seconds']:g} seconds or more, {about['threads']} thread. {versions}; {about['machine']}; "
        f"{about['when']}."
    )
    table = (directory / "results.md").read_text().strip()
    text, replaced = re.subn(
        f"(?s){BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{words}\n\n{table}\n\n{END}", PAGE.read_text()
    )
    if replaced != 1:
        raise SystemExit(f"{PAGE}: lacks {BEGIN} or {END}")
    PAGE.write_text(text)


if __name__ == "__main__":
    put(Path(sys.argv[1]))
