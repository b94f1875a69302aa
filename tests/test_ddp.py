"""DistributedDataParallel over two ranks: climbing together equals one process, climbing apart equals micro-batches."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from problems import METHODS, batch, closure_for, distance, loss_of, net, same, sgd, values
from ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lookbehind as lb
from lookbehind.optim.ranks import average_over_ranks

OPTIONS = {
    "sam": lambda base, **o: lb.SAM(base, rho=0.1, **o),
    "asam": lambda base, **o: lb.ASAM(base, rho=0.5, **o),
    "multistep": lambda base, **o: lb.MultistepSAM(base, rho=0.1, k=3, **o),
    "multistep-mean": lambda base, **o: lb.MultistepSAM(base, rho=0.1, k=3, average=True, **o),
    "lookbehind": lambda base, **o: lb.LookbehindSAM(base, rho=0.1, k=3, alpha=0.5, **o),
    "adaptive": lambda base, **o: lb.LookbehindASAM(base, rho=0.5, k=3, alpha="adaptive", **o),
    "lookahead-lookbehind": lambda base, **o: lb.Lookahead(lb.LookbehindSAM(base, rho=0.1, k=2, **o), k=2, alpha=0.5),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pair = Ranks(2, str(tmp_path_factory.mktemp("ranks") / "init"))
    yield pair
    pair.stop()


def mine(rank, data):
    """This rank's half of a minibatch."""
    return data[0][6 * rank : 6 * rank + 6], data[1][6 * rank : 6 * rank + 6]


def together(rank, method, bucket_view):
    model = net(batchnorm=False)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    optimizer = METHODS[method](sgd(model))
    for step in range(4):
        optimizer.step(closure_for(parallel, mine(rank, batch(step))))
        parallel.zero_grad()
    return values(model)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bucket_view", [False, True])
def test_ranks_that_climb_together_equal_one_process_on_the_whole_batch(ranks, method, bucket_view):
    one, two = ranks.run(together, method, bucket_view)
    assert same(one, two)
    model = net(batchnorm=False)
    optimizer = METHODS[method](sgd(model))
    for step in range(4):
        optimizer.step(closure_for(model, batch(step)))
        model.zero_grad()
    assert distance(one, values(model)) < 1e-13


def apart(rank, method):
    model = net(batchnorm=False)
    parallel = DistributedDataParallel(model)
    optimizer = OPTIONS[method](sgd(model), model=parallel, ranks="apart")
    for step in range(4):
        optimizer.step(closure_for(parallel, mine(rank, batch(step))))
    return values(model)


@pytest.mark.parametrize("method", OPTIONS)
def test_ranks_that_climb_apart_equal_micro_batches_of_one_process(ranks, method):
    one, two = ranks.run(apart, method)
    assert same(one, two)
    model, climbing_together = net(batchnorm=False), net(batchnorm=False)
    optimizer, other = OPTIONS[method](sgd(model)), OPTIONS[method](sgd(climbing_together))
    for step in range(4):
        parts = [(6, closure_for(model, mine(rank, batch(step)))) for rank in range(2)]
        optimizer.step(lb.micro_batches(*parts))
        other.step(closure_for(climbing_together, batch(step)))
    assert distance(one, values(model)) < 1e-13
    assert distance(one, values(climbing_together)) > 1e-6


def all_reduces(rank, method, way, accumulate):
    """How many all-reduces of gradients a step needs."""
    model = net(batchnorm=False)
    parallel = DistributedDataParallel(model)
    counted = []

    def hook(state, bucket):
        counted.append(bucket.buffer().numel())
        return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])

    parallel.register_comm_hook(None, hook)
    original = dist.all_reduce

    def ours(tensor, *args, **kwargs):
        if not kwargs.get("async_op"):
            counted.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    options = {"model": parallel, "ranks": way}
    optimizer = OPTIONS[method](sgd(model), **options)
    data = mine(rank, batch(0))
    closure = closure_for(parallel, data)
    if accumulate:
        parts = [(data[0][:3], data[1][:3]), (data[0][3:], data[1][3:])]
        closure = lb.accumulated(lambda part: loss_of(parallel, part), parts, model=parallel)
    dist.all_reduce = ours
    try:
        optimizer.step(closure)
    finally:
        dist.all_reduce = original
    return counted


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("method", "way", "expected"),
    [
        ("sam", "together", 2),
        ("sam", "apart", 1),
        ("multistep-mean", "together", 4),
        ("multistep-mean", "apart", 1),
        ("lookbehind", "together", 4),
        ("lookbehind", "apart", 3),
    ],
)
def test_so_many_all_reduces_per_step(ranks, method, way, expected, accumulate):
    size = sum(p.numel() for p in net(batchnorm=False).parameters())
    for counted in ranks.run(all_reduces, method, way, accumulate):
        assert len(counted) == expected
        assert all(size <= elements <= size + 5 for elements in counted)  # apart: who has a gradient, beside it


def with_nan(rank, method, way, nonfinite, evaluation, what):
    model = net(batchnorm=False)
    parallel = DistributedDataParallel(model)
    optimizer = OPTIONS[method](sgd(model), model=parallel, ranks=way, nonfinite=nonfinite)
    data, calls = mine(rank, batch(0)), []

    def closure():
        loss = closure_for_scaled(parallel, data, len(calls) == evaluation and rank == 1 and what == "gradient")
        calls.append(1)
        bad = len(calls) - 1 == evaluation and rank == 1 and what == "loss"
        return loss * float("nan") if bad else loss

    before = values(model)
    try:
        optimizer.step(closure)
        outcome = "skipped" if optimizer.last.skipped else "taken"
    except lb.NonFiniteError:
        outcome = "raised"
    return outcome, same(before, values(model)), [bool(torch.isfinite(p).all()) for p in model.parameters()]


def closure_for_scaled(model, data, bad):
    model.zero_grad()
    loss = loss_of(model, data)
    (loss * float("nan") if bad else loss).backward()
    return loss.detach()


@pytest.mark.parametrize("way", ["together", "apart"])
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("evaluation", [0, 2])
def test_a_nan_on_one_rank_is_decided_alike_on_all(ranks, way, nonfinite, evaluation):
    found = ranks.run(with_nan, "lookbehind", way, nonfinite, evaluation, "gradient")
    outcome = {"raise": "raised", "skip": "skipped"}[nonfinite]
    assert [one[:2] for one in found] == [(outcome, True)] * 2
    # a loss is each rank's own: it must not decide for one of them alone
    found = ranks.run(with_nan, "lookbehind", way, nonfinite, evaluation, "loss")
    assert [one[0] for one in found] == ["taken"] * 2
    assert all(all(finite) for _, _, finite in found)


def with_overflow(rank, way):
    model = net(torch.float32, batchnorm=False)
    parallel = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = OPTIONS["lookbehind"](sgd(model), model=parallel, ranks=way, scaler=scaler)
    data, calls = mine(rank, batch(0, dtype=torch.float32)), []

    def closure():
        calls.append(1)
        parallel.zero_grad()
        loss = loss_of(parallel, data)
        scaler.scale(loss * (float("inf") if len(calls) == 2 and rank == 1 else 1.0)).backward()
        return loss

    before = values(model)
    optimizer.step(closure)
    kept = same(before, values(model))
    optimizer.step(closure)
    return kept, scaler.get_scale(), optimizer.skipped, values(model)


@pytest.mark.parametrize("way", ["together", "apart"])
def test_an_overflow_on_one_rank_lowers_the_scale_of_all(ranks, way):
    (kept, scale, skipped, one), (also_kept, other_scale, _, two) = ranks.run(with_overflow, way)
    assert kept
    assert also_kept
    assert scale == other_scale == 512.0
    assert skipped == 1
    assert same(one, two)


def with_hidden_overflow(rank):
    """In a layer that does not climb, whose gradient at the first point nobody uses."""
    model = net(torch.float32, batchnorm=False)
    parallel = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    groups = [{"params": model[0].parameters()}, {"params": model[3].parameters(), "ascent_rho": 0.0}]
    optimizer = lb.SAM(torch.optim.SGD(groups, lr=0.1), rho=0.1, model=parallel, ranks="apart", scaler=scaler)
    data, calls, before = mine(rank, batch(0, dtype=torch.float32)), [], values(model)

    def closure():
        calls.append(1)
        parallel.zero_grad()
        loss = loss_of(parallel, data)
        scaler.scale(loss).backward()
        if rank == 0 and len(calls) == 1:
            model[3].weight.grad[0, 0] = float("inf")
        return loss

    optimizer.step(closure)
    return optimizer.last.skipped, scaler.get_scale(), same(before, values(model))


def test_an_overflow_that_no_descent_sees_is_told_too(ranks):
    assert ranks.run(with_hidden_overflow) == [(True, 2.0, True)] * 2


class Branches(nn.Module):
    """Each rank uses a branch of its own; a third is used by nobody."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(6, 4).double()
        self.branches = nn.ModuleList(nn.Linear(4, 3).double() for _ in range(3))

    def forward(self, inputs, branch):
        return self.branches[branch](torch.tanh(self.trunk(inputs)))


def with_branches(rank):
    model = Branches()
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    base = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    optimizer = lb.SAM(base, rho=0.1, model=parallel, ranks="apart")
    for step in range(2):
        inputs, targets = mine(rank, batch(step))

        def closure(inputs=inputs, targets=targets):
            parallel.zero_grad()
            loss = nn.functional.cross_entropy(parallel(inputs, rank), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return values(model)


def test_parameters_that_only_some_ranks_use(ranks):
    one, two = ranks.run(with_branches)
    assert same(one, two)
    model = Branches()
    base = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    optimizer = lb.SAM(base, rho=0.1)
    untouched = model.branches[2].weight.detach().clone()
    for step in range(2):

        def closure(rank, step=step):
            def evaluate():
                model.zero_grad()
                inputs, targets = mine(rank, batch(step))
                loss = nn.functional.cross_entropy(model(inputs, rank), targets)
                loss.backward()
                return loss

            return evaluate

        optimizer.step(lb.micro_batches((6, closure(0)), (6, closure(1))))
    assert distance(one, values(model)) < 1e-13
    assert torch.equal(one[6], untouched)  # no gradient, so no weight decay either


def counted_batches(rank, how):
    model = net()
    parallel = DistributedDataParallel(model)
    optimizer = lb.LookbehindSAM(sgd(model), k=3, model=parallel, batchnorm=how)
    for step in range(2):
        optimizer.step(closure_for(parallel, mine(rank, batch(step))))
    return int(model[1].num_batches_tracked)


def test_batchnorm_is_counted_once_per_step_or_in_all_passes(ranks):
    assert ranks.run(counted_batches, "first") == [2, 2]
    assert ranks.run(counted_batches, "all") == [8, 8]


def static_graph(rank):
    model = net(batchnorm=False)
    try:
        lb.SAM(sgd(model), ranks="apart", model=DistributedDataParallel(model, static_graph=True))
    except ValueError as error:
        return str(error)
    return ""


def test_a_static_graph_cannot_climb_apart(ranks):
    assert all("static_graph=True" in words for words in ranks.run(static_graph))


def test_what_cannot_climb_apart_is_refused():
    with pytest.raises(ValueError, match="give model=, the DistributedDataParallel model"):
        lb.SAM(sgd(net()), ranks="apart")
    with pytest.raises(ValueError, match="choose one of 'together', 'apart'"):
        lb.SAM(sgd(net()), ranks="alone")


def complex_means(rank):
    everywhere, on_one = (nn.Parameter(torch.zeros(2, dtype=torch.complex128)) for _ in range(2))
    everywhere.grad = (rank + 1) * torch.tensor([1 + 2j, 4j], dtype=torch.complex128)
    on_one.grad = torch.tensor([2 + 0j, 6j], dtype=torch.complex128) if rank else None
    told = average_over_ranks([everywhere, on_one], None, torch.tensor(float(rank)))
    return everywhere.grad.tolist(), on_one.grad.tolist(), float(told)


def test_complex_gradients_are_averaged_too(ranks):
    assert ranks.run(complex_means) == [([1.5 + 3j, 6j], [1 + 0j, 3j], 0.5)] * 2
