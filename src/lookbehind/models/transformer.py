"""The encoder-decoder Transformer of fairseq's ``transformer_iwslt_de_en``, in any size.

Post-norm: ``x <- LayerNorm(x + Dropout(f(x)))`` for attention and for ``f(x) = W2 relu(W1 x)``; the decoder's input
embedding is also the output projection. With 6 + 6 layers, width 512, feed-forward 1024, 4 heads and dictionaries of
8,848 and 6,632 it has 39,469,056 parameters.

    Vaswani et al. (2017), Attention is all you need; Ott et al. (2019), fairseq
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PADDING = 1  # in both dictionaries, as of lookbehind.data.subwords
POSITIONS = 1024  # the longest sentence

KeysValues = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Several heads of scaled dot-product attention, ``softmax(q k^T / sqrt(d)) v``, without dropout inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight, gain=1 / math.sqrt(2))  # as of one matrix for all three
        nn.init.xavier_uniform_(self.out.weight)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.zeros_(layer.bias)

    def _split(self, x: Tensor) -> Tensor:
        """(rows, places, width) as (rows, heads, places, width / heads)."""
        split: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return split

    def keys_values(self, x: Tensor) -> KeysValues:
        """What is attended to."""
        return self._split(self.key(x)), self._split(self.value(x))

    def forward(self, x: Tensor, attended: KeysValues, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """For every place of ``x``; ``mask`` is true where it may look."""
        found = F.scaled_dot_product_attention(self._split(self.query(x)), *attended, attn_mask=mask, is_causal=causal)
        attended_to: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return attended_to


class FeedForward(nn.Module):
    """``W2 relu(W1 x)``."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """For every place on its own."""
        hidden: Tensor = self.second(F.relu(self.first(x)))
        return hidden


class Added(nn.Module):
    """What closes every part of a layer: ``LayerNorm(x + Dropout(y))``."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The next x."""
        normed: Tensor = self.norm(x + self.dropout(y))
        return normed


class EncoderLayer(nn.Module):
    """Attention to the sentence itself, then feed-forward."""

    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads), FeedForward(width, hidden)
        self.after_attention, self.after_feed_forward = Added(width, dropout), Added(width, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The next x."""
        x = self.after_attention(x, self.attention(x, self.attention.keys_values(x), mask))
        ended: Tensor = self.after_feed_forward(x, self.feed_forward(x))
        return ended


@dataclass
class LayerCache:
    """What a decoder layer need not compute again."""

    crossed: KeysValues
    """Keys and values of the source: one row per sentence, for all its beams."""
    own: KeysValues | None = None
    """Keys and values of the places decoded so far: one row per beam."""


class DecoderLayer(nn.Module):
    """Attention to the target so far, attention to the source, then feed-forward."""

    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = (
            Attention(width, heads),
            Attention(width, heads),
            FeedForward(width, hidden),
        )
        self.after_attention, self.after_cross, self.after_feed_forward = (Added(width, dropout) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """The next x; it may have several rows (beams) for every row of the memory."""
        x = self.after_attention(x, self.attention(x, self.attention.keys_values(x), causal=True))
        return self._rest(x, self.cross.keys_values(memory), mask)

    def step(self, x: Tensor, cache: LayerCache, mask: Tensor) -> Tensor:
        """The same for one more place, with what is cached of those before, which it is added to."""
        key, value = self.attention.keys_values(x)
        if cache.own is not None:
            key, value = torch.cat([cache.own[0], key], 2), torch.cat([cache.own[1], value], 2)
        cache.own = key, value
        x = self.after_attention(x, self.attention(x, cache.own))
        return self._rest(x, cache.crossed, mask)

    def _rest(self, x: Tensor, crossed: KeysValues, mask: Tensor) -> Tensor:
        # beams of a sentence are places of one row: they share the keys and values of the source
        sentences = crossed[0].shape[0]
        looked = self.cross(x.reshape(sentences, -1, x.shape[-1]), crossed, mask).view_as(x)
        x = self.after_cross(x, looked)
        ended: Tensor = self.after_feed_forward(x, self.feed_forward(x))
        return ended


@dataclass
class Cache:
    """Of all layers of a decoder, in the middle of a search."""

    mask: Tensor
    layers: list[LayerCache] = field(default_factory=list)
    places: int = 0

    def pick(self, rows: Tensor | None, sentences: Tensor | None) -> None:
        """Go on with these rows (beams) and sentences; None for all of them as they are."""
        if sentences is not None:
            self.mask = self.mask[sentences]
        for layer in self.layers:
            if rows is not None and layer.own is not None:
                layer.own = layer.own[0].index_select(0, rows), layer.own[1].index_select(0, rows)
            if sentences is not None:
                layer.crossed = layer.crossed[0][sentences], layer.crossed[1][sentences]


class Embedding(nn.Module):
    """``sqrt(d) E[token] + position``, then dropout. Positions are sines and cosines, as fairseq has them."""

    positions: Tensor

    def __init__(self, size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, width, padding_idx=PADDING)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        with torch.no_grad():
            self.tokens.weight[PADDING].zero_()
        self.dropout, self.scale = nn.Dropout(dropout), math.sqrt(width)
        # made anew and not saved: it follows from the width
        self.register_buffer("positions", sinusoids(POSITIONS, width), persistent=False)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Of tokens whose first has so many before it."""
        x = self.scale * self.tokens(tokens) + self.positions[first : first + tokens.shape[1]]
        dropped: Tensor = self.dropout(x)
        return dropped


def sinusoids(places: int, width: int) -> Tensor:
    """``sin(p w_i)`` and ``cos(p w_i)``, ``w_i = 10000^(-i / (d/2 - 1))``; fairseq counts p from 2 on."""
    half = width // 2
    rates = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
    angles = (torch.arange(places) + PADDING + 1)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Transformer(nn.Module):
    """Source and target so far in, logits of the next target token out.

    Args:
        source: size of the source dictionary.
        target: size of the target dictionary.
        layers: of the encoder, and as many of the decoder.
        width: d, even and a multiple of ``heads``.
        hidden: of the feed-forward parts.
        heads: of every attention.
        dropout: of embeddings, and of what is added to the residual path.
    """

    def __init__(
        self,
        source: int,
        target: int,
        *,
        layers: int = 6,
        width: int = 512,
        hidden: int = 1024,
        heads: int = 4,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        if width % heads or width % 2 or width < 4:
            raise ValueError(
                f"width={width} with heads={heads}: give an even number from 4 on that is a multiple of the heads"
            )
        self.source, self.target = Embedding(source, width, dropout), Embedding(target, width, dropout)
        size = (width, hidden, heads, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*size) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*size) for _ in range(layers))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of every place, and a mask that is true where there is a token."""
        _check_length(source.shape[1])
        mask = source.ne(PADDING)[:, None, None, :]
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask

    def decode(self, previous: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """States of all target places; of several rows for a row of the memory, those of a sentence are together."""
        _check_length(previous.shape[1])
        # no mask for padding in the target: it is on the right, where no place looks
        x: Tensor = self.target(previous)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return x

    @property
    def _decoder_layers(self) -> list[DecoderLayer]:
        return list(self.decoder)  # type: ignore[arg-type]

    def start(self, memory: Tensor, mask: Tensor) -> Cache:
        """A cache for decoding place by place: keys and values of the source, once for every sentence."""
        return Cache(mask, [LayerCache(layer.cross.keys_values(memory)) for layer in self._decoder_layers])

    def decode_next(self, previous: Tensor, cache: Cache) -> Tensor:
        """States of the next place, from the last tokens (rows, 1) and what is cached of those before."""
        _check_length(cache.places + 1)
        x: Tensor = self.target(previous, cache.places)
        for layer, cached in zip(self._decoder_layers, cache.layers, strict=True):
            x = layer.step(x, cached, cache.mask)
        cache.places += 1
        return x

    def logits(self, states: Tensor) -> Tensor:
        """Of the next token: the output projection is the target's embedding."""
        return F.linear(states, self.target.tokens.weight)

    def forward(self, source: Tensor, previous: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Logits of all target places, or of the ``wanted`` ones (true in a mask) in a row."""
        states = self.decode(previous, *self.encode(source))
        return self.logits(states if wanted is None else states[wanted])


def _check_length(places: int) -> None:
    if places > POSITIONS:
        raise ValueError(f"a sentence of {places} subwords: the network has {POSITIONS} positions; give a shorter one")


def label_smoothed_loss(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Mean over tokens of ``-(1 - eps) log p(y) - eps / (V - 1) sum_{v != y} log p(v)``, padding left out.

    In fairseq's form the share ``eps`` goes to the *other* tokens; torch's goes to all, so it is given a little more.
    """
    size = logits.shape[-1]
    return F.cross_entropy(
        logits.reshape(-1, size),
        target.reshape(-1),
        label_smoothing=smoothing * size / (size - 1),
        ignore_index=PADDING,
    )
