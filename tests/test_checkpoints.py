"""Distributed checkpoints, nested wrappers, and what a plain state lacks."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed.checkpoint.state_dict as dcp
from problems import batch, closure_for, net, same, sgd, train, values

import lookbehind as lb

NESTED = {
    "sam": lambda base: lb.SAM(base, rho=0.1),
    "lookbehind": lambda base: lb.LookbehindSAM(base, rho=0.1, k=2),
    "lookahead": lambda base: lb.Lookahead(base, k=3),
    "lookahead-sam": lambda base: lb.Lookahead(lb.SAM(base), k=3, momentum="interpolate"),
    "sam-lookahead": lambda base: lb.SAM(lb.Lookahead(base, k=3)),
}
BASES = {
    "sgd": lambda model: torch.optim.SGD(model.named_parameters(), lr=0.1),
    "momentum": sgd,
    "adamw": lambda model: torch.optim.AdamW(model.named_parameters(), lr=0.01),
}


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", NESTED)
@pytest.mark.filterwarnings("ignore:.*_get_pg_default_device.*", "ignore::FutureWarning")
def test_a_distributed_checkpoint_resumes_bit_for_bit(method, base, flat):
    def make():
        model = net()
        return model, NESTED[method](BASES[base](model))

    options = dcp.StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = make()
    train(optimizer, model, range(4))
    optimizer.zero_grad()
    state = copy.deepcopy(dcp.get_optimizer_state_dict(model, optimizer, options=options))
    weights = copy.deepcopy(model.state_dict())
    train(optimizer, model, range(4, 8))

    resumed_model, resumed = make()
    resumed_model.load_state_dict(weights)
    dcp.set_optimizer_state_dict(resumed_model, resumed, state, options=options)
    assert resumed.evaluations > 0
    train(resumed, resumed_model, range(4, 8))
    assert same(values(resumed_model), values(model))
    assert resumed.evaluations == optimizer.evaluations


@pytest.mark.parametrize(
    ("saved", "loaded", "words"),
    [
        (NESTED["sam"], NESTED["lookahead"], r"SharpnessAware\(SGD\), here it is Lookahead\(SGD\)"),
        (
            NESTED["lookahead"],
            NESTED["lookahead-sam"],
            r"Lookahead\(SGD\), here it is Lookahead\(SharpnessAware\(SGD\)\)",
        ),
        (NESTED["sam-lookahead"], NESTED["lookahead-sam"], r"here it is Lookahead\(SharpnessAware\(SGD\)\)"),
    ],
)
def test_a_state_of_other_wrappers_is_refused(saved, loaded, words):
    with pytest.raises(ValueError, match=words):
        loaded(sgd(net())).load_state_dict(saved(sgd(net())).state_dict())


def test_a_state_around_another_base_is_refused():
    state = lb.SAM(BASES["adamw"](net())).state_dict()
    with pytest.raises(ValueError, match=r"saved by SharpnessAware\(AdamW\), here it is SharpnessAware\(SGD\)"):
        lb.SAM(sgd(net())).load_state_dict(state)


def test_a_plain_state_does_not_take_the_radii_of_groups_away():
    model, plain = net(), net()
    groups = [{"params": [model[0].weight], "ascent_rho": 0.0}, {"params": list(model[1:].parameters())}]
    plain_groups = [{"params": [plain[0].weight]}, {"params": list(plain[1:].parameters())}]
    optimizer = lb.SAM(torch.optim.SGD(groups, lr=0.1))
    optimizer.load_state_dict(torch.optim.SGD(plain_groups, lr=0.2).state_dict())
    assert optimizer.param_groups[0]["ascent_rho"] == 0.0
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_names_that_come_with_a_state_are_told_since_asam_scales_by_them():
    state = lb.ASAM(sgd(net())).state_dict()
    unnamed = lb.ASAM(torch.optim.SGD(net().parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="named was True, here it is False.*goes on with this optimizer's own"):
        unnamed.load_state_dict(state)
    assert "param_names" not in unnamed.param_groups[0]  # so it still scales by dimensions
    named = lb.ASAM(sgd(net()))
    own = list(named.param_groups[0]["param_names"])
    other = lb.ASAM(torch.optim.SGD([(f"other.{name}", p) for name, p in net().named_parameters()], lr=0.1))
    named.load_state_dict(other.state_dict())
    assert named.param_groups[0]["param_names"] == own


def test_restore_all_reaches_through_a_lookahead():
    class Stop(Exception):
        pass

    def run(fail):
        model = net()
        optimizer = lb.LookbehindSAM(lb.Lookahead(sgd(model), k=3, alpha=0.5), k=5, restore="all")
        train(optimizer, model, range(1))
        calls = iter(range(9))

        def closure():
            if next(calls) == 4:
                raise Stop
            return closure_for(model, batch(7))()

        if fail:
            with pytest.raises(Stop):
                optimizer.step(closure)
        train(optimizer, model, range(1, 4))
        return values(model)

    assert same(run(fail=True), run(fail=False))


def test_state_entries_that_belong_to_no_parameter():
    model = net()
    base = sgd(model)
    base.state["calls"] = 3
    optimizer = lb.Lookahead(base, k=2)
    train(optimizer, model, range(1))
    assert optimizer.state_dict()["state"]["calls"] == 3
    inner = lb.LookbehindSAM(base, k=2, restore="all")
    inner.zero_grad()
    calls = iter([1, 1, 0])
    with pytest.raises(ZeroDivisionError):
        inner.step(lambda: closure_for(model, batch())() / (1 // next(calls)))
    assert base.state["calls"] == 3


def test_lookahead_goes_with_a_model_that_changes_its_type_in_a_period():
    model = net()
    optimizer = lb.Lookahead(sgd(model, momentum=0.0), k=3)
    train(optimizer, model, range(1))
    model.float()
    optimizer.step(closure_for(model, batch(dtype=torch.float32)))
    optimizer.step(closure_for(model, batch(dtype=torch.float32)))
    assert optimizer.phase == 0
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_parameter_frozen_in_a_period_stays_where_it_is():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=2, alpha=0.5)
    train(optimizer, model, range(1))
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    model.zero_grad()
    train(optimizer, model, range(1, 2))
    assert torch.equal(model[0].weight, frozen)


def test_steps_and_checkpoints_inside_slow_weights_are_refused():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=3)
    train(optimizer, model, range(1))
    fast = values(model)
    with optimizer.slow_weights(), optimizer.slow_weights():
        with pytest.raises(RuntimeError, match="it would be lost"):
            train(optimizer, model, range(1))
        with pytest.raises(RuntimeError, match="Save model and optimizer outside"):
            optimizer.state_dict()
    assert same(values(model), fast)
    assert optimizer.phase == 1
    train(optimizer, model, range(1))


def test_the_joined_state_of_lookahead_behaves_as_a_dict():
    model, other = net(), torch.nn.Parameter(torch.ones(2))
    base = BASES["adamw"](model)
    optimizer = lb.Lookahead(base, k=3)
    train(optimizer, model, range(1))
    weight = model[0].weight
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq", "lookahead_slow"}
    optimizer.state[weight]["step"] = torch.tensor(7.0)  # writes reach the base
    assert base.state[weight]["step"] == 7
    assert other not in optimizer.state  # asking makes no entry
    assert optimizer.state.get("nothing", "default") == "default"
    assert len(optimizer.state) == len(base.state) == 5
    for key, entry in optimizer.state.items():  # as Lightning moves states to a device
        optimizer.state[key] = {name: value.clone() for name, value in entry.items()}
    slow = optimizer.state[weight]["lookahead_slow"].clone()
    optimizer.state = optimizer.state
    assert torch.equal(optimizer.state[weight]["lookahead_slow"], slow)
    del optimizer.state[weight]
    assert weight not in base.state
    assert weight not in optimizer.state


def test_a_model_converted_inside_slow_weights_gets_its_fast_weights_back():
    model = net(torch.float32)
    optimizer = lb.Lookahead(sgd(model), k=3)
    optimizer.step(closure_for(model, batch(dtype=torch.float32)))
    fast = values(model)
    with optimizer.slow_weights():
        model.double()
        model.float()
    assert same(values(model), fast)


def test_a_copy_made_inside_slow_weights_can_step():
    model = net()
    optimizer = lb.Lookahead(sgd(model), k=3)
    train(optimizer, model, range(1))
    with optimizer.slow_weights():
        twin_model, twin = copy.deepcopy((model, optimizer))
    train(twin, twin_model, range(1))
    assert twin.phase == 2


def test_lookahead_lets_go_of_parameters_that_were_removed():
    model = net()
    optimizer = lb.Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), k=1, momentum="interpolate")
    train(optimizer, model, range(2))
    removed = optimizer.param_groups[0]["params"].pop()
    train(optimizer, model, range(2))
    assert all(removed not in kept for kept in optimizer._slow.values())


def test_slow_momenta_keep_the_type_of_the_momenta():
    class Wide(torch.optim.SGD):
        """Keeps its momentum in float32, as some optimizers do for half-precision weights."""

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                moment = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p, dtype=torch.float32))
                p.add_(moment.mul_(0.9).add_(p.grad), alpha=-0.1)

        def load_state_dict(self, state_dict):
            super().load_state_dict(state_dict)
            for entry in self.state.values():
                entry["momentum_buffer"] = entry["momentum_buffer"].float()

    def run(resume):
        weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = lb.Lookahead(Wide([weight], lr=0.1), k=2, momentum="interpolate")
        for step in range(4):
            if step == resume:
                state, optimizer = (
                    optimizer.state_dict(),
                    lb.Lookahead(Wide([weight], lr=0.1), k=2, momentum="interpolate"),
                )
                optimizer.load_state_dict(copy.deepcopy(state))
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        return weight.detach(), optimizer.state[weight]["lookahead_momentum_buffer"]

    (expected, _), (found, moment) = run(resume=None), run(resume=2)
    assert torch.equal(found, expected)
    assert moment.dtype == torch.float32


def test_an_older_state_that_lacks_a_setting_loads_without_a_word(recwarn):
    state = lb.SAM(sgd(net())).state_dict()
    del state["sharpness_aware"]["settings"]["rng"]
    lb.SAM(sgd(net())).load_state_dict(state)
    assert not recwarn.list


def test_a_state_for_more_parameters_is_refused_by_the_base():
    model = net()
    optimizer = lb.Lookahead(torch.optim.SGD(model.parameters(), lr=0.1), k=3)
    train(optimizer, model, range(1))
    fewer = lb.Lookahead(torch.optim.SGD(list(net().parameters())[:2], lr=0.1), k=3)
    with pytest.raises(ValueError, match="doesn't match the size"):
        fewer.load_state_dict(optimizer.state_dict())
