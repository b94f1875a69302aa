"""Networks: the parameter counts of the literature, initialisation, and what the shortcuts take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lookbehind.models import MODELS, build
from lookbehind.models.resnet import ResNet
from lookbehind.models.wide_resnet import WideResNet


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet34", 10, 21_282_122),
        ("resnet50", 100, 23_705_252),
        ("resnet18-imagenet", 1000, 11_689_512),
        ("wrn-28-2", 10, 1_467_610),
        ("wrn-28-2", 100, 1_479_220),
        ("wrn-28-10", 10, 36_479_194),
        ("wrn-28-10", 100, 36_536_884),
        ("resnet8-narrow", 10, 78_042),
        ("plain-convnet", 10, 151_882),
    ],
)
def test_parameter_counts(name, classes, parameters):
    with torch.device("meta"):
        assert count(build(name, classes=classes)) == parameters


@pytest.mark.parametrize("name", MODELS)
def test_every_network_maps_images_to_logits_and_back_to_gradients(name):
    torch.manual_seed(0)
    size, channels = {"convnet": (8, 1), "resnet18-imagenet": (64, 3)}.get(name, (16, 3))
    if name == "wrn-28-10":
        name = "wrn-10-2"  # the same code, smaller
    model = build(name, classes=7, channels=channels)
    logits = model(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("size", [8, 16, 32])
def test_the_plain_network_normalises_nothing_and_takes_images_of_any_size(size):
    """An image has the same logits alone and in a minibatch, and there are no statistics to keep."""
    torch.manual_seed(0)
    model = build("plain-convnet", classes=7)
    images = torch.randn(5, 3, size, size)
    torch.testing.assert_close(model(images)[2:3], model(images[2:3]))
    assert model(images).shape == (5, 7)
    assert not list(model.buffers())


def test_the_resolution_halves_from_stage_to_stage():
    seen = []
    model = ResNet(10, (1, 1, 1, 1), width=4)
    for block in list(model.features)[3:]:
        block.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
    model(torch.randn(1, 3, 32, 32))
    assert seen == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


def test_initialisation_has_the_stated_spread():
    torch.manual_seed(0)
    wide = WideResNet(10, depth=10, widen=8)
    convolution = wide.features[3].residual[3]  # 3x3, 512 channels in and out
    assert convolution.weight.std().item() == pytest.approx((2 / (9 * convolution.out_channels)) ** 0.5, rel=0.01)
    first = wide.features[0]  # 3 channels in, 16 out: fan-in and fan-out differ
    assert first.weight.std().item() == pytest.approx((2 / (9 * 16)) ** 0.5, rel=0.15)
    original = WideResNet(10, depth=10, widen=8, form="original")
    assert original.features[0].weight.std().item() == pytest.approx((2 / (9 * 3)) ** 0.5, rel=0.15)
    assert torch.equal(original.head.bias, torch.zeros(10))
    cifar = ResNet(10, (1, 1, 1, 1))
    largest = cifar.features[-1].residual[3].weight.abs().max().item()
    assert largest <= (1 / (9 * 512)) ** 0.5  # torch's default: uniform within 1 / sqrt(fan-in)


def test_the_two_forms_of_the_wide_network_differ_in_what_the_shortcut_takes():
    torch.manual_seed(0)
    block = WideResNet(10, depth=10, widen=2).features[1]
    negative = -torch.ones(1, 16, 4, 4)
    nn.init.zeros_(block.residual[0].weight)
    block.eval()
    assert block(negative).abs().sum() > 0  # the raw input goes through
    block.activated_shortcut = True
    assert block(negative).abs().sum() == 0  # relu has taken it


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: build("resnet19", classes=10), "model='resnet19': choose one of convnet"),
        (lambda: build("wrn-29-2", classes=10), "model='wrn-29-2'.*with a depth of 6n . 4, from 10 on"),
        (lambda: WideResNet(10, depth=29), "depth=29: give 6n"),
        (lambda: ResNet(10, (1,), stem="mnist"), "stem='mnist'"),
        (lambda: WideResNet(10, form="new"), "form='new'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(make, words):
    with pytest.raises(ValueError, match=words):
        make()
