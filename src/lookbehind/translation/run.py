"""A translation training as a value: all that decides its outcome, and an id that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lookbehind.data.text import CORPORA, TextData
from lookbehind.optim.checks import count, fraction, non_negative, one_of, positive
from lookbehind.optim.interpolation import following
from lookbehind.training.job import Derived
from lookbehind.training.methods import Method, method
from lookbehind.training.overrides import check_read, overrides
from lookbehind.training.settings import as_plain_numbers, check_device, resolved
from lookbehind.translation.search import Search

if TYPE_CHECKING:
    from lookbehind.translation.training import TranslationTraining

BASES = ("adamw", "adam")
# What is usual: a setting that is None takes its corpus's value, or else the common one, which is the paper's.
COMMON: dict[str, Any] = {
    "epochs": 50,
    "merges": 10_000,
    "layers": 6,
    "width": 512,
    "hidden": 1024,
    "heads": 4,
    "dropout": 0.3,
    "max_tokens": 4096,
    "lr": 5e-4,
    "warmup": 4000,
}
USUAL: dict[str, dict[str, Any]] = {
    "toy-translation": {
        "epochs": 20,
        "merges": 120,
        "layers": 1,
        "width": 64,
        "hidden": 128,
        "dropout": 0.0,
        "max_tokens": 512,
        "lr": 5e-3,
        "warmup": 100,
    },
    # a small network that learns fast on a CPU: BLEU above 25 after some 650 gradients
    "multi30k": {
        "epochs": 12,
        "merges": 5000,
        "layers": 2,
        "width": 128,
        "hidden": 512,
        "max_tokens": 2048,
        "lr": 4e-3,
        "warmup": 400,
    },
}


@dataclass(frozen=True, kw_only=True)
class TranslationSettings:
    """What a translation training is made of, but for its method and its seed. None stands for what is usual."""

    data: str = "toy-translation"
    """toy-translation (numbers in words), multi30k or iwslt14: German to English."""
    epochs: int | None = None
    """Passes over the training text. Usual for the data if not given."""
    gradients: int | None = None
    """Stop after this many gradient evaluations, in place of a number of epochs."""
    merges: int | None = None
    """Of the byte-pair encoding. Usual for the data if not given: 10,000."""
    train_pairs: int | None = None
    """Train on the first so many sentence pairs only."""
    max_tokens: int | None = None
    """Per minibatch: the longest of its sentences times their number. Usual for the data if not given: 4096."""

    rho: float = 0.1
    """Radius of an ascent step of SAM and its relatives."""
    asam_rho: float = 0.2
    """Radius of an ascent step of ASAM and its relatives."""
    eta: float = 0.01
    """ASAM scales by |w| + eta."""
    k: int = 2
    """Ascent steps of Multistep and Lookbehind, fast steps of Lookahead."""
    alpha: float | Literal["adaptive", "adaptive-per-tensor"] = 0.8
    """How far the slow weights follow, from 0 to 1, or adaptive."""
    rng: Literal["fresh", "replay"] = "fresh"
    """Dropout masks: fresh in every pass, or the same in all passes over a minibatch."""

    base: Literal["adamw", "adam"] = "adamw"
    """The base optimizer. What fairseq and the paper call Adam decays weights as adamw does."""
    lr: float | None = None
    """Learning rate after the warm-up. Usual for the data if not given: 5e-4."""
    warmup: int | None = None
    """Minibatches in which the learning rate rises from 0; then it falls with 1 / sqrt(minibatches). Usual: 4000."""
    beta1: float = 0.9
    """Adam's, of the gradient."""
    beta2: float = 0.98
    """Adam's, of its square."""
    eps: float = 1e-8
    """Adam's."""
    weight_decay: float = 1e-4
    """As the base optimizer defines it: decoupled for adamw."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over the other tokens."""
    clip: float | None = None
    """Clip the norm of the gradient of every base step."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: the forward pass runs under autocast."""

    layers: int | None = None
    """Of the encoder, and as many of the decoder. Usual for the data if not given: 6."""
    width: int | None = None
    """Of the network. Usual for the data if not given: 512."""
    hidden: int | None = None
    """Units of its feed-forward parts. Usual for the data if not given: 1024."""
    heads: int | None = None
    """Of every attention. Usual for the data if not given: 4."""
    dropout: float | None = None
    """Of embeddings and residuals. Usual for the data if not given: 0.3."""

    beam: int = 5
    """Hypotheses that the search for a translation follows."""
    length_penalty: float = 1.0
    """Scores of hypotheses are divided by their length to this power."""
    max_len: int = 200
    """The longest translation in the end, in subwords; while training 1.2 times the source and 10."""
    evaluate_every: int = 1
    """Translate the validation text every so many epochs, and after the last."""

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: int = 1
    """CPU threads of a run. They are part of it: float32 sums depend on them."""

    def __post_init__(self) -> None:
        one_of("data", self.data, tuple(CORPORA))
        one_of("base", self.base, BASES)
        one_of("rng", self.rng, ("fresh", "replay"))
        one_of("precision", self.precision, ("fp32", "bf16"))
        for name in ("k", "evaluate_every", "threads"):
            count(name, getattr(self, name))
        network = ("layers", "width", "hidden", "heads")
        for name in ("epochs", "gradients", "merges", "train_pairs", "max_tokens", *network):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        if self.warmup is not None:
            count("warmup", self.warmup, at_least=0)
        for name in ("rho", "asam_rho", "eta", "weight_decay"):
            non_negative(name, getattr(self, name))
        if self.lr is not None:
            non_negative("lr", self.lr)
        positive("eps", self.eps)
        for name in ("beta1", "beta2", "label_smoothing", "dropout"):
            if getattr(self, name) is not None and fraction(name, getattr(self, name)) == 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a number below 1")
        if self.clip is not None:
            positive("clip", self.clip)
        following(self.alpha)
        as_plain_numbers(self)
        self.search  # noqa: B018, which checks its settings
        check_device(self.device)

    @property
    def search(self) -> Search:
        """For the test text."""
        return Search(self.beam, self.length_penalty, self.max_len)

    @property
    def validation_search(self) -> Search:
        """While training: a network that knows little yet would go on to the greatest length."""
        return Search(self.beam, self.length_penalty, max_len=10, ratio=1.2)

    def run(self, text: str, seed: int) -> TranslationRun:
        """The run for a method as people write it: ``lookbehind-sam-switching:k=2,alpha=adaptive``."""
        name = text.partition(":")[0]
        own = overrides(self, text, {method(name).ascent}, ONE_METHOD)
        values = {f.name: getattr(self, f.name) for f in fields(TranslationSettings)} | own
        run = TranslationRun(**values, method=name, seed=seed)
        check_read(run, text, own)
        return run


# the same for all methods, or nothing can be compared
ONE_METHOD = ("data", "merges", "train_pairs", "max_len", "beam", "length_penalty", "evaluate_every")


@dataclass(frozen=True, kw_only=True)
class TranslationRun(TranslationSettings, Derived):
    """One translation training: settings, a method and a seed.

    The seed draws the first weights, the minibatches, their order and the dropout masks, alike for all methods.

    Examples:
        >>> TranslationRun(data="iwslt14", method="lookbehind-sam-switching", k=2, alpha=0.8, seed=0).id
        'lookbehind-sam-switching-seed0-...'
    """

    method: str = "adamw"
    """A method as in `lookbehind list methods`."""
    seed: int = 0
    """Draws the first weights, the order of the sentences and all else that is random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if count("seed", self.seed, at_least=0) >= 2**63:
            raise ValueError(f"seed={self.seed}: give a number below 2^63")
        found = self.optimizing
        if found.micro or found.base not in ("", *BASES):
            raise ValueError(f"method={self.method!r}: translation trains with adamw or adam, on whole minibatches")
        if found.needs_a_number_for_alpha and isinstance(self.alpha, str):
            raise ValueError(f"alpha={self.alpha!r} with {self.method}: it needs a number, such as 0.5")

    @property
    def optimizing(self) -> Method:
        """How the optimizer is made."""
        return method(self.method)

    def radius(self, ascent: str) -> float:
        """Rho for this kind of ascent."""
        return self.asam_rho if ascent == "asam" else self.rho

    @property
    def batchnorm(self) -> str:
        """The network has none."""
        return "all"

    @cached_property
    def filled(self) -> TranslationRun:
        """The same run with every None replaced by what is usual."""
        usual = {**COMMON, **USUAL.get(self.data, {})}
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        found: dict[str, Any] = {
            **missing,
            "base": self.optimizing.base or self.base,
            "device": resolved(self.device),
        }
        return replace(self, **found)

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that decide the outcome, and no others."""
        read, ascent = self.optimizing.numbers, self.optimizing.ascent
        conditions = {
            **{name: name in read for name in ("eta", "k", "alpha")},
            "rho": ascent == "sam",
            "asam_rho": ascent == "asam",
            "rng": bool(ascent),
            "epochs": self.gradients is None,
            "gradients": self.gradients is not None,
        }
        unread = {name for name, matters in conditions.items() if not matters}
        return {f.name: getattr(self.filled, f.name) for f in fields(self) if f.name not in unread}

    @property
    def numbers(self) -> dict[str, Any]:
        """What tells it from other runs of its method, in short."""
        shown = {"lr": "lr", "rho": "rho", "asam_rho": "rho", "k": "k", "alpha": "alpha"}
        identity = self.identity
        return {word: identity[name] for name, word in shown.items() if name in identity}

    @property
    def unit(self) -> str:
        """Of what is called accuracy in its records."""
        return "BLEU"

    @property
    def cost(self) -> float:
        """Gradients of the whole run, in some unit: a budget, or epochs times the cost of a step."""
        if self.gradients is not None:
            return self.gradients
        return float(self.filled.epochs or 0) * self.optimizing.gradients(self.k)

    @property
    def whole_epochs(self) -> int:
        """Of the run; with a budget of gradients, about."""
        return int(self.filled.epochs or 0)

    def begin(self, data: TextData) -> TranslationTraining:
        """The training, before its first step."""
        from lookbehind.translation.training import TranslationTraining  # which needs this module

        return TranslationTraining(self, data)


def translation_run_from(identity: dict[str, Any]) -> TranslationRun:
    """The run that an identity, as it was saved, stands for."""
    if identity.get("data") not in CORPORA:
        raise ValueError(f"a run on {identity.get('data')}, which is not text: give one of `lookbehind translation`")
    known = {f.name for f in fields(TranslationRun)}
    if unknown := sorted(set(identity) - known):
        raise ValueError(f"a run saved with {', '.join(unknown)}: another version of lookbehind made it")
    return TranslationRun(**identity)
