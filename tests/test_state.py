"""Saving, loading, copying, schedulers: what goes wrong when one optimizer wraps another."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from problems import METHODS, batch, closure_for, net, same, sgd, train, values
from torch.optim import lr_scheduler

import lookbehind as lb


def saved_and_loaded(state):
    """Through a file, as ``weights_only=True`` reads it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def adamw(model):
    return torch.optim.AdamW(model.named_parameters(), lr=0.01)


@pytest.mark.parametrize("base", [sgd, adamw], ids=["sgd", "adamw"])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_continues_bit_for_bit_from_any_phase(method, base):
    for interrupted_after in (1, 2, 3):  # Lookahead has periods of 3
        model = net()
        optimizer = METHODS[method](base(model))
        train(optimizer, model, range(interrupted_after))
        state, weights = saved_and_loaded(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        train(optimizer, model, range(interrupted_after, 7))

        resumed_model = net()
        resumed = METHODS[method](base(resumed_model))
        resumed_model.load_state_dict(weights)
        resumed.load_state_dict(state)
        train(resumed, resumed_model, range(interrupted_after, 7))
        assert same(values(resumed_model), values(model))
        assert resumed.evaluations == optimizer.evaluations


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deep", "pickle"]
)
@pytest.mark.parametrize("method", METHODS)
def test_a_copy_goes_its_own_way(method, copier):
    model = net()
    optimizer = METHODS[method](sgd(model))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)  # puts a ``step`` on the instance
    train(optimizer, model, range(2))
    scheduler.step()
    twin_model, twin = copier((model, optimizer))
    train(optimizer, model, range(2, 4))
    before = values(model)
    train(twin, twin_model, range(2, 4))
    assert same(values(model), before)
    assert same(values(twin_model), before)
    twin.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late = lr_scheduler.StepLR(twin, 1, gamma=0.5)
        train(twin, twin_model, range(1))
        late.step()
    assert twin.base.param_groups[0]["lr"] == twin.param_groups[0]["lr"] == pytest.approx(0.025)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=10),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("loop", [False, True], ids=["closure", "loop"])
@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("method", ["sam", "lookbehind", "lookahead-lookbehind"])
def test_schedulers_on_the_wrapper_and_on_the_base_agree_without_a_warning(method, kind, loop):
    results = []
    for attach_to_base in (False, True):
        model = net()
        base = sgd(model)
        optimizer = METHODS[method](base)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "The epoch parameter", UserWarning)  # SequentialLR's own, in torch 2.6
            scheduler = SCHEDULERS[kind](base if attach_to_base else optimizer)
            rates = []
            for step in range(5):
                closure = closure_for(model, batch(step))
                if loop:
                    with optimizer.passes() as passes:
                        for _ in passes:
                            closure()
                else:
                    optimizer.step(closure)
                scheduler.step()
                rates.append(base.param_groups[0]["lr"])
        results.append((values(model), rates))
    assert same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert len(set(results[0][1])) > 1


def test_groups_and_state_stay_those_of_the_base_after_a_load():
    model = net()
    optimizer = lb.LookbehindSAM(sgd(model), k=2)
    train(optimizer, model, range(2))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    optimizer.param_groups[0]["lr"] = 0.0
    before = values(model)
    train(optimizer, model, range(1))
    assert same(values(model), before)


def test_a_parameter_group_added_later_is_trained_and_perturbed():
    model, extra = net(), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = lb.SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5)
    train(optimizer, model, range(1))
    optimizer.add_param_group({"params": [extra], "lr": 1.0})
    points = []

    def closure():
        optimizer.zero_grad()
        points.append(extra.detach().clone())
        loss = extra.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    climb = 0.5 / 3**0.5
    assert torch.allclose(points[1], torch.full((3,), 1 + climb, dtype=torch.float64))
    assert torch.allclose(extra.detach(), torch.full((3,), -climb, dtype=torch.float64))


def test_the_state_of_the_plain_base_loads_and_counts_from_zero():
    plain_model = net()
    plain = sgd(plain_model)
    train(plain, plain_model, range(2))
    model = net()
    optimizer = lb.SAM(sgd(model, lr=0.7))
    train(optimizer, model, range(1))
    optimizer.load_state_dict(saved_and_loaded(plain.state_dict()))
    assert optimizer.evaluations == 0
    assert optimizer.param_groups[0]["lr"] == 0.1
    momenta = [plain.state[p]["momentum_buffer"] for p in plain_model.parameters()]
    assert same([optimizer.state[p]["momentum_buffer"] for p in model.parameters()], momenta)


@pytest.mark.parametrize(
    ("saved", "loaded", "words"),
    [
        ("sam", "lookbehind", ["descent was last, here it is each", "base.load_state_dict"]),
        ("lookbehind", "lookbehind-asam", ["ascent was sam, here it is asam"]),
        ("lookbehind", "adaptive", ["interpolation was constant, here it is adaptive"]),
        ("lookahead-lookbehind", "lookbehind", ["saved by Lookahead"]),
    ],
)
def test_a_state_of_another_method_is_refused_with_the_difference(saved, loaded, words):
    model = net()
    state = METHODS[saved](sgd(model)).state_dict()
    other = METHODS[loaded](sgd(net(), lr=0.7))
    with pytest.raises(ValueError, match="saved by") as error:
        other.load_state_dict(state)
    assert all(word in str(error.value) for word in words)
    assert other.param_groups[0]["lr"] == 0.7  # nothing was loaded


def test_a_state_for_other_shapes_is_refused_by_name():
    state = lb.SAM(sgd(net())).state_dict()
    other = torch.nn.Sequential(torch.nn.Linear(6, 9, bias=False), *list(net())[1:])
    with pytest.raises(ValueError, match=r"'0.weight' had the shape \[8, 6\], here it is \[9, 6\]"):
        lb.SAM(sgd(other)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"5 of them, this optimizer has 2"):
        lb.SAM(sgd(torch.nn.Linear(6, 3))).load_state_dict(state)


def test_other_settings_of_the_same_method_are_named_in_a_warning():
    state = lb.LookbehindSAM(sgd(net()), rho=0.05, k=5).state_dict()
    with pytest.warns(UserWarning, match=r"rho was 0.05, here it is 0.1; k was 5, here it is 2"):
        lb.LookbehindSAM(sgd(net()), rho=0.1, k=2).load_state_dict(state)


def test_hooks_of_the_wrapper_are_called():
    model = net()
    optimizer = lb.SAM(sgd(model))
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: calls.append(state["extra"]))
    train(optimizer, model, range(1))
    with optimizer.passes() as passes:
        for _ in passes:
            closure_for(model, batch())()
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "after", "before", "after", 1]


def test_a_step_pre_hook_may_replace_the_closure():
    """How an integration turns the framework's bare ``step()`` into one with a closure."""
    model = net()
    optimizer = lb.SAM(sgd(model))
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, closure_for(model, batch())), {}))
    optimizer.step()
    assert optimizer.evaluations == 2


def test_a_step_without_closure_is_the_base_step_only_while_every_lr_is_zero():
    model = net()
    optimizer = lb.LookbehindSAM(adamw(model))
    closure_for(model, batch())()
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.0)
    before = values(model)
    optimizer.step()
    assert same(values(model), before)
    assert all("exp_avg" in optimizer.state[p] for p in model.parameters())
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(TypeError, match=r"def closure\(\):(.|\n)*given\(loss, closure\)"):
        optimizer.step()
    assert same(values(model), before)


def test_train_and_eval_reach_a_base_that_has_them():
    class Moded(torch.optim.SGD):
        mode = "train"

        def train(self):
            self.mode = "train"

        def eval(self):
            self.mode = "eval"

    base = Moded(net().parameters(), lr=0.1)
    optimizer = lb.Lookahead(lb.SAM(base))
    optimizer.eval()
    assert base.mode == "eval"
    optimizer.train()
    assert base.mode == "train"
    lb.SAM(sgd(net())).eval()  # a base without them does not mind
