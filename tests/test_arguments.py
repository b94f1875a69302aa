"""Bad arguments as a table: an error names the argument, its value and the remedy."""

from __future__ import annotations

import pytest
import torch
from problems import net, sgd

import lookbehind as lb
from lookbehind.optim.ascent import asam
from lookbehind.optim.interpolation import constant

NAN = float("nan")

BAD = [
    (lambda b: lb.SAM(b, rho=-0.1), ValueError, ["rho=-0.1", ">= 0"]),
    (lambda b: lb.SAM(b, rho=NAN), ValueError, ["rho=nan", "finite"]),
    (lambda b: lb.SAM(b, rho=float("inf")), ValueError, ["rho=inf", "finite"]),
    (lambda b: lb.SAM(b, rho="0.1"), TypeError, ["rho='0.1'", "number"]),
    (lambda b: lb.SAM(b, rho=True), TypeError, ["rho=True", "number"]),
    (lambda b: lb.ASAM(b, eta=-1), ValueError, ["eta=-1", ">= 0"]),
    (lambda b: lb.ASAM(b, scale="weights"), ValueError, ["scale='weights'", "'auto'", "function"]),
    (lambda b: lb.ASAM(b, at="fast"), ValueError, ["at='fast'", "'point', 'slow'"]),
    (lambda b: lb.MultistepSAM(b, rho=0.1, k=0), ValueError, ["k=0", ">= 1"]),
    (lambda b: lb.MultistepSAM(b, rho=0.1, k=2, average="all"), ValueError, ["average='all'", "'with-clean'"]),
    (lambda b: lb.LookbehindSAM(b, k=-3), ValueError, ["k=-3", ">= 1"]),
    (lambda b: lb.LookbehindSAM(b, k=2.0), TypeError, ["k=2.0", "integer"]),
    (lambda b: lb.LookbehindSAM(b, k="2"), TypeError, ["k='2'", "integer"]),
    (lambda b: lb.LookbehindSAM(b, k=True), TypeError, ["k=True", "integer"]),
    (lambda b: lb.LookbehindSAM(b, alpha=1.5), ValueError, ["alpha=1.5", "from 0 to 1", '"adaptive"']),
    (lambda b: lb.LookbehindSAM(b, alpha=-1), ValueError, ["alpha=-1", "from 0 to 1"]),
    (lambda b: lb.LookbehindSAM(b, alpha=NAN), ValueError, ["alpha=nan"]),
    (lambda b: lb.LookbehindSAM(b, alpha="cosine"), ValueError, ["alpha='cosine'", "'adaptive-per-tensor'"]),
    (lambda b: lb.LookbehindSAM(b, alpha=None), TypeError, ["alpha=None"]),
    (lambda b: lb.LookbehindASAM(b, rho=-1), ValueError, ["rho=-1"]),
    (lambda b: lb.Lookahead(b, k=0), ValueError, ["k=0"]),
    (lambda b: lb.Lookahead(b, alpha=2), ValueError, ["alpha=2"]),
    (lambda b: lb.Lookahead(b, model="net"), TypeError, ["model='net'", "torch.nn.Module"]),
    (lambda b: lb.Lookahead(b, model=net()), ValueError, ["model=", "none of the parameters"]),
    (lambda b: lb.Lookahead(b, momentum="zero"), ValueError, ["momentum='zero'", "'reset'"]),
    (lambda b: lb.Lookahead(lb.Lookahead(b)), TypeError, ["Lookahead(Lookahead(SGD))", "already"]),
    (lambda b: lb.SAM(lb.SAM(b)), TypeError, ["SharpnessAware(SharpnessAware(SGD))", "already"]),
    (lambda b: lb.Lookahead(lb.SAM(lb.Lookahead(b))), TypeError, ["Lookahead(SharpnessAware(Lookahead(SGD)))"]),
    (lambda b: lb.SAM(torch.optim.SGD(net().parameters(), lr=0.1, differentiable=True)), TypeError, ["differentiable"]),
    (lambda b: lb.SAM(torch.optim.SGD), TypeError, ["give an instance", "SAM(SGD("]),
    (lambda b: lb.LookbehindSAM(torch.optim.Adam), TypeError, ["LookbehindSAM(Adam("]),
    (lambda b: lb.Lookahead(torch.optim.SGD), TypeError, ["give an instance"]),
    (
        lambda b: lb.SAM(net().parameters()),
        TypeError,
        ["instance of an optimizer", "SAM(torch.optim.SGD(model.named_parameters()"],
    ),
    (lambda b: lb.SAM(None), TypeError, ["base=None"]),
    (lambda b: lb.SAM(torch.optim.SGD([{"params": []}], lr=0.1)), ValueError, ["empty"]),
    (lambda b: lb.SAM(torch.optim.LBFGS(net().parameters())), TypeError, ["LBFGS", "closure"]),
    (lambda b: lb.SAM(torch.optim.SparseAdam(net().parameters())), TypeError, ["SparseAdam", "sparse=False"]),
    (lambda b: lb.SAM(b, reach="all"), ValueError, ["reach='all'", "'total'"]),
    (lambda b: lb.SAM(b, batchnorm="first"), ValueError, ["batchnorm='first'", "model="]),
    (lambda b: lb.SAM(b, batchnorm="none"), ValueError, ["batchnorm='none'"]),
    (lambda b: lb.SAM(b, model=b), TypeError, ["model=", "torch.nn.Module"]),
    (lambda b: lb.SAM(b, rng="same"), ValueError, ["rng='same'", "'replay'"]),
    (lambda b: lb.SAM(b, nonfinite="ignore"), ValueError, ["nonfinite='ignore'", "'propagate'"]),
    (lambda b: lb.SAM(b, restore="state"), ValueError, ["restore='state'", "'all'"]),
    (lambda b: lb.SAM(b, cosine="yes"), ValueError, ["cosine='yes'"]),
    (lambda b: lb.SAM(b, schedule=5), TypeError, ["schedule=5", "Schedule("]),
    (lambda b: lb.SharpnessAware(b, descent="each"), TypeError, ["descent='each'", "lookbehind.optim.descent"]),
    (lambda b: lb.SharpnessAware(b, descent=lambda k: []), ValueError, ["gave the plan []", "for k=1"]),
    (lambda b: lb.SharpnessAware(b, k=2, descent=lambda k: [{3: 1.0}]), ValueError, ["{3: 1.0}", "0..2"]),
    (lambda b: lb.SharpnessAware(b, ascent=None), TypeError, ["ascent=None"]),
    (lambda b: lb.SharpnessAware(b, ascent=asam), TypeError, ["ascent=asam", "asam(...)"]),
    (lambda b: lb.SAM(b, model=net()), ValueError, ["model=", "none of the parameters"]),
    (lambda b: lb.SAM(b, 0.05), TypeError, ["SAM(base, 0.05)", "by name"]),
    (lambda b: lb.SAM(net().parameters(), torch.optim.SGD, lr=0.1), TypeError, ["instance and the rest by name"]),
    (
        lambda b: lb.LookbehindSAM(b, batch_norm="all"),
        TypeError,
        ["LookbehindSAM(batch_norm=", "did you mean batchnorm"],
    ),
    (lambda b: lb.Schedule(start=5, stop=3), ValueError, ["stop=3", "start=5"]),
    (lambda b: lb.given(None, print), TypeError, ["given(None"]),
    (lambda b: lb.SAM(b).passes(micro_batches=2), TypeError, ["micro_batches=2", "[32, 32]"]),
    (lambda b: lb.SAM(b).load_state_dict(net().state_dict()), ValueError, ["0.weight", "optimizer.state_dict()"]),
    (lambda b: lb.SAM(b).load_state_dict("file.pt"), ValueError, ["'file.pt'", "optimizer.state_dict()"]),
    (lambda b: lb.Schedule(start=-1), ValueError, ["start=-1"]),
    (lambda b: lb.Schedule(every=0), ValueError, ["every=0"]),
    (lambda b: lb.Schedule(stop=1.5), TypeError, ["stop=1.5"]),
    (lambda b: lb.Schedule(k=3), TypeError, ["k=3", "function of the step"]),
    (lambda b: lb.Schedule(rho=lambda step: NAN).factor(4), ValueError, ["schedule.rho(4)=nan"]),
    (lambda b: lb.Schedule(k=lambda step: -1).steps(4, 1), ValueError, ["schedule.k(4)=-1"]),
    (lambda b: lb.piecewise({5: 1}), ValueError, ["from step 0"]),
    (lambda b: lb.linear(0, 1, steps=0), ValueError, ["steps=0"]),
    (lambda b: asam(eta=NAN), ValueError, ["eta=nan"]),
    (lambda b: constant(7), ValueError, ["alpha=7"]),
]


@pytest.mark.parametrize(("make", "error", "words"), BAD, ids=[words[0] for _, _, words in BAD])
def test_a_bad_argument_is_named_with_the_remedy(make, error, words):
    with pytest.raises(error) as caught:
        make(sgd(net()))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_large_value_is_not_printed_in_full():
    with pytest.raises(TypeError, match=r"rho=<Tensor of shape \(100,\)>"):
        lb.SAM(sgd(net()), rho=torch.zeros(100))
