"""C-MAML: the outer gradient against its pseudo-code and finite differences, whole courses, limits, counts."""

from __future__ import annotations

import random

import pytest
import torch
from lifelong_problem import TASKS, N, at, at_loss, clipped, leaves, minibatches, network, size
from torch import Tensor, nn

from lookbehind.lifelong.learners import MetaLearner, _parts
from lookbehind.lifelong.memory import Reservoir
from lookbehind.lifelong.meta import Evaluation, Meta, meta_gradient, meta_loss


def meta_learner(
    meta: Meta, model: nn.Module | None = None, clip: float | None = None, capacity: int = 9
) -> MetaLearner:
    model = model or network()
    base = torch.optim.SGD(model.parameters(), lr=0.3)
    return MetaLearner(model, base, Reservoir(capacity), classes_per_task=N, meta=meta, replay=4, clip=clip)


def naive_meta_loss(model: nn.Module, start: list[Tensor], chunks: list, everything: tuple, meta: Meta) -> Tensor:
    """Algorithms 3 and 4 as docs/lifelong.md reads them, on lists of tensors with torch.autograd alone."""
    names = [name for name, _ in model.named_parameters()]
    fast, offset, losses = list(start), [torch.zeros_like(w) for w in start], []
    for x, y in chunks:
        origin = fast if meta.rho is None or meta.climb == "fast" else start
        point = [w + o for w, o in zip(origin, offset, strict=True)]
        if meta.rho is not None:
            g = at(model, point, x, y, graph=True)
            if not meta.second_order:
                g = [d.detach() for d in g]
            offset = [o + meta.rho * d / (size(g) + 1e-16) for o, d in zip(offset, g, strict=True)]
            point = [w + o for w, o in zip(origin, offset, strict=True)]
        g = at(model, point, x, y, graph=True)
        if not meta.second_order:
            g = [d.detach() for d in g]
        fast = [f - meta.inner_lr * d.clamp(-meta.inner_clip, meta.inner_clip) for f, d in zip(fast, g, strict=True)]
        followed = [w + meta.alpha * (f - w) for w, f in zip(start, fast, strict=True)]
        losses.append(at_loss(model, dict(zip(names, followed, strict=True)), *everything))
    return torch.stack(losses).mean() if meta.loss == "mean" else losses[-1]


def naive_gradient(model: nn.Module, chunks: list, everything: tuple, meta: Meta) -> list[Tensor]:
    start = leaves(list(model.parameters()))
    found = list(torch.autograd.grad(naive_meta_loss(model, start, chunks, everything, meta), start))
    if meta.rho is None:
        return found
    climbed = leaves([w + meta.rho * d / size(found) for w, d in zip(start, found, strict=True)])
    if meta.outer == "printed":
        return at(model, climbed, *everything)
    return list(torch.autograd.grad(naive_meta_loss(model, climbed, chunks, everything, meta), climbed))


METAS = {
    "lookahead": Meta(chunks=3, inner_lr=0.5),
    "lookahead, mean": Meta(chunks=3, inner_lr=0.5, loss="mean"),
    "lookahead, first order": Meta(chunks=3, inner_lr=0.5, second_order=False),
    "lookahead, clamped": Meta(chunks=3, inner_lr=0.5, inner_clip=0.02),
    "lookbehind": Meta(chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7),
    "lookbehind, meta": Meta(chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7, outer="meta"),
    "lookbehind, meta, mean": Meta(chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7, outer="meta", loss="mean"),
    "lookbehind, meta, first order": Meta(chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7, second_order=False, outer="meta"),
    "lookbehind, meta, mean, first order": Meta(
        chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7, second_order=False, outer="meta", loss="mean"
    ),
    "lookbehind, meta, fast": Meta(chunks=3, inner_lr=0.5, rho=0.3, outer="meta", climb="fast"),
    "lookbehind, meta, fast, mean, clamped": Meta(
        chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7, outer="meta", climb="fast", loss="mean", inner_clip=0.03
    ),
}


def examples() -> tuple[list, tuple]:
    (x, y), (old_x, old_y) = minibatches()[2], minibatches()[0]
    chunks = list(zip(x.tensor_split(3), y.tensor_split(3), strict=True))
    return chunks, (torch.cat([old_x, x]), torch.cat([old_y, y]))


@pytest.mark.parametrize("name", METAS)
def test_the_outer_gradient_equals_its_pseudo_code(name):
    meta = METAS[name]
    chunks, everything = examples()
    learner = meta_learner(meta)
    found = learner.gradient(chunks, everything)
    expected = naive_gradient(network(), chunks, everything, meta)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in METAS if "first order" not in name])
def test_the_meta_gradient_equals_finite_differences(name):
    meta = METAS[name]
    chunks, everything = examples()
    learner = meta_learner(meta)
    weights = [p.detach().clone() for p in learner.network.parameters()]
    gradient, value, _ = meta_gradient(meta, learner._answers, weights, chunks, everything)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
        slope = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))

        def loss(t: float, along: list = direction) -> float:
            moved = [w + t * d for w, d in zip(weights, along, strict=True)]
            return float(meta_loss(meta, learner._answers, moved, chunks, everything))

        assert loss(0.0) == float(value)

        h = 1e-4
        measured = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
        assert measured == pytest.approx(slope, rel=1e-6)


def test_weights_that_are_not_used_or_enter_linearly_have_no_second_order():
    """And weights may lie in memory in any order."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.used = nn.Parameter(torch.randn(5, N * TASKS, dtype=torch.float64).t())  # transposed in memory
            self.unused = nn.Parameter(torch.randn(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.used.t()

    chunks, everything = examples()
    meta = Meta(chunks=3, inner_lr=0.5, rho=0.3, alpha=0.7, outer="meta")
    used, unused = meta_learner(meta, Odd()).gradient(chunks, everything)
    plain = nn.Linear(5, N * TASKS, bias=False).double()
    plain.weight.data = Odd().used.data.contiguous()
    (expected,) = naive_gradient(plain, chunks, everything, meta)
    assert torch.allclose(used, expected, rtol=0, atol=1e-12)
    assert used.stride() == Odd().used.stride()
    assert torch.equal(unused, torch.zeros_like(unused))
    weights = [torch.randn(4, dtype=torch.float64)]
    flat = Evaluation(
        lambda w, e: (w[0] * torch.zeros(2, 4), e[1]), weights, (weights[0], torch.zeros(2).long()), twice=True
    )
    assert torch.equal(flat.hessian_times(weights)[0], torch.zeros(4, dtype=torch.float64))


def test_second_order_and_first_order_differ():
    chunks, everything = examples()
    second, first = (
        meta_learner(METAS[n]).gradient(chunks, everything) for n in ("lookahead", "lookahead, first order")
    )
    assert any(float((a - b).abs().max()) > 1e-3 for a, b in zip(second, first, strict=True))


@pytest.mark.parametrize(("chunks", "climb"), [(1, "slow"), (3, "fast")])
def test_without_a_radius_and_with_alpha_1_lookbehind_is_lookahead(chunks, climb):
    _, everything = examples()
    parts = [(x, y) for x, y in zip(*(t.tensor_split(chunks) for t in minibatches()[2]), strict=True)]
    behind = meta_learner(Meta(chunks=chunks, rho=0.0, alpha=1.0, outer="meta", climb=climb, inner_lr=0.5))
    ahead = meta_learner(Meta(chunks=chunks, inner_lr=0.5))
    one, two = behind.gradient(parts, everything), ahead.gradient(parts, everything)
    for a, b in zip(one, two, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-14)


def test_without_a_radius_a_chain_that_begins_at_the_slow_weights_takes_all_its_gradients_there():
    """So it is not Lookahead, whose second inner step begins where the first ended."""
    chunks, everything = examples()
    start = leaves(list(network().parameters()))
    behind = meta_learner(Meta(chunks=3, rho=0.0, outer="meta", inner_lr=0.5, second_order=False))
    ahead = meta_learner(Meta(chunks=3, inner_lr=0.5, second_order=False))
    gradients = [at(network(), start, x, y) for x, y in chunks]
    adapted = leaves([w.detach() - 0.5 * sum(g) for w, *g in zip(start, *gradients, strict=True)])
    expected = at(network(), adapted, *everything)
    found = behind.gradient(chunks, everything)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(found, expected, strict=True))
    other = ahead.gradient(chunks, everything)
    assert any(float((a - b).abs().max()) > 1e-4 for a, b in zip(found, other, strict=True))


def test_the_meta_learner_of_the_paper():
    assert (Meta().chunks, Meta().inner_clip, Meta().loss, Meta().second_order) == (5, 2.0, "last", True)
    assert (Meta().rho, Meta().outer, Meta().climb, Meta().alpha) == (None, "printed", "slow", 1.0)


def test_without_a_radius_the_printed_outer_step_is_plain_replay():
    chunks, everything = examples()
    learner = meta_learner(Meta(chunks=3, rho=0.0, outer="printed"))
    plain = at(network(), leaves(list(network().parameters())), *everything)
    for ours, theirs in zip(learner.gradient(chunks, everything), plain, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["lookahead", "lookahead, mean", "lookbehind", "lookbehind, meta"])
def test_a_whole_course_of_c_maml_equals_its_pseudo_code(name):
    """Shuffling, replay before remembering, remembering in the first epoch only, clipping, the outer step."""
    meta, model = METAS[name], network()
    learner, draws = meta_learner(meta, model, clip=0.5), random.Random(0)
    plain, memory, others = network(), Reservoir(9), random.Random(0)
    for first_epoch in (True, False):
        for inputs, labels in minibatches():
            learner.learn(inputs, labels, draws, first_epoch=first_epoch)
            order = others.sample(range(len(labels)), len(labels))
            x, y = inputs[order], labels[order]
            old = memory.sample(4, others)
            everything = (x, y) if old is None else (torch.cat([old[0], x]), torch.cat([old[1], y]))
            if first_epoch:
                memory.add(x, y, others)
            chunks = [(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
            gradient = clipped(naive_gradient(plain, chunks, everything, meta), 0.5)
            with torch.no_grad():
                for p, g in zip(plain.parameters(), gradient, strict=True):
                    p -= 0.3 * g
    assert learner.memory.seen == 30
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-11)


def test_a_gradient_of_zero_does_not_spoil_the_second_order():
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    chunks = [(torch.zeros(N, 5, dtype=torch.float64), torch.arange(N))] * 2  # each class once: no direction is better
    learner = meta_learner(Meta(chunks=2, rho=0.1, outer="meta"), model)
    for value in learner.gradient(chunks, chunks[0]):
        assert torch.equal(value, torch.zeros_like(value))


def test_a_batch_smaller_than_the_number_of_inner_steps_has_one_example_each():
    learner = meta_learner(Meta(chunks=5))
    x, y = minibatches()[0]
    learner.learn(x[:2], y[:2], random.Random(0), first_epoch=True)
    assert len(learner.memory) == 2
    assert [len(part) for part in _parts(x[:2], 5)] == [1, 1]
    assert learner.evaluations == 3  # two inner steps and the outer one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunks": 0}, "chunks=0"),
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"rho": -1.0}, "rho=-1"),
        ({"inner_clip": 0.0}, "inner_clip=0"),
        ({"loss": "first"}, "loss='first'"),
        ({"outer": "inner"}, "outer='inner'"),
        ({"climb": "up"}, "climb='up'"),
    ],
)
def test_wrong_meta_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Meta(**changes)


@pytest.mark.parametrize("meta", METAS.values(), ids=METAS.keys())
def test_gradients_are_counted(meta, monkeypatch):
    """As many as the naive form takes: every inner gradient, and one for each loss of the outer step."""
    learner = meta_learner(meta)
    outer = []
    answers = learner._answers
    monkeypatch.setattr(learner, "_answers", lambda w, e: (outer.append(len(e[1])), answers(w, e))[1])
    chunks, everything = examples()
    learner.gradient(chunks, everything)
    assert sum(count in (2, 12) for count in outer) == len(outer) == meta.gradients
