"""Odd parameters: frozen, unused, scalar, tied, of mixed types, maximised, complex, sparse, in other layouts."""

from __future__ import annotations

import pytest
import torch
from problems import METHODS, batch, closure_for, distance, net, same, sgd, values
from torch import nn
from torch.nn import functional as F

import lookbehind as lb
from lookbehind.optim.ascent import asam
from lookbehind.optim.weights import dot


@pytest.mark.parametrize("method", METHODS)
def test_frozen_and_unused_parameters_do_not_move(method):
    model = net()
    model.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    model[0].weight.requires_grad_(False)
    optimizer = METHODS[method](torch.optim.AdamW(model.named_parameters(), lr=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    used = model[:5]
    for step in range(4):
        optimizer.step(closure_for(used, batch(step)))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"1.weight", "1.bias", "4.weight", "4.bias"}
    model[0].weight.requires_grad_(True)  # thawed
    optimizer.step(closure_for(used, batch()))
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_a_parameter_whose_gradient_comes_and_goes():
    """Used at the clean point only, or at perturbed points only: never an error, never half a move."""
    for used_at in ([0], [1], [0, 2], [2]):
        model = net(batchnorm=False)
        gate = nn.Parameter(torch.ones(3, dtype=torch.float64))
        for make in (
            lambda b: lb.LookbehindSAM(b, k=3, alpha=0.5),
            lambda b: lb.MultistepSAM(b, rho=0.1, k=3, average=True),
        ):
            optimizer = make(torch.optim.SGD([*model.parameters(), gate], lr=0.1))
            calls = iter(range(9))

            def closure(model=model, gate=gate, calls=calls, used_at=used_at):
                model.zero_grad()
                gate.grad = None
                logits = model(batch()[0])
                loss = F.cross_entropy(logits * gate if next(calls) in used_at else logits, batch()[1])
                loss.backward()
                return loss

            before = gate.detach().clone()
            optimizer.step(closure)
            assert torch.equal(gate, before) == (used_at == [0])
            assert torch.isfinite(gate).all()


def test_scalar_and_tied_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(5, 4).double()
            self.out = nn.Linear(4, 5, bias=False).double()
            self.out.weight = self.embed.weight
            self.temperature = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def forward(self, tokens):
            return self.out(self.embed(tokens)) * self.temperature

    for method in METHODS:
        model = Tied()
        optimizer = METHODS[method](sgd(model))
        tokens = torch.arange(5)
        losses = []
        for _ in range(12):
            losses.append(optimizer.step(closure_for(model, (tokens, tokens))).item())
        assert model.out.weight is model.embed.weight
        assert losses[-1] < losses[0]
        assert model.temperature.item() != 1.0


def test_two_parameters_in_one_storage_are_written_in_place():
    flat = torch.arange(6, dtype=torch.float64)
    first, second = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    optimizer = lb.LookbehindSAM(torch.optim.SGD([first, second], lr=0.1), rho=0.5, k=2)
    seen = []

    def closure():
        optimizer.zero_grad()
        seen.append(flat.clone())
        loss = first.square().sum() + second.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    start = torch.arange(6, dtype=torch.float64)
    assert torch.allclose(seen[1], start + 0.5 * start / start.norm())
    assert torch.equal(flat, torch.cat([first.detach(), second.detach()]))


def test_several_types_in_one_model():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)]
    types = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    model = nn.ModuleList(layer.to(dtype) for layer, dtype in zip(layers, types, strict=True))

    def closure():
        model.zero_grad()
        hidden = batch()[0]
        for layer in model:
            hidden = torch.tanh(layer(hidden.to(layer.weight.dtype)))
        loss = F.cross_entropy(hidden.float(), batch()[1])
        loss.backward()
        return loss

    for make in (METHODS["asam"], METHODS["adaptive"], METHODS["multistep-mean"], METHODS["lookahead-lookbehind"]):
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1))
        losses = [optimizer.step(closure).item() for _ in range(10)]
        assert [p.dtype for layer in model for p in layer.parameters()] == [t for t in types for _ in range(2)]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [3e4, 1e-4])
def test_the_norm_of_half_precision_gradients_neither_overflows_nor_vanishes(dtype, size):
    weight = nn.Parameter(torch.zeros(64, dtype=dtype))
    optimizer = lb.SAM(torch.optim.SGD([weight], lr=1e-6), rho=0.5)
    seen = []

    def closure():
        weight.grad = torch.full_like(weight, size)
        seen.append(weight.detach().clone())
        return 0.0

    optimizer.step(closure)
    assert torch.allclose(seen[1].double(), torch.full((64,), 0.5 / 8, dtype=torch.float64), rtol=1e-2)


def test_maximising_climbs_the_other_way():
    def run(sign, maximize):
        model = net()
        optimizer = lb.LookbehindASAM(sgd(model, maximize=maximize), k=3)

        def closure():
            model.zero_grad()
            loss = sign * F.cross_entropy(model(batch()[0]), batch()[1])
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return values(model)

    assert same(run(1.0, maximize=False), run(-1.0, maximize=True))


def test_complex_parameters_are_pairs_of_reals():
    torch.manual_seed(0)
    start = torch.randn(4, dtype=torch.complex128)
    for make in (METHODS["adaptive"], METHODS["asam"], METHODS["multistep-mean"], METHODS["lookahead-lookbehind"]):
        both = []
        for as_complex in (True, False):
            weight = nn.Parameter(start.clone() if as_complex else torch.view_as_real(start).clone())
            optimizer = make(torch.optim.SGD([("weight", weight)], lr=0.1, momentum=0.9))

            def closure(weight=weight, as_complex=as_complex):
                weight.grad = None
                real = torch.view_as_real(weight) if as_complex else weight
                loss = (real - 0.5).square().sum() + (real[:, 0] * real[:, 1]).sin().sum()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            both.append(torch.view_as_real(weight.detach()) if as_complex else weight.detach())
        assert distance([both[0]], [both[1]]) < 1e-14


def test_sparse_gradients_are_refused_by_name():
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = lb.SAM(torch.optim.SGD(model.named_parameters(), lr=0.1))
    before = values(model)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.tensor([1, 2])).sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match=r"'weight' has a gradient of layout torch.sparse_coo.*sparse=False"):
        optimizer.step(closure)
    assert same(values(model), before)


def test_nothing_to_train_is_said():
    model = net().requires_grad_(False)
    with pytest.raises(RuntimeError, match="requires_grad=True"):
        lb.SAM(sgd(model)).step(lambda: 1.0)


def test_channels_last_weights_keep_their_layout():
    for method in ("lookbehind-asam", "adaptive", "multistep-mean"):
        results = []
        for memory_format in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(0)
            model = nn.Conv2d(3, 4, 3).double().to(memory_format=memory_format)
            stride = model.weight.stride()
            optimizer = METHODS[method](sgd(model, lr=0.01))

            def closure(model=model):
                model.zero_grad()
                loss = model(torch.ones(1, 3, 5, 5, dtype=torch.float64)).tanh().mean()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            assert model.weight.stride() == stride
            results.append(values(model))
        assert distance(*results) < 1e-14


def test_an_inner_product_is_the_same_in_every_layout():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4, 3, 5, 6, generator=generator, dtype=torch.float64)
    expected = float((a * b).sum())
    layouts = {
        "plain": lambda t: t,
        "channels last": lambda t: t.to(memory_format=torch.channels_last),
        "transposed": lambda t: t.transpose(0, 3).contiguous().transpose(0, 3),
        "with gaps": lambda t: torch.stack([t, t], -1)[..., 0],
    }
    for one in layouts.values():
        for other in layouts.values():
            assert float(dot(one(a), other(b))) == pytest.approx(expected, rel=1e-12)


def _climbed(make_rule, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where ASAM climbs from a weight, and where it should by the formula."""
    parameter, before, scaling = nn.Parameter(weight), weight.clone(), weight.abs() + 0.01
    factors = torch.arange(1.0, weight.numel() + 1, dtype=weight.dtype).view(weight.shape)
    base = torch.optim.SGD([parameter], lr=1e-9)
    optimizer = lb.SharpnessAware(base, rho=0.5, ascent=make_rule)
    seen = []

    def closure():
        optimizer.zero_grad()
        seen.append(parameter.detach().clone())
        loss = (parameter * factors).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert torch.equal(seen[0], before)
    return seen[1], before + 0.5 * scaling.square() * factors / (scaling * factors).norm()


def _a_view_of_the_room(leaf, slow, point, room):
    flat = room(point.reshape(-1))
    return torch.abs(point.reshape(-1), out=flat).add_(0.01).view(point.shape)


def _the_room_by_another_name(leaf, slow, point, room):
    memory = room(point)
    torch.abs(point, out=memory).add_(0.01)
    return memory.view(point.shape)


@pytest.mark.parametrize("rule", [asam(0.01, scale="all"), _a_view_of_the_room, _the_room_by_another_name])
@pytest.mark.parametrize("kind", ["plain", "with gaps", "transposed", "held by someone"])
def test_a_scaling_may_lie_in_the_scratch_memory_in_any_layout(kind, rule):
    weight = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = {"with gaps": weight[:, :4], "transposed": weight.t()}.get(kind, weight.clone())
    held = made.view(-1) if kind == "held by someone" else None
    found, expected = _climbed(rule, made)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    del held  # it had to live until here


def test_a_scaling_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"gave a T of shape \(3, 1\) for parameter of shape \(3, 8\)"):
        _climbed(lambda leaf, slow, point, room: point.abs().amax(1, keepdim=True), torch.randn(3, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_buffers_are_the_same_from_step_to_step(dtype):
    parameter = nn.Parameter(torch.ones(8, dtype=dtype))
    optimizer = lb.LookbehindSAM(torch.optim.SGD([parameter], lr=0.1), k=2)

    def closure():
        optimizer.zero_grad()
        loss = parameter.abs().square().sum()
        loss.backward()
        return loss

    seen = []
    for _ in range(3):
        optimizer.step(closure)
        seen.append([[buffer.data_ptr() for buffer in vector] for vector in optimizer._scratch._vectors])
    assert seen[0]
    assert seen[0] == seen[1] == seen[2]
