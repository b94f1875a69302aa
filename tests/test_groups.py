"""Groups: a radius and an eta for each, and which parameters ASAM scales."""

from __future__ import annotations

import pytest
import torch
from problems import batch, closure_for, distance, net, same, sgd, train, values

import lookbehind as lb


def two_groups(model, **second):
    return torch.optim.SGD([{"params": [model[0].weight]}, {"params": [model[4].weight], **second}], lr=0.1)


def points_of(optimizer, model, steps=1):
    """The weights at each evaluation."""
    seen = []

    def closure():
        seen.append(values(model))
        return closure_for(model, batch())()

    for _ in range(steps):
        optimizer.step(closure)
    return seen


def clean_gradients(model):
    closure_for(model, batch())()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return gradients


def test_every_group_has_its_own_radius_in_one_joint_norm():
    model = net(batchnorm=False)
    gradient = clean_gradients(model)
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2], "ascent_rho": 0.3}, {"params": parameters[2:]}]
    optimizer = lb.SAM(torch.optim.SGD(groups, lr=0.1), rho=0.1)
    start, point = points_of(optimizer, model)
    norm = torch.sqrt(sum(g.square().sum() for g in gradient))
    radii = [0.3, 0.3, 0.1, 0.1]
    expected = [w + rho * g / norm for w, g, rho in zip(start, gradient, radii, strict=True)]
    assert distance(point, expected) < 1e-15


def test_a_group_with_radius_zero_is_neither_perturbed_nor_counted():
    """SAM on the normalisation layer only."""
    model = net()
    gradient = clean_gradients(model)
    norm_layer, others = [*model[1].parameters()], [*model[0].parameters(), *model[4].parameters()]
    base = torch.optim.SGD([{"params": norm_layer}, {"params": others, "ascent_rho": 0.0}], lr=0.1)
    start, point = points_of(lb.SAM(base, rho=0.1), model)
    norm = torch.sqrt(gradient[1].square().sum() + gradient[2].square().sum())
    assert same([point[i] for i in (0, 3, 4)], [start[i] for i in (0, 3, 4)])
    moved = [point[i] - start[i] for i in (1, 2)]
    assert distance(moved, [0.1 * gradient[i] / norm for i in (1, 2)]) < 1e-15
    assert not same(values(model), start)  # but all of them descend


def test_every_group_has_its_own_eta():
    model = net(batchnorm=False)
    gradient = clean_gradients(model)[::2]
    model[0].bias.requires_grad_(False)
    model[3].bias.requires_grad_(False)
    base = torch.optim.SGD([{"params": [model[0].weight], "ascent_eta": 1.0}, {"params": [model[3].weight]}], lr=0.1)
    start, point = (weights[::2] for weights in points_of(lb.ASAM(base, rho=0.5, eta=0.1), model))
    scaling = [w.abs() + eta for w, eta in zip(start, (1.0, 0.1), strict=True)]
    norm = torch.sqrt(sum((t * g).square().sum() for t, g in zip(scaling, gradient, strict=True)))
    expected = [w + 0.5 * t.square() * g / norm for w, t, g in zip(start, scaling, gradient, strict=True)]
    assert distance(point, expected) < 1e-15


@pytest.mark.parametrize(("key", "value"), [("ascent_rho", -1.0), ("ascent_rho", float("nan")), ("ascent_eta", "x")])
def test_a_wrong_value_in_a_group_is_named(key, value):
    model = net()
    optimizer = lb.ASAM(two_groups(model, **{key: value}))
    with pytest.raises((ValueError, TypeError), match=rf"param_groups\[1\]\['{key}'\]={value!r}"):
        optimizer.step(closure_for(model, batch()))


def test_a_misspelt_setting_of_a_group_is_not_ignored():
    model = net()
    with pytest.raises(ValueError, match=r"param_groups\[1\]\['ascent_roh'\]: no such setting"):
        lb.SAM(two_groups(model, ascent_roh=0.0))
    with pytest.raises(ValueError, match="no such setting"):
        lb.SAM(sgd(model)).add_param_group({"params": [torch.ones(1, requires_grad=True)], "ascent_et": 1.0})


# --- what ASAM scales


def scaled_names(optimizer, model):
    """By effect: with eta = 1e6 the step of a scaled parameter is enormous against an unscaled one's."""
    start, point = points_of(optimizer, model)
    moved = {
        name: float((b - a).norm()) for (name, _), a, b in zip(model.named_parameters(), start, point, strict=True)
    }
    return {name for name, size in moved.items() if size > 1e-3 * max(moved.values())}


@pytest.mark.parametrize(
    ("named", "scale", "expected"),
    [
        (True, "auto", {"0.weight", "1.weight", "4.weight"}),
        (False, "auto", {"0.weight", "4.weight"}),
        (True, "names", {"0.weight", "1.weight", "4.weight"}),
        (True, "dimensions", {"0.weight", "4.weight"}),
        (True, "all", {"0.weight", "1.weight", "1.bias", "4.weight", "4.bias"}),
        (True, lambda name, p: name == "4.bias", {"4.bias"}),
    ],
)
def test_asam_scales_by_name_where_names_are_known(named, scale, expected):
    model = net()
    parameters = model.named_parameters() if named else model.parameters()
    optimizer = lb.ASAM(torch.optim.SGD(parameters, lr=0.1), rho=0.1, eta=1e6, scale=scale)
    assert scaled_names(optimizer, model) == expected


def test_scaling_by_name_without_names_is_refused_with_the_remedy():
    model = net()
    optimizer = lb.ASAM(torch.optim.SGD(model.parameters(), lr=0.1), scale="names")
    with pytest.raises(ValueError, match=r"has no name: give the base optimizer model.named_parameters\(\)"):
        train(optimizer, model, range(1))
