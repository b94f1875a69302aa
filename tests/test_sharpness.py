"""m-sharpness, noise, curvature and landscape against plain float64 forms; the model is the same afterwards."""

from __future__ import annotations

import copy
import math
from statistics import mean

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lookbehind.measures.curvature import curvature
from lookbehind.measures.landscape import filter_normalised, line, plane, towards
from lookbehind.measures.noise import multiplicative, quantised, relative, robustness
from lookbehind.measures.sharpness import RADII, m_sharpness


def net(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    model.train()
    for _ in range(5):
        model(torch.randn(16, 4, dtype=dtype))
    model[0].eval()  # modes of single layers must survive
    return model


def batches(count=3, size=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 4, generator=generator, dtype=dtype),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def snapshot(model):
    grads = [p.grad for p in model.parameters()]
    return copy.deepcopy(model.state_dict()), [m.training for m in model.modules()], grads


def unchanged(model, before):
    state, modes, grads = snapshot(model)
    same = all(torch.equal(state[name], before[0][name]) for name in state)
    return same and modes == before[1] and all(a is b for a, b in zip(grads, before[2], strict=True))


# --- sharpness


@pytest.mark.parametrize("neighbourhood", ["sam", "asam"])
def test_where_the_loss_is_flat_nothing_rises_not_even_in_half_precision(neighbourhood):
    """A gradient of zero has no direction; float16 would round a small guard against division by zero to zero."""
    model = nn.Linear(4, 3).half()
    part = torch.randn(8, 4).half()
    found = m_sharpness(model, lambda m, x: (m(x) * 0).sum(), [part], radii=(0.5,), neighbourhood=neighbourhood)
    assert found.values == (0.0,)


def plain_sharpness(model, parts, radius, adaptive, steps, training):
    """As the formula says, one radius at a time, on copies."""
    rises = []
    for batch in parts:
        here = copy.deepcopy(model).train(training)
        clean = loss(copy.deepcopy(here), batch).item()
        for _ in range(steps):
            probe = copy.deepcopy(here)
            loss(probe, batch).backward()
            named = list(probe.named_parameters())
            scale = [p.detach().abs() if adaptive and "weight" in n else torch.ones_like(p) for n, p in named]
            length = math.sqrt(sum((t * p.grad).square().sum().item() for t, (_, p) in zip(scale, named, strict=True)))
            with torch.no_grad():
                for p, t, (_, q) in zip(here.parameters(), scale, named, strict=True):
                    p += radius / steps * t * t * q.grad / length
        rises.append(loss(copy.deepcopy(here), batch).item() - clean)
    return mean(rises)


@pytest.mark.parametrize("neighbourhood", ["sam", "asam"])
@pytest.mark.parametrize(("steps", "mode"), [(1, "eval"), (1, "train"), (3, "eval"), (2, "train")])
def test_sharpness_is_the_formula_at_every_radius(neighbourhood, steps, mode):
    model, radii = net(), (0.05, 0.5, 2.0)
    model[0].weight.grad = torch.ones(6, 4, dtype=torch.float64)  # somebody's
    before = snapshot(model)
    found = m_sharpness(model, loss, batches(), radii, neighbourhood=neighbourhood, steps=steps, mode=mode)
    assert unchanged(model, before)
    adaptive = neighbourhood == "asam"
    expected = [plain_sharpness(model, batches(), r, adaptive, steps, mode == "train") for r in radii]
    assert found.values == pytest.approx(expected, rel=1e-9)
    clean = mean(loss(copy.deepcopy(model).train(mode == "train"), b).item() for b in batches())
    assert found.loss == pytest.approx(clean, rel=1e-12)
    assert found.weight_norm == pytest.approx(math.sqrt(sum(p.square().sum().item() for p in model.parameters())))
    assert found.relative_radii == pytest.approx([r / found.weight_norm for r in radii])
    assert found.minibatches == 3


def test_one_gradient_per_minibatch_serves_all_radii(monkeypatch):
    calls = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or grad(*a, **k))
    evaluated = []
    m_sharpness(net(), lambda m, b: evaluated.append(1) or loss(m, b), batches(), RADII)
    assert len(RADII) == 11
    assert (len(calls), len(evaluated)) == (3, 3 * 12)


def test_on_a_quadratic_it_is_known():
    """L = |w|^2 / 2: at radius r along the gradient the loss rises by r |w| + r^2 / 2."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0.0, 4.0]]))
    found = m_sharpness(model, lambda m, _: m.weight.square().sum() / 2, [None], (0.5, 2.0))
    assert found.values == pytest.approx([0.5 * 5 + 0.125, 2 * 5 + 2.0], rel=1e-12)


@pytest.mark.parametrize("when", [1, 2, 5])
def test_an_interrupt_leaves_the_model_as_it_was(when):
    model = net()
    before, calls = snapshot(model), []

    def interrupted(model, batch):
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return loss(model, batch)

    with pytest.raises(KeyboardInterrupt):
        m_sharpness(model, interrupted, batches(), (0.1, 1.0), mode="train")
    assert unchanged(model, before)


def broken():
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    return model


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batches": []}, "no minibatches to measure on"),
        ({"radii": (0.5, 0.0)}, "radius=0.0: give a number above 0"),
        ({"radii": (-1.0,)}, "radius=-1.0"),
        ({"radii": (math.nan,)}, "radius=nan"),
        ({"radii": ()}, "give at least one"),
        ({"model": broken()}, "there is a NaN in the weights"),
        ({"model": nn.Tanh()}, "Tanh has no parameters"),
        ({"loss": lambda m, b: m(b[0])}, r"not a scalar but \(8, 3\)"),
        ({"loss": lambda m, b: 1.0}, "not a scalar but float"),
        ({"neighbourhood": "cube"}, "neighbourhood='cube': choose one of"),
        ({"mode": "both"}, "mode='both'"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_bad_input_of_sharpness(arguments, words):
    given = {"model": net(), "loss": loss, "batches": batches(), "radii": (0.5,), **arguments}
    before = snapshot(given["model"])
    with pytest.raises(ValueError, match=words):
        m_sharpness(**given)
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(
        given["model"].state_dict().values(), before[0].values(), strict=True
    ))  # fmt: skip


def test_frozen_parameters_are_not_moved():
    model = net()
    model[0].requires_grad_(False)
    found = m_sharpness(model, loss, batches(), (1.0,))
    assert 0 < found.values[0] < m_sharpness(net(), loss, batches(), (1.0,)).values[0]
    with pytest.raises(ValueError, match="no parameter has requires_grad"):
        m_sharpness(model.requires_grad_(False), loss, batches(), (1.0,))


# --- noise


def test_noise_is_what_it_says():
    w, z = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 3.0]])
    assert multiplicative(w, z, 0.1).tolist() == [[pytest.approx(1.05), pytest.approx(-2.6)]]
    assert relative(w, z, 0.1).tolist() == [[pytest.approx(1.1), pytest.approx(-1.4)]]
    assert quantised(torch.tensor([[0.9, -3.0, 0.4]]), z, 3).tolist() == [[1.0, -3.0, 0.0]]  # steps of 3 / 3
    assert quantised(torch.zeros(2, 2), z, 8).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("kind", ["multiplicative", "relative"])
@pytest.mark.parametrize("weights", ["all", "matrices"])
def test_robustness_is_the_accuracy_of_noisy_copies(kind, weights):
    model = net(torch.float32)
    test, train = batches(4, 50, torch.float32), batches(2, 20, torch.float32)
    before = snapshot(model)
    found = robustness(
        model, lambda: test, (0.0, 0.7), kind=kind, draws=3, seed=5, weights=weights, statistics=lambda: train
    )
    assert unchanged(model, before)
    for draw in range(3):
        generator = torch.Generator().manual_seed(5 * 1_000_003 + draw)
        noisy = copy.deepcopy(model)
        with torch.no_grad():
            for p in noisy.parameters():
                if weights == "all" or p.dim() > 1:
                    z = torch.randn(p.shape, generator=generator)
                    p.copy_(p * (1 + 0.7 * z) if kind == "multiplicative" else p + 0.7 * p.abs().max() * z)
        torch.optim.swa_utils.update_bn([x for x, _ in train], noisy)
        noisy.eval()
        right = sum(int((noisy(x).argmax(1) == y).sum()) for x, y in test)
        assert found.values[1][draw] == pytest.approx(100 * right / 200)
    assert len(set(found.values[0])) == 1  # no noise: nothing differs
    assert found.mean[1] == pytest.approx(mean(found.values[1]))
    assert found.std[0] == 0


def test_draws_do_not_depend_on_the_batch_size():
    model, whole = net(torch.float32), batches(1, 60, torch.float32)
    parts = list(zip(whole[0][0].split(7), whole[0][1].split(7), strict=True))
    assert robustness(model, lambda: whole, (0.5,), draws=4) == robustness(model, lambda: parts, (0.5,), draws=4)


def test_quantisation_needs_no_draws():
    model = net(torch.float32)
    found = robustness(model, lambda: batches(4, 50, torch.float32), (2, 16), kind="quantised", draws=10)
    assert [len(values) for values in found.values] == [1, 1]
    assert found.std == (None, None)
    exact = robustness(model, lambda: batches(4, 50, torch.float32), (0.0,), draws=1).mean[0]
    assert found.mean[1] == pytest.approx(exact, abs=1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"levels": (-0.1,)}, "level=-0.1"),
        ({"levels": ()}, "give at least one"),
        ({"kind": "salt"}, "kind='salt'"),
        ({"draws": 0}, "draws=0"),
        ({"weights": "some"}, "weights='some'"),
        ({"levels": (1,), "kind": "quantised"}, "bits=1"),
        ({"test": list}, "no minibatches to measure on"),
    ],
)
def test_bad_input_of_noise(arguments, words):
    given = {"model": net(torch.float32), "test": lambda: batches(1, 8, torch.float32), **arguments}
    with pytest.raises(ValueError, match=words):
        robustness(**given)


# --- curvature


def dense_hessian(model, parts):
    """Of the mean loss, by autograd's own."""
    shapes = [(name, p.shape) for name, p in model.named_parameters()]
    model = copy.deepcopy(model).eval()

    def of(flat):
        pieces = flat.split([s.numel() for _, s in shapes])
        values = {name: piece.view(shape) for (name, shape), piece in zip(shapes, pieces, strict=True)}
        outputs = [torch.func.functional_call(model, values, (x,)) for x, _ in parts]
        return sum(F.cross_entropy(o, y) for o, (_, y) in zip(outputs, parts, strict=True)) / len(parts)

    return torch.autograd.functional.hessian(of, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_eigenvalues_and_trace_are_those_of_the_dense_hessian():
    model = net()
    before = snapshot(model)
    size = sum(p.numel() for p in model.parameters())
    found = curvature(model, loss, batches, eigenvalues=3, iterations=size, probes=400)
    assert unchanged(model, before)
    hessian = dense_hessian(model, batches())
    assert found.eigenvalues == pytest.approx(torch.linalg.eigvalsh(hessian).flip(0)[:3].tolist(), rel=1e-8)
    assert found.trace_error > 0
    assert found.trace == pytest.approx(hessian.trace().item(), abs=4 * found.trace_error)


def test_a_quadratic_has_its_own_spectrum():
    """L = sum a_i w_i^2 / 2: eigenvalues a_i; random signs give the trace exactly."""
    model = nn.Linear(40, 1, bias=False).double()
    spectrum = torch.arange(1.0, 41.0).double()
    found = curvature(
        model,
        lambda m, _: (spectrum * m.weight.square()).sum() / 2,
        lambda: [None],
        eigenvalues=5,
        iterations=40,
        probes=2,
    )
    assert found.eigenvalues == pytest.approx([40, 39, 38, 37, 36], rel=1e-9)
    assert found.trace == pytest.approx(820, rel=1e-12)
    assert found.trace_error == pytest.approx(0, abs=1e-9)


def test_a_loss_without_curvature():
    model = nn.Linear(4, 1).double()
    found = curvature(model, lambda m, b: m(b[0]).mean(), batches, iterations=5, probes=2)
    assert found.eigenvalues == (0.0,)
    assert found.trace == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batches": list}, "no minibatches to measure on"),
        ({"eigenvalues": 0}, "eigenvalues=0"),
        ({"eigenvalues": 9, "iterations": 3}, "iterations=3"),
        ({"eigenvalues": 1000, "iterations": 1000}, "eigenvalues=1000: there are only"),
        ({"model": broken()}, "there is a NaN in the weights, or an infinite one, in 0.weight"),
    ],
)
def test_bad_input_of_curvature(arguments, words):
    given = {"model": net(), "loss": loss, "batches": batches, **arguments}
    with pytest.raises(ValueError, match=words):
        curvature(**given)


# --- landscape


def test_directions_have_the_lengths_of_the_filters():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(3, 2))
    direction = filter_normalised(model, torch.Generator().manual_seed(0))
    for d, p in zip(direction, model.parameters(), strict=True):
        if p.dim() > 1:
            torch.testing.assert_close(d.flatten(1).norm(dim=1), p.detach().flatten(1).norm(dim=1))
            assert not torch.equal(d, p)
        else:
            assert not d.any()


def test_slices_are_the_loss_of_moved_copies():
    model = net()
    before = snapshot(model)
    generator = torch.Generator().manual_seed(3)
    one, two = filter_normalised(model, generator), filter_normalised(model, generator)

    def moved(a, b):
        copied = copy.deepcopy(model).eval()
        with torch.no_grad():
            for p, d, e in zip(copied.parameters(), one, two, strict=True):
                p += a * d + b * e
        return mean(loss(copied, part).item() for part in batches())

    found = plane(model, loss, batches, (one, two), [-0.5, 0.0, 1.0], [0.0, 2.0])
    assert found == [[pytest.approx(moved(a, b), rel=1e-10) for b in (0.0, 2.0)] for a in (-0.5, 0.0, 1.0)]
    assert line(model, loss, batches, one, [1.0]) == [pytest.approx(moved(1.0, 0.0), rel=1e-10)]
    assert unchanged(model, before)


def test_the_way_to_another_solution_ends_there():
    model, other = net(), net()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    found = line(model, loss, batches, towards(model, other.state_dict()), [0.0, 1.0])
    other[1].load_state_dict({**other[1].state_dict(), **dict(model[1].named_buffers())})
    expected = [mean(loss(m.eval(), b).item() for b in batches()) for m in (copy.deepcopy(model), other)]
    assert found == pytest.approx(expected, rel=1e-10)
    with pytest.raises(ValueError, match=r"no 0.weight of shape \(6, 4\): is it another network"):
        towards(model, {})


def test_a_loss_that_is_not_a_number_is_infinitely_high():
    model = nn.Linear(1, 1, bias=False)
    found = line(model, lambda m, _: (m.weight * math.inf).sum() * 0, lambda: [None], [torch.ones(1, 1)], [0.0])
    assert found == [math.inf]


def test_repeated_eigenvalues_are_all_found():
    spectrum = torch.tensor([5.0, 5.0, 5.0, 3.0, 3.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    model = nn.Linear(10, 1, bias=False).double()

    def quadratic(model, batch):
        return 0.5 * (spectrum * model.weight[0] ** 2).sum()

    found = curvature(model, quadratic, lambda: [None], eigenvalues=5, probes=1)
    assert found.eigenvalues == pytest.approx((5, 5, 5, 3, 3))
    same = curvature(model, lambda m, b: 0.5 * m.weight.square().sum(), lambda: [None], eigenvalues=3, probes=1)
    assert same.eigenvalues == pytest.approx((1, 1, 1))


def test_dropout_has_the_same_masks_at_all_points():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)).double()
    some = [(torch.randn(20, 6, dtype=torch.float64), torch.randint(3, (20,))) for _ in range(2)]
    rises = [m_sharpness(model, loss, some, (1e-7,), mode="train").values[0] for _ in range(3)]
    assert rises[0] == rises[1] == rises[2]
    assert 0 < rises[0] < 1e-5  # with other masks it would be some hundredths
    tops = [curvature(model, loss, lambda: some, probes=2, mode="train").eigenvalues for _ in range(2)]
    assert tops[0] == tops[1]


def test_a_buffer_that_is_replaced_comes_back():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3).double()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, inputs):
            self.seen = self.seen + 1
            return self.linear(inputs)

    model = Counting()
    before = model.seen
    m_sharpness(model, loss, batches(), (0.1,))
    assert model.seen is before
    assert model.seen == 0


def test_answers_that_are_not_numbers_are_wrong():
    model = nn.Linear(6, 3).double()
    test = [(torch.full((10, 6), 1e300, dtype=torch.float64) * torch.tensor([1e10]), torch.zeros(10, dtype=torch.long))]
    test = [(x * torch.tensor([1.0, -1.0] * 3), y) for x, y in test]  # infinite minus infinite
    assert robustness(model, lambda: test, (0.0,), draws=1).mean == (0.0,)


def test_statistics_need_minibatches():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    used_up = iter(batches())
    with pytest.raises(ValueError, match="no minibatches to measure on"):
        robustness(model, batches, (0.1,), draws=2, statistics=lambda: used_up)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m_sharpness(net(), loss, batches(), 0.05), r"radii=0.05: give several in a tuple"),
        (lambda: robustness(net(), batches, 0.1), r"levels=0.1: give several"),
        (lambda: robustness(net(), batches(), (0.1,)), "write lambda: loader"),
        (lambda: curvature(net(), loss, batches()), "write lambda: loader"),
        (lambda: m_sharpness(net(), lambda m, b: loss(m, b).detach(), batches(), (0.1,)), "has no gradient"),
        (lambda: robustness(net(), batches, (2.7,), kind="quantised"), "bits=2.7: give an integer from 2 to 24"),
        (lambda: robustness(broken(), batches, (0.1,)), "there is a NaN in the weights"),
        (lambda: m_sharpness(net(torch.float32), loss, batches(dtype=torch.float32), (1e38,)), "give smaller radii"),
    ],
)
def test_more_bad_input(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
