"""The course of a translation training: steps over minibatches of sentences, and BLEU after every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from lookbehind.data.batches import seed_for
from lookbehind.data.sentences import TextBatch, TokenBatches, token_batches
from lookbehind.data.subwords import PADDING, learned
from lookbehind.data.text import ParallelText, TextData, detokenised
from lookbehind.models.transformer import Transformer, label_smoothed_loss
from lookbehind.optim.lookahead import slow_weights_of
from lookbehind.optim.passes import switching
from lookbehind.training.methods import base_optimizer
from lookbehind.training.parallel import team
from lookbehind.training.records import Record
from lookbehind.training.stepping import autocast, random_state, set_random_state, through_the_epoch
from lookbehind.training.tally import Tally, mean_alpha
from lookbehind.translation.bleu import detokenised_bleu, tokenised_bleu
from lookbehind.translation.run import TranslationRun
from lookbehind.translation.search import Search, translated

EXAMPLES = 8
Weights = dict[str, Tensor]


class TranslationTraining:
    """A translation run in progress: network, optimizer, sentences and sums. It knows nothing of files."""

    def __init__(self, run: TranslationRun, data: TextData) -> None:
        self.run = run = run.filled
        self.data, self.method = data, run.optimizing
        self.team = team()
        if self.team.world > 1:
            raise ValueError("a translation training runs in one process: start it without torchrun")
        self.subwords = learned(data, int(run.merges or 0))
        self.train = self._batches(data.train[: run.train_pairs])
        self.validation, self.test = self._batches(data.validation), self._batches(data.test)
        self._check_sizes()
        torch.manual_seed(seed_for(run.seed, "weights"))
        self.model = network(run, len(self.subwords.source), len(self.subwords.target)).to(run.device)
        torch.manual_seed(seed_for(run.seed, "dropout"))
        self.base = base_optimizer(
            run.base,
            self.model,
            lr=float(run.lr or 0.0),
            momentum=run.beta1,
            weight_decay=run.weight_decay,
            beta2=run.beta2,
            eps=run.eps,
        )
        self.optimizer = self.method.optimizer(self.base, self.model, run, rng=run.rng)
        self.step, self.evaluations, self.seconds, self.diverged = 0, 0, 0.0, False
        self.tally = Tally(run.device)
        self.best: dict[str, Any] = {"bleu": None, "epoch": None, "weights": None}

    def _batches(self, text: ParallelText) -> TokenBatches:
        run = self.run
        return token_batches(text, self.subwords, int(run.max_tokens or 0), seed=run.seed, device=run.device)

    def _check_sizes(self) -> None:
        run, available = self.run, len(self.data.train)
        if run.train_pairs is not None and run.train_pairs > available:
            raise ValueError(f"train_pairs={run.train_pairs}: there are only {available} of {run.data}")
        if self.minibatches > len(self.train):
            raise ValueError(
                f"k={run.k} with {run.method}: a step takes as many minibatches, but an epoch has {len(self.train)}; "
                "give a smaller k or --max-tokens"
            )
        if self.steps < self.minibatches:
            raise ValueError(f"gradients={run.gradients}: not enough for one step of {run.method}; give more")

    # --- where it is

    @property
    def steps(self) -> int:
        """The minibatches of the whole training: all epochs, or as many as the gradient budget pays for."""
        if self.run.gradients is not None:
            return self.run.gradients // self.method.gradients(self.run.k)
        return int(self.run.epochs or 0) * len(self.train)

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to, from 0 on."""
        return self.step // len(self.train)

    @property
    def finished(self) -> bool:
        """Have all steps been taken, or has the loss ceased to be finite?"""
        return self.diverged or self.step + self.minibatches > self.steps

    def lr(self, step: int) -> float:
        """``lr min(n / warm-up, sqrt(warm-up / n))`` for the n-th minibatch, from 1 on; without a warm-up it is 1.

        Times ``alpha k`` for a long step.
        """
        run, n = self.run, step + 1
        rising = max(int(run.warmup or 0), 1)
        factor = self.method.lr_factor(run)
        return float(run.lr or 0.0) * factor * min(n / rising, math.sqrt(rising / n))

    # --- steps

    def train_epoch(self, after_step: Callable[[], bool]) -> bool:
        """Train to the end of the epoch; False if ``after_step`` asked to stop before."""
        self.model.train()
        return through_the_epoch(self, self.train.onwards(self.step), after_step)

    @property
    def minibatches(self) -> int:
        """That a step takes."""
        return self.method.minibatches(self.run.k)

    def note_failed_step(self, batches: Sequence[TextBatch]) -> None:
        """The run ends here; what the step has evaluated counts."""
        self.step, self.diverged = self.step + len(batches), True
        self.evaluations += self.optimizer.last.evaluations  # type: ignore[attr-defined]

    def take_step(self, batches: Sequence[TextBatch]) -> None:
        """One step of the method."""
        for group in self.base.param_groups:
            group["lr"] = self.lr(self.step)
        closures = [self._closure(batch) for batch in batches]
        self.optimizer.step(switching(*closures) if self.method.switching else closures[0])
        self.evaluations += self.method.gradients(self.run.k) * len(batches)
        alpha = self.optimizer.last.alpha if self.method.interpolates else None  # type: ignore[attr-defined]
        if alpha is not None:
            self.tally.add_alpha(alpha)
        self.step += len(batches)

    def _closure(self, batch: TextBatch) -> Callable[[], Any]:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self._loss(batch, self.run.label_smoothing)
            loss.backward()
            if not getattr(self.optimizer, "climbing", False):
                self.tally.add_loss(loss, batch.tokens)
            return loss

        return closure

    def _loss(self, batch: TextBatch, smoothing: float) -> Tensor:
        """Per token of the target."""
        wanted = batch.target.ne(PADDING)
        with self.autocast():
            logits = self.model(batch.source, batch.previous, wanted)
        return label_smoothed_loss(logits.float(), batch.target[wanted], smoothing)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of a forward pass."""
        return autocast(self.run.precision, self.run.device)

    # --- measuring

    def epoch_record(self) -> Record:
        """What is known at the end of an epoch; starts the sums of the next."""
        tally, self.tally = self.tally, Tally(self.run.device)
        self.diverged = self.diverged or not math.isfinite(tally.loss)
        whole, begun = divmod(self.step, len(self.train))
        epoch = whole + 1 if begun and self.finished else whole  # what was begun is the next one's, if there is one
        due = epoch % self.run.evaluate_every == 0 or self.finished
        with slow_weights_of(self.optimizer):
            loss = None if self.diverged else self._mean_loss(self.validation)
            self.diverged = self.diverged or loss is None  # the very last step broke the weights
            found = self._scores("validation", self.data.validation, self.validation, due and not self.diverged)
            bleu = found["validation_accuracy"]
            if bleu is not None and (self.best["bleu"] is None or bleu > self.best["bleu"]):
                self.best = {"bleu": bleu, "epoch": epoch, "weights": self._copied_weights()}
        return {
            "event": "epoch",
            "epoch": epoch,
            "step": self.step,
            "passes": self.step / len(self.train),
            "lr": self.base.param_groups[0]["lr"],
            "loss": tally.loss,
            "validation_loss": loss,
            **found,
            "test_accuracy": None,  # the test text is translated in the end only
            "gradient_evaluations": self.evaluations,
            "alpha": tally.alpha,
            "seconds": round(self.seconds, 3),
        }

    def end_record(self, epochs: list[Record]) -> Record:
        """What is known in the end: BLEU of the best network by validation BLEU, which is kept, and of the last.

        ``test_accuracy`` is the former, and so is ``best_test_accuracy``, by which the paper's protocol chooses.
        """
        record: Record = {
            "event": "end",
            "diverged": self.diverged,
            "steps": self.step,
            "passes": self.step / len(self.train),
            "gradient_evaluations": self.evaluations,
            "seconds": round(self.seconds, 3),
            "alpha": mean_alpha(epochs),
            "best_epoch": self.best["epoch"],
            "pairs": len(self.train.source),
        }
        known = not self.diverged
        with slow_weights_of(self.optimizer):
            last = self._scores("last_test", self.data.test, self.test, known)
        if known:
            self.model.load_state_dict(self.best["weights"])
        translations = self._translations(self.test, self.run.search) if known else []
        found = _bleu("test", self.data.test, translations, self.data.languages[1])
        return record | {
            **found,
            "best_test_accuracy": found["test_accuracy"],
            "validation_accuracy": self.best["bleu"] if known else None,
            "test_loss": self._mean_loss(self.test) if known else None,
            **last,
            "examples": self._examples(translations),
        }

    def _examples(self, translations: Sequence[str]) -> list[list[str]]:
        """Source, reference and translation of some test sentences, as people write them."""
        shown = detokenised(translations[:EXAMPLES], self.data.languages[1])
        return [[*pair, text] for pair, text in zip(self.data.test.written, shown, strict=False)]

    def _scores(self, name: str, text: ParallelText, batches: TokenBatches, wanted: bool) -> Record:
        search = self.run.validation_search if name == "validation" else self.run.search
        translations = self._translations(batches, search) if wanted else []
        return _bleu(name, text, translations, self.data.languages[1])

    def _translations(self, batches: TokenBatches, search: Search) -> list[str]:
        with self.autocast():
            found = translated(self.model, batches.source, search, self.run.device)
        return self.subwords.decoded(found)

    def _mean_loss(self, batches: TokenBatches) -> float | None:
        """Per token, without smoothing."""
        self.model.eval()
        total, tokens = 0.0, 0
        with torch.no_grad():
            for batch in batches.plain():
                total += float(self._loss(batch, 0.0)) * batch.tokens
                tokens += batch.tokens
        mean = total / tokens
        return mean if math.isfinite(mean) else None

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        """All that the future of the run depends on. The minibatches follow from the step."""
        return {
            "step": self.step,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "diverged": self.diverged,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "tally": self.tally.state(),
            "best": self.best,
            **random_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.step, self.evaluations, self.seconds = state["step"], state["evaluations"], state["seconds"]
        self.diverged, self.best = state["diverged"], state["best"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.tally.load(state["tally"])
        set_random_state(state)

    def _copied_weights(self) -> Weights:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def weights(self) -> dict[str, Any]:
        """The network to keep, the best by validation BLEU, with the subwords that it reads and writes."""
        return {"model": self.best["weights"] or self._copied_weights(), "subwords": self.subwords.state()}


def network(run: TranslationRun, source: int, target: int) -> Transformer:
    """The network of a run, for dictionaries of these sizes."""
    run = run.filled
    return Transformer(
        source,
        target,
        layers=int(run.layers or 0),
        width=int(run.width or 0),
        hidden=int(run.hidden or 0),
        heads=int(run.heads or 0),
        dropout=float(run.dropout or 0.0),
    )


def _bleu(name: str, text: ParallelText, translations: Sequence[str], language: str) -> Record:
    """Both kinds of BLEU, or None of both where nothing was translated."""
    if not translations:
        return {f"{name}_accuracy": None, f"{name}_bleu_detokenised": None, f"{name}_bleu_signature": None}
    written = [english for _, english in text.written]
    found = detokenised_bleu(translations, written, language)
    return {
        f"{name}_accuracy": tokenised_bleu(translations, text.target).score,
        f"{name}_bleu_detokenised": found.score,
        f"{name}_bleu_signature": found.signature,
    }
