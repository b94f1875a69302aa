"""Beam search with cached keys and values against one that decodes all places again, at the paper's size.

python benchmarks/beam_search.py
"""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import torch

from lookbehind.data.sentences import filled
from lookbehind.data.subwords import END
from lookbehind.models.transformer import Transformer
from lookbehind.translation.search import Search, searched

SENTENCES, LENGTH, REPETITIONS = 8, 24, 3


def main() -> None:
    torch.manual_seed(0)
    model = Transformer(8848, 6632).eval()
    with torch.no_grad():
        model.target.tokens.weight[END] = 0.0  # never likely, so that all translations have the greatest length
    sentences = [[*torch.randint(4, 8848, (LENGTH - 1,)).tolist(), END] for _ in range(SENTENCES)]
    source, search = filled(sentences), Search(beam=5, max_len=LENGTH)
    times: dict[bool, list[float]] = {True: [], False: []}
    found = {}
    for _ in range(REPETITIONS):  # interleaved, so that a busy machine hits both alike
        for cached in times:
            start = perf_counter()
            found[cached] = searched(model, source, search, cached=cached)
            times[cached].append(perf_counter() - start)
    ratios = [slow / fast for slow, fast in zip(times[False], times[True], strict=True)]
    print(
        json.dumps(
            {
                "uncached / cached, median": median(ratios),
                "ratios": ratios,
                "seconds, cached": median(times[True]),
                "sentences": SENTENCES,
                "subwords per sentence": LENGTH,
                "parameters": sum(p.numel() for p in model.parameters()),
                "the same hypotheses": [[h.tokens for h in one] for one in found[True]]
                == [[h.tokens for h in one] for one in found[False]],
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main()
