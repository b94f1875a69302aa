"""Draw docs/results/repeated.svg and print the table beside it: python docs/repeated.py

Lookbehind minus one gradient repeated, from the kept records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from paired import in_words, paired

from lookbehind.experiments.differences import Difference
from lookbehind.experiments.drawing import INK, RULE, SHADES, WIDTH, blank, drawn, file_of

RESULTS = Path(__file__).parent / "results"
NONE = 0.5  # points: what is called no difference
WHAT = {"test accuracy": SHADES["sam"][0], "with noise": SHADES["asam"][0]}


@dataclass(frozen=True)
class Pair:
    """Lookbehind and the repeated gradient in one setting, each with the radius that was chosen for it."""

    network: str
    lr: str
    ascent: str
    rho: str
    repeated_rho: str
    records: str
    first_seed: int
    given: str = ""
    batchnorm: bool = True

    @property
    def found(self) -> Mapping[str, Difference]:
        """The differences."""
        key = "rho" if self.ascent == "SAM" else "asam_rho"
        name = self.ascent.lower()
        above, below = (
            f"{method}-{name}:{key}={rho},lr={self.lr}{self.given}"
            for method, rho in (("lookbehind", self.rho), ("repeat", self.repeated_rho))
        )
        return paired(RESULTS / self.records / "records/frontier.jsonl.gz", self.first_seed, above, below)

    @property
    def label(self) -> str:
        """For the picture."""
        return f"{self.network}\n{self.ascent}, rho {self.rho}, lr {self.lr}"


PAIRS = (
    Pair("ResNet", "0.05", "SAM", "0.05", "0.3", "laptop-five-seeds", 5),
    Pair("ResNet, as test images chose", "0.05", "SAM", "0.1", "0.3", "laptop-five-seeds", 5),
    Pair("ResNet", "0.05", "ASAM", "0.25", "1", "laptop", 2),
    Pair("ResNet at 32 x 32", "0.05", "SAM", "0.05", "0.1", "laptop-32", 1),
    Pair("without BatchNorm", "0.02", "SAM", "0.05", "0.15", "laptop-convnet", 5, batchnorm=False),
    Pair("without BatchNorm", "0.02", "ASAM", "0.25", "1", "laptop-convnet", 5, batchnorm=False),
    Pair("without BatchNorm", "0.008", "SAM", "0.05", "0.1", "laptop-convnet", 5, batchnorm=False),
)


def table() -> str:
    """The table of the page, in Markdown."""
    heads = [
        "network",
        "lr",
        "ascent",
        "rho",
        "repeated, rho",
        "accuracy",
        "BatchNorm re-estimated",
        "with noise",
        "seeds",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for pair in PAIRS:
        found = pair.found
        again = in_words(found["with BatchNorm re-estimated"]) if pair.batchnorm else ""
        cells = [
            pair.network,
            pair.lr,
            pair.ascent,
            pair.rho,
            pair.repeated_rho,
            in_words(found["test accuracy"]),
            again,
        ]
        lines.append(f"| {' | '.join([*cells, in_words(found['with noise']), str(found['with noise'].seeds)])} |")
    return "\n".join(lines)


@drawn
def figure() -> Figure:
    """Every difference with its interval, and the band within which it is called none."""
    height = 34.0 * len(PAIRS) + 62
    found = blank(height)
    axes = found.add_axes((160 / WIDTH, 34 / height, (WIDTH - 168) / WIDTH, (height - 62) / height), facecolor="none")
    axes.axvspan(-NONE, NONE, color=RULE, alpha=0.6, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    for row, pair in enumerate(PAIRS):
        for place, (what, colour) in enumerate(WHAT.items()):
            one = pair.found[what]
            axes.errorbar(
                one.mean, row - 0.14 + 0.28 * place, xerr=one.margin, color=colour, marker="os"[place], markersize=4.5,
                linewidth=1, capsize=2, linestyle="none", label=what if row == 0 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(PAIRS)), [pair.label for pair in PAIRS])
    axes.set_ylim(len(PAIRS) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xlabel("Lookbehind minus repeated, points")
    found.legend(loc="upper right", ncols=2, frameon=False)
    return found


if __name__ == "__main__":
    (RESULTS / "repeated.svg").write_bytes(file_of(figure(), "svg"))
    print(table())
