"""The parts of lifelong learning: memory, metrics, heads, and each learner's update against a plain form of it."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lookbehind.lifelong import metrics
from lookbehind.lifelong.heads import OneHead, own_head
from lookbehind.lifelong.learners import MetaLearner, ReplayLearner, _parts
from lookbehind.lifelong.memory import Reservoir
from lookbehind.lifelong.meta import Evaluation, Meta, meta_gradient, meta_loss
from lookbehind.lifelong.run import LifelongSettings
from lookbehind.training.methods import base_optimizer

N = 3  # classes per task
TASKS = 4


# --- memory


def kept(law: str, capacity: int, offered: int, rounds: int) -> list[float]:
    """How often each of the offered examples is there in the end."""
    counts = torch.zeros(offered)
    for seed in range(rounds):
        memory, draws = Reservoir(capacity, law), random.Random(seed)
        for number in range(0, offered, 2):
            memory.add(torch.tensor([[float(number)], [number + 1.0]]), torch.tensor([number, number + 1]), draws)
        counts[memory.sample(capacity, AllInTurn())[1]] += 1
    return (counts / rounds).tolist()


class AllInTurn(random.Random):
    """Draws 0, 1, 2, ..."""

    def __init__(self) -> None:
        super().__init__(0)
        self.last = -1

    def randrange(self, *_: int) -> int:
        self.last += 1
        return self.last


def test_the_reservoir_is_uniform():
    shares = kept("uniform", 4, 20, 8000)
    assert sum(shares) == pytest.approx(4)
    for share in shares:  # 4 / 20, five standard deviations of a share over 8,000 rounds
        assert share == pytest.approx(0.2, abs=5 * (0.2 * 0.8 / 8000) ** 0.5)


def test_la_mamls_reservoir_favours_the_first():
    """The n-th example comes in with 4 / (n + 1) and stays with n / (n + 1) each time after it: 5/21 of 4, and 4/21."""
    shares = kept("la-maml", 4, 20, 8000)
    assert sum(shares) == pytest.approx(4)
    for share in shares[:4]:
        assert share == pytest.approx(5 / 21, abs=0.022)
    for share in shares[4:]:
        assert share == pytest.approx(4 / 21, abs=0.022)
    assert sum(shares[:4]) / 4 > 1.15 * sum(shares[4:]) / 16


def test_the_memory_draws_from_all_that_it_has_with_repeats():
    memory = Reservoir(5)
    memory.add(torch.arange(3.0).view(3, 1), torch.arange(3), random.Random(0))
    drawn = torch.cat([memory.sample(3, random.Random(seed))[1] for seed in range(300)])
    assert torch.bincount(drawn).min() > 250
    assert any(len(memory.sample(3, random.Random(seed))[1].unique()) < 3 for seed in range(20))
    inputs, labels = memory.sample(10, random.Random(1))
    assert len(labels) == 3  # up to as many as there are
    assert torch.equal(inputs[:, 0], labels.float())  # inputs stay with their labels


def test_an_empty_memory_and_one_of_no_room_give_nothing():
    assert Reservoir(5).sample(3, random.Random(0)) is None
    none = Reservoir(0)
    none.add(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), random.Random(0))
    assert none.sample(3, random.Random(0)) is None
    assert len(none) == 0


def test_the_memory_keeps_the_layout_of_the_batches():
    memory = Reservoir(8)
    images = torch.randn(8, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    memory.add(images, torch.arange(8), random.Random(0))
    drawn, _ = memory.sample(8, random.Random(0))
    assert drawn.is_contiguous(memory_format=torch.channels_last)


def test_a_memory_that_is_saved_goes_on_alike():
    one, two = Reservoir(4), Reservoir(4)
    one.add(torch.randn(10, 2), torch.arange(10), random.Random(0))
    two.load(copy.deepcopy(one.state()))
    for memory in (one, two):
        memory.add(torch.arange(20.0).view(10, 2), torch.arange(10), random.Random(1))
    assert torch.equal(one.state()["inputs"], two.state()["inputs"])
    assert one.seen == two.seen == 20


# --- metrics

MATRIX = [[90.0, 5.0, 7.0], [80.0, 70.0, 6.0], [85.0, 40.0, 60.0]]


def test_metrics_of_a_matrix_worked_by_hand():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((85 + 40 + 60) / 3)
    assert metrics.forgetting_per_task(MATRIX) == [90 - 85, 70 - 40]
    assert metrics.forgetting(MATRIX) == pytest.approx(17.5)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-5 - 30 + 0) / 3)
    assert metrics.learning_accuracy(MATRIX) == pytest.approx((90 + 70 + 60) / 3)
    assert metrics.averages_so_far(MATRIX) == [90, 75, pytest.approx(185 / 3)]


def test_forgetting_is_from_the_best_time_and_transfer_from_the_first():
    matrix = [[50.0], [70.0, 60.0], [65.0, 62.0, 80.0]]
    assert metrics.forgetting_per_task(matrix) == [5.0, -2.0]  # task 1 was best after task 2
    assert metrics.forgetting(matrix) == pytest.approx(1.5)
    assert metrics.backward_transfer(matrix) == pytest.approx((15 + 2 + 0) / 3)


def test_metrics_of_tasks_that_were_seen_equal_those_of_all():
    seen = [row[: t + 1] for t, row in enumerate(MATRIX)]
    for name in ("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy"):
        assert getattr(metrics, name)(seen) == getattr(metrics, name)(MATRIX), name


def test_one_task_has_nothing_to_forget():
    assert metrics.forgetting([[80.0]]) == 0
    with pytest.raises(ValueError, match="one row per task"):
        metrics.average_accuracy([[80.0], [70.0]])


# --- heads


def test_an_example_is_judged_among_the_classes_of_its_own_task():
    logits = torch.randn(6, N * TASKS)
    labels = torch.tensor([0, 2, 4, 5, 7, 11])
    own, among = own_head(logits, labels, N)
    for i, label in enumerate(labels.tolist()):
        first = label // N * N
        assert torch.equal(own[i], logits[i, first : first + N])
        assert int(among[i]) == label - first
    masked = torch.full_like(logits, -1e11)  # as La-MAML's code does it
    index = (labels // N * N)[:, None] + torch.arange(N)
    masked.scatter_(1, index, own)
    assert torch.equal(masked.argmax(1), own.argmax(1) + labels // N * N)


def test_one_head_shows_the_tasks_classes():
    network = nn.Linear(4, N * TASKS)
    inputs = torch.randn(2, 4)
    assert torch.equal(OneHead(network, 6, N)(inputs), network(inputs)[:, 6:9])


# --- learners


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, N * TASKS)).double()


def minibatches(count: int = 5, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(size, 5, generator=generator, dtype=torch.float64),
            torch.randint(N, (size,), generator=generator) + N * (number // 2),
        )
        for number in range(count)
    ]


def plain_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Example by example."""
    losses = []
    for x, label in zip(inputs, labels.tolist(), strict=True):
        first = label // N * N
        losses.append(cross_entropy(model(x)[None, first : first + N], torch.tensor([label - first])))
    return torch.stack(losses).mean()


def at(model: nn.Module, weights: list[Tensor], inputs: Tensor, labels: Tensor, graph: bool = False) -> list[Tensor]:
    """The gradient of the plain loss at some weights, through which one may differentiate."""
    names = [name for name, _ in model.named_parameters()]
    by_name = dict(zip(names, weights, strict=True))
    return list(torch.autograd.grad(at_loss(model, by_name, inputs, labels), weights, create_graph=graph))


def at_loss(model: nn.Module, by_name: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    return plain_loss(lambda x: torch.func.functional_call(model, by_name, (x,)), inputs, labels)


def size(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients]).norm()


def leaves(weights: list[Tensor]) -> list[Tensor]:
    return [w.detach().clone().requires_grad_() for w in weights]


def clipped(gradients: list[Tensor], limit: float) -> list[Tensor]:
    return [g * min(1.0, limit / (float(size(gradients)) + 1e-6)) for g in gradients]


RUN = LifelongSettings(lr=0.3, rho=0.2, asam_rho=0.4, k=3, alpha=0.4, clip=0.5, replay=4, memory=9)


def naive_replay(method: str, clip_ascent: bool) -> list[Tensor]:
    """The weights after all minibatches, from the pseudo-code: 2k gradients, lists of tensors, SGD by hand."""
    model = network()
    weights = [p.detach().clone() for p in model.parameters()]
    memory, draws = Reservoir(9), random.Random(0)
    family = "asam" if "asam" in method else "sam"
    k, rho = (1 if method in ("sam", "asam") else 3), {"sam": 0.2, "asam": 0.4}[family]

    for inputs, labels in minibatches():
        old = memory.sample(4, draws)
        x, y = (inputs, labels) if old is None else (torch.cat([inputs, old[0]]), torch.cat([labels, old[1]]))

        def gradient(point: list[Tensor], x: Tensor = x, y: Tensor = y) -> list[Tensor]:
            found = at(model, leaves(point), x, y)
            return clipped(found, 0.5) if clip_ascent else found

        def climbed(point: list[Tensor]) -> list[Tensor]:
            g = gradient(point)
            names = [name for name, _ in model.named_parameters()]
            scales = [
                w.abs() + 0.01 if family == "asam" and "weight" in name else torch.ones_like(w)
                for name, w in zip(names, point, strict=True)
            ]
            norm = size([t * d for t, d in zip(scales, g, strict=True)])
            return [w + rho * t**2 * d / norm for w, t, d in zip(point, scales, g, strict=True)]

        def stepped(weights: list[Tensor], g: list[Tensor]) -> list[Tensor]:
            g = g if clip_ascent else clipped(g, 0.5)
            return [w - 0.3 * d for w, d in zip(weights, g, strict=True)]

        if method == "sgd":
            weights = stepped(weights, gradient(weights))
        else:
            fast, point, seen = weights, weights, []
            for _ in range(k):
                point = climbed(point)
                seen.append(gradient(point))
                fast = stepped(fast, seen[-1])
            if method.startswith("lookbehind"):
                weights = [w + 0.4 * (f - w) for w, f in zip(weights, fast, strict=True)]
            elif method.endswith("mean"):
                weights = stepped(weights, [torch.stack(parts).mean(0) for parts in zip(*seen, strict=True)])
            else:
                weights = stepped(weights, seen[-1])
        memory.add(inputs, labels, draws)
    return weights


@pytest.mark.parametrize("clip_ascent", [False, True])
@pytest.mark.parametrize(
    "method",
    ["sgd", "sam", "asam", "multistep-sam", "multistep-sam-mean", "lookbehind-sam", "lookbehind-asam"],
)
def test_replay_equals_its_pseudo_code(method, clip_ascent):
    run = RUN.run(f"er+{method}:clip_ascent={str(clip_ascent).lower()}", 0)
    model, memory, draws = network(), Reservoir(9), random.Random(0)
    base = base_optimizer("sgd", model, lr=0.3, momentum=0.0, weight_decay=0.0)
    optimizer = run.optimizing.optimizer(base, model, run)
    learner = ReplayLearner(model, optimizer, memory, classes_per_task=N, replay=4)
    for inputs, labels in minibatches():
        learner.learn(inputs, labels, draws, first_epoch=False)
    assert learner.evaluations == run.gradients_per_minibatch
    for found, expected in zip(model.parameters(), naive_replay(method, clip_ascent), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_without_a_memory_nothing_is_replayed():
    model, plain = network(), network()
    for one, capacity in ((model, 0), (plain, 9)):
        base = torch.optim.SGD(one.parameters(), lr=0.3)
        learner = ReplayLearner(one, base, Reservoir(capacity), classes_per_task=N, replay=0 if capacity else 4)
        for inputs, labels in minibatches():
            learner.learn(inputs, labels, random.Random(0), first_epoch=True)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


# --- C-MAML


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
