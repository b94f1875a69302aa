"""The benchmark: what it compares is the same computation, its ratios are worked by hand, all parts run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch

from lookbehind.bench import steps, timing
from lookbehind.bench.peers import peers
from lookbehind.bench.problems import NETWORKS, problems
from lookbehind.bench.run import PARTS, Bench, bench, growth_rounds
from lookbehind.bench.steps import authors_step, between, difference_to_the_authors, floor, in_turn, lookbehind_step
from lookbehind.bench.tables import cells, overview
from lookbehind.bench.timing import Effort, Measured, in_rounds, interleaved, ratio, uncertainty
from lookbehind.optim import exchange


def test_works_take_turns_beginning_with_another_one_each_time():
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleaved(works, Effort(repetitions=3))
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}
    calls.clear()
    made = []
    rounds = in_rounds(lambda: made.append("made") or works, Effort(rounds=2, repetitions=1))
    assert "".join(calls) == "abcabc" * 2
    assert len(made) == len(rounds) == 2


def test_a_ratio_is_that_of_the_least_times_of_every_round(monkeypatch):
    """1.5, 3 and 2 in three rounds; 2, 3 and 4, then 3 and 2 of whole times."""
    first = {"a": [[1.0, 1.0], [4.0, 5.0], [3.5, 0.5]], "b": [[1.0], [3.0], [1.0]]}
    rounds = [first, {"a": [[2.0, 1.0]], "b": [[1.0]]}, {"a": [[1.1, 0.5]], "b": [[0.8]]}]
    found = ratio(rounds, "a", "b", "", "", at_most=2.1)
    assert (found.value, found.low, found.high, found.whole) == (2.0, 1.75, 2.5, 3.0)
    assert found.reached is True
    clock = count()
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock))
    assert interleaved({"a": lambda: None}, Effort(repetitions=2))["a"] == [[1], [1]]
    assert interleaved({"a": timing.mark}, Effort(repetitions=2))["a"] == [[1, 1], [1, 1]]
    # short works go on until they have taken their time together
    assert interleaved({"a": lambda: None, "b": lambda: None}, Effort(repetitions=2, seconds=7)) == {
        "a": [[1]] * 4,
        "b": [[1]] * 4,
    }
    assert Effort(9, 2, 2.0).at_most(3) == Effort(3, 2, 2.0)


def test_the_pieces_of_a_step_are_its_passes_and_what_lies_between_them():
    problem = problems(tiny=True)["mlp"]
    for make in (lookbehind_step, floor, authors_step):
        ((pieces,),) = interleaved({"a": make(*problem.fresh(), 2)}, Effort()).values()
        passes = 4 if make is authors_step else 3
        assert len(pieces) == 2 * passes + 1


def test_the_floor_has_the_base_steps_of_a_step(monkeypatch):
    counts = {}
    taken = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *args, **named: seen.append(1) or taken(*args, **named))
    for make in (lookbehind_step, floor, authors_step):
        seen = []
        make(*problems(tiny=True)["mlp"].fresh(), 3)()
        counts[make] = len(seen)
    assert set(counts.values()) == {3}


@pytest.mark.parametrize("makes", [peers(False), peers(True), {"authors": partial(authors_step, k=2)}])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_works_beside_ours_leave_every_parameter_alone_in_its_memory(makes, name):
    """Else ours would have to copy where it can exchange, which no network asks of it whose optimizer is ours alone."""
    model, closure = problems(tiny=True)[name].fresh()
    works = [make(model, closure) for make in makes.values()]
    for work in works:
        work()
    assert all(map(exchange._fills_a_storage_of_its_own, model.parameters()))


def test_what_must_be_reached_is_what_was_asked_for(monkeypatch):
    fast = [{name: [[1.0, 1.0, 1.0]] for name in ("ours", "propagate", "floor", "again", "authors")}]
    monkeypatch.setattr(steps, "in_turn", lambda *args, **named: fast)
    limits = {}
    for name in NETWORKS:
        problem = problems(tiny=True)[name]
        limits[name] = {one.at_most for one in steps.against_the_floor(problem, (2,), Effort())} - {None}
        limits[name] |= {-steps.against_the_authors(problem, 10, Effort()).at_least} if name != "transformer" else set()
    assert limits == {"resnet": {1.03, -1.75}, "convnet": {1.10, -1.75}, "mlp": {1.30, -2.0}, "transformer": set()}


def test_works_of_a_round_share_one_network():
    """Which every one of them moves; the next round has another."""
    problem, seen = problems(tiny=True)["mlp"], []

    def noting(model, closure):
        step = lookbehind_step(model, closure, 2)
        seen.append((model, [p.detach().clone() for p in model.parameters()]))
        return step

    in_turn(problem, {"a": noting, "two calls": peers(False)["two calls"], "b": noting}, Effort(rounds=2))
    first, second, third, _ = seen
    assert first[0] is second[0] is not third[0]
    for (model, starts), network in ((first, problem.network), (third, problem.network)):
        assert all(torch.equal(a, b) for a, b in zip(starts, network.parameters(), strict=True))
        assert all(not torch.equal(a, b) for a, b in zip(starts, model.parameters(), strict=True))
        assert all(p.isfinite().all() for p in model.parameters())


def test_what_is_ours_is_what_lies_between_the_passes():
    """Least pieces of the step: 3, 9, 2, 9, 4, of the floor 1, 10, 1, 10, 2: 9 - 4 over 24."""
    rounds = [
        {"ours": [[3.0, 9.0, 2.0, 9.0, 5.0]], "floor": [[1.0, 10.0, 1.0, 10.0, 2.0]]},
        {"ours": [[4.0, 9.5, 2.0, 9.5, 4.0]], "floor": [[2.0, 11.0, 3.0, 12.0, 4.0]]},
    ]
    assert between(rounds, "ours", "floor") == pytest.approx(5 / 24)


def test_growth_is_told_of_whole_steps_and_of_what_is_ours(monkeypatch):
    """A pass and what follows it: 12 + 3 over 10 + 2 is 1.25, 20 + 4 over 20 + 4 is 1; ours are 1 of 12 and 0 of 24."""
    times = {"ours 2": [[0.0, 12.0, 3.0]], "floor 2": [[0.0, 10.0, 2.0]]}
    times |= {"ours 3": [[0.0, 20.0, 4.0]], "floor 3": [[0.0, 20.0, 4.0]]}
    monkeypatch.setattr(steps, "in_turn", lambda problem, makes, effort: [{name: times[name] for name in makes}])
    whole, part = steps.growth(problems(tiny=True)["mlp"], (2, 3), Effort())
    assert (whole.value, whole.at_most) == (pytest.approx(1.25), 1.05)
    assert (part.value, part.at_most) == (pytest.approx(13 / 12), None)


def test_the_uncertainty_of_a_ratio_is_that_of_equal_works():
    """1.3 is the median of 1.5, 1.4, 1.3, 1.2 and 1.1."""
    rounds = [{"a": [[time], [9.0]], "b": [[1.0], [9.0]]} for time in (1.5, 1.4, 1.3, 1.2, 1.1)]
    assert uncertainty(rounds, "a", "b") == pytest.approx(0.3 + 0.1 * 2.5**0.5 / 5**0.5)
    assert uncertainty([{"a": [[1.1]], "b": [[1.0]]}], "a", "b") == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("measured", "reached"),
    [
        (Measured("", "", 1.0, at_most=1.0), True),
        (Measured("", "", 1.1, at_most=1.0), False),
        (Measured("", "", 2.0, at_least=1.75), True),
        (Measured("", "", 1.7, at_least=1.75), False),
        (Measured("", "", 1.7), None),
    ],
)
def test_what_must_be_reached(measured, reached):
    assert measured.reached is reached
    assert ("not" in cells(measured)[-1]) is (reached is False)


@pytest.mark.parametrize("name", ["resnet", "convnet", "mlp", "transformer"])
def test_the_authors_way_gives_the_same_weights(name):
    assert difference_to_the_authors(problems(tiny=True)[name], 3) < 1e-12


def test_without_passes_no_network_is_evaluated(monkeypatch):
    problem = problems(tiny=True)["mlp"]
    makes = {"ours": partial(steps.lookbehind_step, k=2)}
    calls = []
    forward = type(problem.network).forward
    monkeypatch.setattr(type(problem.network), "forward", lambda *given: calls.append(1) or forward(*given))
    (times,) = steps.in_turn(problem, makes, Effort(1, 3), passes=False)
    assert len(calls) == 1  # for the gradients that are handed out
    assert [len(pieces) for pieces in times["ours"]] == [7] * 3  # three passes, and four pieces around them
    steps.in_turn(problem, makes, Effort(1, 3))
    assert len(calls) == 1 + 3 * 4


def test_rounds_of_the_growth():
    assert [growth_rounds(rounds) for rounds in (1, 2, 3, 5, 10)] == [1, 2, 3, 3, 6]


@pytest.mark.parametrize("adaptive", [False, True])
def test_gradients_at_hand_are_those_of_a_pass_and_stay_as_they_are(adaptive):
    """Whoever steps with them; so they are the same in every repetition."""
    problem = problems(tiny=True)["resnet"]
    model, closure = problem.fresh()
    loss = closure()
    for make in peers(adaptive).values():
        copied, hand_out = problem.at_hand()
        assert all(p.grad is None for p in copied.parameters())
        assert hand_out() == loss
        copied.zero_grad()
        step = make(copied, hand_out)
        step()
        step()  # the momentum of the first must be no alias of the gradient
        hand_out()
        for parameter, other in zip(model.parameters(), copied.parameters(), strict=True):
            assert torch.equal(parameter.grad, other.grad)
            assert not torch.equal(parameter, other) or not parameter.grad.any()


@pytest.mark.parametrize("adaptive", [False, True])
def test_peers_take_the_same_step(adaptive):
    """Up to float32 and what they add to the norm."""
    problem = problems(tiny=True)["mlp"]
    ends = {}
    for name, make in peers(adaptive).items():
        model, closure = problem.fresh()
        step = make(model, closure)
        for _ in range(2):
            step()
        ends[name] = torch.cat([p.detach().flatten() for p in model.parameters()])
    start = torch.cat([p.detach().flatten() for p in problem.network.parameters()])
    for name, end in ends.items():
        assert float((end - ends["ours"]).norm()) < 2e-4 * float((end - start).norm()), name


def test_the_networks_are_of_the_sizes_that_were_asked_for():
    sizes = {name: problem.parameters for name, problem in problems().items()}
    assert tuple(sizes) == NETWORKS
    assert sizes["convnet"] == 1_419_940
    assert 9.9e6 < sizes["mlp"] < 10.1e6
    assert sizes["resnet"] == 78_042


def test_all_parts_run_and_are_written(tmp_path):
    told = []
    found = bench(Bench(tiny=True, rounds=1, repetitions=1, out=tmp_path), told.append)
    assert {words.split()[0] for words in told} == set(PARTS)
    # a step of microseconds may take less than its floor, so what is ours in it may be less than nothing
    signed = [one for one in found if "share of what is ours" in one.what or "difference" in one.what]
    assert signed
    assert all(math.isfinite(one.value) for one in signed)
    assert all(one.value > 0 for one in found if one not in signed)
    assert sum("gradients at hand: ours" in one.what for one in found) == 2 * 2 * 4
    content = json.loads((tmp_path / "results.json").read_text())
    assert len(content["measured"]) == len(found)
    assert content["about"]["tiny"] is True
    page = (tmp_path / "results.md").read_text()
    assert all(sum(line.startswith(f"| {one.what} | {one.where} |") for line in page.splitlines()) for one in found)
    assert page.startswith("|  | resnet | convnet | mlp | transformer |\n")


def test_a_wrong_part_is_named():
    with pytest.raises(ValueError, match="only='speed'"):
        Bench(only=("speed",))


def test_the_overview_has_a_column_per_network_and_what_must_be_reached():
    found = [
        Measured("a step", "one", 1.5, at_most=1.03),
        Measured("a step", "two", 1.0),
        Measured("not judged", "one", 1.0),
        Measured("SAM: ours / the fastest peer (two calls)", "one", 0.9, at_most=1.0),
        Measured("SAM: ours / the fastest peer (another, foreach)", "two", 1.25, at_most=1.0),
        Measured("SAM, gradients at hand: ours / the fastest peer (two calls)", "two", 0.5),
        Measured("buffers", "SAM", 1.0, at_most=1.2),
        Measured("images", "CIFAR", 157963.0, at_least=30000),
        Measured("import", "", 25.5, at_most=50, unit="ms"),
    ]
    heads, lines = overview(found, "**{}**".format, ("one", "two", "three"))
    assert heads == ["", "one", "two"]
    assert lines == [
        ["a step", "**1.5** (≤\u00a01.03)", "1"],
        ["SAM: ours / the fastest peer", "0.9 (≤\u00a01)", "**1.25** (≤\u00a01)"],
        ["SAM, gradients at hand: ours / the fastest peer, two", "0.5", ""],
        ["buffers, SAM", "1 (≤\u00a01.2)", ""],
        ["images, CIFAR", "157,963 (≥\u00a030,000)", ""],
        ["import", "25.5 ms (≤\u00a050)", ""],
    ]
    # where nothing is wanted, everything is shown
    unjudged = [replace(one, at_most=None, at_least=None) for one in found]
    assert len(overview(unjudged, str, ("one", "two"))[1]) == 7
