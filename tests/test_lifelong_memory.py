"""The memory of lifelong learning: what a reservoir keeps, by count, what it draws, and that it goes on alike."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from lookbehind.lifelong.memory import Reservoir


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
