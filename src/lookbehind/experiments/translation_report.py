"""The page of a translation run: BLEU, how it came, and some translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lookbehind.experiments.differences import line_through
from lookbehind.experiments.drawing import GRADIENTS, looks
from lookbehind.experiments.figures import curves_figure
from lookbehind.experiments.measure_tables import Grid
from lookbehind.experiments.output import about_run
from lookbehind.experiments.pages import write_pages
from lookbehind.experiments.pictures import Picture
from lookbehind.experiments.shown import Heading, Output
from lookbehind.experiments.table import accuracy, count, loss
from lookbehind.training.records import Record
from lookbehind.translation.run import TranslationRun


def summary(end: Record) -> dict[str, str]:
    """What came out, in words and numbers."""
    return {
        "test BLEU, tokenised": accuracy(end["test_accuracy"]),
        "test BLEU, detokenised": accuracy(end["test_bleu_detokenised"]),
        "test BLEU of the last epoch, tokenised": accuracy(end["last_test_accuracy"]),
        "test BLEU of the last epoch, detokenised": accuracy(end["last_test_bleu_detokenised"]),
        "validation BLEU, tokenised": accuracy(end["validation_accuracy"]),
        "test loss per subword": loss(end["test_loss"]),
        "best epoch": count(end["best_epoch"]),
        "minibatches": count(end["steps"]),
        "gradients": count(end["gradient_evaluations"]),
        "sentence pairs": count(end["pairs"]),
    }


def write_report(
    out: Path, run: TranslationRun, records: Sequence[Record], command: str, began: float
) -> dict[str, str]:
    """Write the page, its numbers and its figures into the directory of a finished run; the summary."""
    end = records[-1]
    told = summary(end)
    note = (
        "Of the network of the epoch with the best validation BLEU, which is kept. Tokenised: Moses's tokens in lower "
        f"case, as fairseq and the paper report it; detokenised: {end['test_bleu_signature']} against the text as it "
        "was written."
    )
    output = Output(
        tables=[
            Grid("What came out", note, ["", "value"], [*map(list, told.items())]),
            Grid(
                "Some translations",
                "The first sentences of the test text.",
                ["source", "reference", "translation"],
                end["examples"],
            ),
        ],
        pictures=list(translation_pictures(records)),
    )
    about = about_run(run, command, began)
    write_pages(out, Heading("translation", about.title, ""), output, about)
    return told


def translation_pictures(records: Sequence[Record]) -> Iterator[Picture]:
    """Loss and BLEU over the training, where there is something to draw."""
    epochs = [record for record in records if record["event"] == "epoch"]
    names = {"training": "loss", "validation": "validation_loss"}
    curves = {name: _points(epochs, key) for name, key in names.items()}
    lines = [line_through(name, *found) for name, found in curves.items() if found[0]]
    if lines:
        caption = "Per subword; that of the training with dropout and label smoothing, at the unperturbed weights."
        figure = curves_figure(lines, looks([line.method for line in lines]), GRADIENTS, "loss")
        yield Picture("translation-loss", "Loss", caption, figure)
    x, values = _points(epochs, "validation_accuracy")
    if x:
        best = max(value for (value,) in values)
        caption = f"Tokenised, in lower case; the best is {best:.2f}."
        figure = curves_figure([line_through("validation", x, values)], looks(["validation"]), GRADIENTS, "BLEU")
        yield Picture("translation-bleu", "Validation BLEU", caption, figure)


def _points(epochs: Sequence[Record], key: str) -> tuple[list[float], list[list[float]]]:
    """Where a number is known: after how many gradients, and the number."""
    known = [(float(record["gradient_evaluations"]), record[key]) for record in epochs if record[key] is not None]
    return [x for x, _ in known], [[value] for _, value in known]
