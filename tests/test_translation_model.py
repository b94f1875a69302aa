"""The Transformer against torch's own layers, its loss against a loop, beam search against a naive one, BLEU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lookbehind.data.sentences import filled
from lookbehind.data.subwords import END, PADDING
from lookbehind.models.transformer import Attention, Transformer, label_smoothed_loss, sinusoids
from lookbehind.translation.bleu import detokenised_bleu, tokenised_bleu
from lookbehind.translation.search import Hypothesis, Search, searched, translated

SIZES = {"layers": 2, "width": 16, "hidden": 24, "heads": 2}


def model(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(24, 32, **{**SIZES, "dropout": 0.0, **changes}).double().eval()


def sentences(*lengths: int, size: int = 24, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(4, size, (n,), generator=generator).tolist(), END] for n in lengths]


# --- the network


def test_the_papers_network_has_39469056_parameters():
    with torch.device("meta"):
        network = Transformer(8848, 6632)
    assert sum(p.numel() for p in network.parameters()) == 39_469_056
    names = [name for name, _ in network.named_parameters()]
    assert not any("out_projection" in name for name in names)  # tied
    assert sum(name.endswith("tokens.weight") for name in names) == 2
    # of both embeddings, and where something is added: 2 in each layer of the encoder, 3 in each of the decoder
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.3] * (2 + 6 * 2 + 6 * 3)


def copied(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for part in ("weight", "bias"):
            mine = torch.cat([getattr(layer, part) for layer in (ours.query, ours.key, ours.value)])
            getattr(theirs, f"in_proj_{part}").copy_(mine)
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def test_its_layers_compute_what_torchs_do():
    ours = model()
    shape = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": True, "dtype": torch.float64}
    source, previous = filled(sentences(7, 4)), filled(sentences(5, 6, size=32))
    memory, _ = ours.encode(source)
    x, y = ours.source(source), ours.target(previous)
    padded = source.eq(PADDING)
    causal = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    for encoder, decoder in zip(ours.encoder, ours.decoder, strict=True):
        one, two = nn.TransformerEncoderLayer(16, 2, **shape), nn.TransformerDecoderLayer(16, 2, **shape)
        for layer, theirs in ((encoder, one), (decoder, two)):
            copied(layer.attention, theirs.self_attn)
            theirs.linear1.load_state_dict(layer.feed_forward.first.state_dict())
            theirs.linear2.load_state_dict(layer.feed_forward.second.state_dict())
        copied(decoder.cross, two.multihead_attn)
        x = one(x, src_key_padding_mask=padded)
        y = two(y, memory, tgt_mask=causal, memory_key_padding_mask=padded)
    assert torch.allclose(memory[~padded], x[~padded], atol=1e-12)
    logits = ours(source, previous)
    assert torch.allclose(logits, y @ ours.target.tokens.weight.T, atol=1e-12)


def test_positions_are_sines_and_cosines_from_2_on():
    table = sinusoids(5, 8)
    for place in range(5):
        for i in range(4):
            angle = (place + 2) * 10000 ** (-i / 3)
            assert table[place, i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[place, 4 + i] == pytest.approx(math.cos(angle), abs=1e-5)
    network = model()
    tokens = torch.tensor([[5, 6]])
    expected = 4 * network.source.tokens.weight[[5, 6]] + sinusoids(2, 16).double()
    assert torch.allclose(network.source(tokens)[0], expected, atol=1e-6)


def test_padding_does_not_change_the_logits_of_a_sentence():
    network, (long, short) = model(), sentences(9, 4)
    target_long, target_short = sentences(8, 3, size=32, seed=1)
    together = network(filled([long, short]), filled([target_long, target_short]))
    alone = network(filled([short]), filled([target_short]))
    assert torch.allclose(together[1, :4], alone[0], atol=1e-12)
    wanted = filled([target_long, target_short]).ne(PADDING)
    some = network(filled([long, short]), filled([target_long, target_short]), wanted)
    assert torch.allclose(some, together[wanted], atol=1e-12)


def test_no_place_sees_those_behind_it():
    network, source = model(), filled(sentences(6))
    previous = filled(sentences(7, size=32))
    logits = network(source, previous)
    for place in range(1, 8):
        changed = previous.clone()
        changed[:, place:] = 5
        assert torch.allclose(network(source, changed)[:, :place], logits[:, :place], atol=1e-12)
    assert not torch.allclose(network(source, previous.flip(1)), logits)


@torch.no_grad()
def test_it_begins_as_fairseqs_does():
    torch.manual_seed(0)
    network = Transformer(400, 320, layers=1, width=64, hidden=128, heads=4)
    layer = network.decoder[0]
    for linear in (layer.attention.query, layer.attention.key, layer.cross.value):
        assert 0.95 < linear.weight.abs().max() / math.sqrt(6 / (64 + 64) / 2) <= 1
    assert 0.95 < layer.cross.out.weight.abs().max() / math.sqrt(6 / (64 + 64)) <= 1
    assert 0.95 < layer.feed_forward.first.weight.abs().max() / math.sqrt(6 / (64 + 128)) <= 1
    assert all(not p.any() for name, p in network.named_parameters() if name.endswith("bias"))
    for embedding in (network.source, network.target):
        assert float(embedding.tokens.weight.std()) == pytest.approx(1 / 8, rel=0.03)
        assert not embedding.tokens.weight[PADDING].any()


def test_it_compiles_and_runs_in_bf16():
    network = model().float()
    source, previous = filled(sentences(7, 4)), filled(sentences(5, 6, size=32))
    plain = network(source, previous)
    compiled = torch.compile(network, backend="aot_eager")
    assert torch.allclose(compiled(source, previous), plain, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = network(source, previous)
    assert low.dtype == torch.bfloat16
    assert torch.allclose(low.float(), plain, atol=0.1)
    label_smoothed_loss(low.float(), previous, 0.1).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_sizes_that_do_not_fit_are_named():
    for width, heads in ((10, 4), (9, 3)):
        with pytest.raises(ValueError, match=f"width={width} with heads={heads}"):
            Transformer(24, 32, width=width, heads=heads)
    with pytest.raises(ValueError, match="a sentence of 1025 subwords"):
        model()(torch.full((1, 1025), 5), torch.full((1, 2), 5))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_smoothing_gives_its_share_to_the_other_tokens(smoothing):
    torch.manual_seed(0)
    logits, target = torch.randn(2, 5, 11, dtype=torch.float64), torch.randint(4, 11, (2, 5))
    target[1, 3:] = PADDING
    total, tokens = 0.0, 0
    for row in range(2):
        for place in range(5):
            answer = int(target[row, place])
            if answer == PADDING:
                continue
            scores = logits[row, place].tolist()
            whole = math.log(sum(map(math.exp, scores)))
            for token, score in enumerate(scores):
                share = 1 - smoothing if token == answer else smoothing / 10
                total -= share * (score - whole)
            tokens += 1
    assert float(label_smoothed_loss(logits, target, smoothing)) == pytest.approx(total / tokens, rel=1e-12)


# --- the search


def naive(network: Transformer, sentence: list[int], search: Search) -> list[Hypothesis]:
    """One sentence, no cache, no tensors of hypotheses: lists of words with their log-probability."""
    limit = int(search.ratio * len(sentence) + search.max_len)
    beams, finished = [((), 0.0)], []
    for step in range(limit + 1):
        found = []
        for words, score in beams:
            previous = torch.tensor([[END, *words]])
            logits = network(torch.tensor([sentence]), previous)[0, -1].float()
            for word, probability in enumerate(logits.log_softmax(0).tolist()):
                allowed = word != PADDING and (word == END or step < limit) and (word != END or step > 0)
                if allowed:
                    found.append((score + probability, words, word))
        found.sort(key=lambda one: -one[0])
        for score, words, word in found[: search.beam]:
            if word == END and len(finished) < search.beam:
                finished.append(Hypothesis((*words, END), score / (step + 1) ** search.length_penalty))
        if len(finished) == search.beam:
            break
        beams = [((*words, word), score) for score, words, word in found[: 2 * search.beam] if word != END]
        beams = beams[: search.beam]
    return sorted(finished, key=lambda one: -one.score)


def sharpened(seed: int = 1) -> Transformer:
    """With strong opinions, so that sentences end at different lengths and beams cross."""
    network = model()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.4)
        network.target.tokens.weight[END] *= 1.5
    return network


@pytest.mark.parametrize(
    "search",
    [
        Search(beam=1, max_len=7),
        Search(beam=2, max_len=8, length_penalty=0.0),
        Search(beam=5, max_len=9),
        Search(beam=4, max_len=2, ratio=0.9, length_penalty=0.6),
    ],
)
def test_the_search_finds_what_a_naive_one_finds(search):
    network, source = sharpened(), sentences(3, 9, 1, 6)
    expected = [naive(network, sentence, search) for sentence in source]
    for cached in (True, False):
        found = searched(network, filled(source), search, cached=cached)
        for ours, theirs in zip(found, expected, strict=True):
            assert [one.tokens for one in ours] == [one.tokens for one in theirs]
            assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-5)
    lengths = {len(one.tokens) for hypotheses in expected for one in hypotheses}
    assert len(lengths) > 1
    best = translated(network, source, search)
    assert best == [hypotheses[0].tokens for hypotheses in expected]


def test_sentences_that_are_done_drop_out(monkeypatch):
    network, rows = sharpened(3), []
    decode = Transformer.decode_next

    def counting(self, previous, cache):
        rows.append(len(previous))
        return decode(self, previous, cache)

    monkeypatch.setattr(Transformer, "decode_next", counting)
    source = sentences(3, 9, 1, 6, 2)
    searched(network, filled(source), Search(beam=3, max_len=3, ratio=1.0))
    assert rows[:2] == [5, 15]  # at first all beams of a sentence are the same
    assert rows[-1] == 3  # the longest, alone
    assert all(n % 3 == 0 for n in rows[1:])
    assert rows[1:] == sorted(rows[1:], reverse=True)


def test_the_source_is_looked_at_once_for_all_beams():
    network, source = sharpened(), filled(sentences(4, 2))
    memory, mask = network.encode(source)
    cache = network.start(memory, mask)
    assert [layer.crossed[0].shape for layer in cache.layers] == [(2, 2, 5, 8)] * 2
    tokens = torch.tensor([[END, 7, 9], [END, 8, 5], [END, 6, 6], [END, 9, 4]])  # two beams for each of two sentences
    for place in range(3):
        states = network.decode_next(tokens[:, place : place + 1], cache)
        assert torch.allclose(states, network.decode(tokens, memory, mask)[:, place : place + 1], atol=1e-12)


def test_a_search_that_cannot_be_is_named():
    with pytest.raises(ValueError, match="beam=16: with 32 subwords, give at most 15"):
        searched(model(), filled(sentences(2)), Search(beam=16))
    with pytest.raises(ValueError, match="beam=0"):
        Search(beam=0)
    broken = model()
    with torch.no_grad():
        broken.target.tokens.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        searched(broken, filled(sentences(2)), Search(max_len=2))


# --- BLEU


def test_bleu_of_tokens_and_of_written_text():
    translations = ["a dog &apos;s tail , isn &apos;t it ?", "two men run ."]
    perfect = tokenised_bleu(translations, ["A dog &apos;s tail , isn &apos;t it ?", "Two men run ."])
    assert perfect.score == pytest.approx(100)
    assert "case:lc" in perfect.signature
    assert "tok:none" in perfect.signature
    written = detokenised_bleu(translations, ["A dog's tail, isn't it?", "Two men run."])
    assert written.score == pytest.approx(100)
    assert "case:lc|eff:no|tok:13a" in written.signature
    # 7 of 8 words, 5 of 7 pairs, 4 of 6 triples, 3 of 5 fours, and as long as the reference
    found = tokenised_bleu(["the old cat sat on the red mat"], ["the cat sat on the red mat today"]).score
    assert found == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** 0.25)
