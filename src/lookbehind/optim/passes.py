"""What a step evaluates: a plain closure, or one of the values below in its place; and the same step as a loop.

A closure zeroes the gradients, runs forward and backward and returns the loss, as for LBFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor

from lookbehind.optim.checks import shown

Loss = Tensor | float
Closure = Callable[[], Any]

HOW_TO_WRITE_A_CLOSURE = """\
    def closure():
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        return loss

    loss = optimizer.step(closure)"""


class InPlaceOfAClosure:
    """What ``step`` takes instead of a closure.

    Callable, because training frameworks insist on that; but only an optimizer of this package can evaluate it.
    """

    def __call__(self) -> NoReturn:
        """Refuse: whoever calls it takes it for a plain closure."""
        raise TypeError(
            f"{type(self).__name__}(...) was called like a plain closure: only the optimizers of lookbehind can "
            "evaluate it; pass it to their step()"
        )


class switching(InPlaceOfAClosure):  # noqa: N801, used like a function
    """A new minibatch per ascent step: the i-th closure gives the ascent gradient of step i and its descent gradient.

    Nothing can be reused, so a step costs ``2k`` evaluations on ``k`` minibatches. A bare list is short for it.

    Examples:
        >>> optimizer.step(switching(closure_1, closure_2))  # k = 2
    """

    def __init__(self, *closures: Closure) -> None:
        if not closures:
            raise ValueError("switching(): give one closure per ascent step")
        self.closures = tuple(_plain(closure, "switching") for closure in closures)


class micro_batches(InPlaceOfAClosure):  # noqa: N801, used like a function
    """m-SAM: every micro-batch climbs its own chain; the i-th gradients are averaged, weighted by micro-batch size.

    Examples:
        >>> optimizer.step(micro_batches((32, closure_a), (32, closure_b)))
    """

    def __init__(self, *sized_closures: tuple[float, Closure | switching]) -> None:
        if not sized_closures:
            raise ValueError("micro_batches(): give at least one pair (size, closure)")
        for pair in sized_closures:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(f"micro_batches({shown(pair)}): give pairs (size, closure)")
        self.sizes = sizes_of([size for size, _ in sized_closures])
        self.closures = tuple(
            closure if isinstance(closure, switching) else _plain(closure, "micro_batches")
            for _, closure in sized_closures
        )


class given(InPlaceOfAClosure):  # noqa: N801, used like a function
    """The first forward and backward have been run already (as training frameworks do): their loss, and the closure.

    The gradients at the weights themselves are expected in ``p.grad``.

    Examples:
        >>> loss = loss_function(model(inputs), targets)
        >>> loss.backward()
        >>> optimizer.step(given(loss, closure))
    """

    def __init__(self, loss: Loss, closure: Closure | switching) -> None:
        if loss is None:
            raise TypeError("given(None, ...): give the loss whose backward() has been called")
        self.loss = loss
        self.closure = closure if isinstance(closure, switching) else _plain(closure, "given")


def _plain(closure: Any, user: str) -> Closure:
    if isinstance(closure, InPlaceOfAClosure):
        raise TypeError(f"{user}({type(closure).__name__}(...)): these two cannot be combined; give a plain closure")
    if not callable(closure):
        raise TypeError(
            f"{user}({shown(closure)}): give a closure, a function without arguments that returns the loss (itself, "
            "not its result; if backward() has been called already: given(loss, closure))"
        )
    return closure  # type: ignore[no-any-return]


def sizes_of(sizes: Sequence[float]) -> tuple[float, ...]:
    """The sizes of micro-batches, if they are such."""
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, Real) or not 0 < size < float("inf"):
            raise ValueError(f"micro-batch size {size!r}: give the number of examples, above 0")
    return tuple(float(size) for size in sizes)


@dataclass(frozen=True)
class Itinerary:
    """The chains of a step: each chain's share of the gradient, and the number of minibatches along it."""

    shares: tuple[float, ...] = (1.0,)
    minibatches: int = 1
    loss: Loss | None = None  # of the first evaluation, where that has been run already

    @property
    def switches(self) -> bool:
        """Does every ascent step have a minibatch of its own?"""
        return self.minibatches > 1

    def evaluations(self, ascents: int) -> int:
        """How many gradients the step computes."""
        return len(self.shares) * (2 * ascents if self.switches else ascents + 1)


@dataclass(frozen=True)
class Pass:
    """One evaluation of the loss and its gradient: the ``point``-th of the climb (0: the weights themselves)."""

    number: int
    point: int
    minibatch: int
    micro_batch: int

    @property
    def climbing(self) -> bool:
        """Is this a perturbed point? Its loss is not the one to log."""
        return self.point > 0


Evaluate = Callable[[Pass], Loss]


def planned(what: Any, ascents: int) -> tuple[Itinerary, Evaluate]:
    """Turn what the user gave to ``step`` into chains and a function that evaluates a pass."""
    if isinstance(what, list | tuple):
        what = switching(*what)
    if isinstance(what, micro_batches):
        whole = sum(what.sizes)
        chains = [_minibatches(closure, ascents) for closure in what.closures]
        if len({len(chain) for chain in chains}) > 1:
            raise ValueError("micro_batches(...): give plain closures for all micro-batches, or switching(...) for all")
        shares = tuple(size / whole for size in what.sizes)
        return Itinerary(shares, len(chains[0])), lambda p: chains[p.micro_batch][p.minibatch]()
    if isinstance(what, given):
        closures = _minibatches(what.closure, ascents)
        return Itinerary((1.0,), len(closures), what.loss), lambda p: closures[p.minibatch]()
    closures = _minibatches(what if isinstance(what, switching) else _plain(what, "step"), ascents)
    return Itinerary((1.0,), len(closures)), lambda p: closures[p.minibatch]()


def _minibatches(closure: Closure | switching, ascents: int) -> tuple[Closure, ...]:
    if not isinstance(closure, switching):
        return (closure,)
    wanted = max(ascents, 1)
    if len(closure.closures) != wanted:
        raise ValueError(
            f"switching(...) with {len(closure.closures)} closures: this step takes {ascents} ascent steps, so give "
            f"{wanted}; optimizer.ascents tells the number for the next step"
        )
    return closure.closures


Walk = Generator[Pass, Loss | None, Loss | None]


@dataclass(frozen=True)
class End:
    """A walk is over: the loss at the weights before the step."""

    loss: Loss | None


def advance(walk: Walk, loss: Loss | None) -> Pass | End:
    """Go on to the next evaluation. Gradient mode is off here and not inside: the user's pass must not inherit it."""
    try:
        with torch.no_grad():
            return walk.send(loss)
    except StopIteration as end:
        return End(end.value)


def abandon(walk: Walk) -> None:
    """End a walk wherever it is; one that is not at its end puts the weights back."""
    with torch.no_grad():
        walk.close()


def drive(walk: Walk, evaluate: Evaluate) -> Loss | None:
    """Run a walk to its end and give what it returns."""
    grad_enabled = torch.is_grad_enabled()
    try:
        request = advance(walk, None)
        while isinstance(request, Pass):
            with torch.enable_grad():
                loss = evaluate(request)
            if loss is None:
                raise TypeError(f"the closure returned None: return the loss at its end\n{HOW_TO_WRITE_A_CLOSURE}")
            request = advance(walk, loss)
        return request.loss
    finally:
        try:
            abandon(walk)
        finally:
            torch.set_grad_enabled(grad_enabled)  # an interrupt at the end of a ``with`` would leave it switched


class Passes:
    """A step as a loop, for people without closures. Each turn runs forward and backward; gradients are zeroed for you.

    Examples:
        >>> with optimizer.passes() as passes:
        ...     for _ in passes:
        ...         loss = loss_function(model(inputs), targets)
        ...         loss.backward()
        ...         passes.report(loss)  # optional: makes the loss known to optimizer.last and to the check for NaN
        >>> passes.loss  # at the unperturbed weights
    """

    def __init__(self, walk: Walk, length: int, leave: Callable[[bool], None]) -> None:
        self.on_leave = [leave]  # called in the end: was the step taken?
        self._walk = walk
        self._length = length
        self._reported: Loss | None = None
        self._done = 0
        self._ended = False
        self._entered = False
        self._grad_enabled = torch.is_grad_enabled()
        self.loss: Loss | None = None

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> Passes:
        self._entered = True
        return self

    def __iter__(self) -> Iterator[Pass]:
        if not self._entered:
            raise RuntimeError(
                "write `with optimizer.passes() as passes: for _ in passes: ...`: the `with` ends the step"
            )
        if self._done or self._ended:
            raise RuntimeError("passes() is one step: call optimizer.passes() again for the next")
        while isinstance(request := advance(self._walk, self._reported), Pass):
            self._reported = None
            yield request
            self._done += 1
        self.loss, self._ended = request.loss, True

    def report(self, loss: Loss) -> None:
        """Make the loss of this pass known."""
        self._reported = loss

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            abandon(self._walk)
        finally:
            torch.set_grad_enabled(self._grad_enabled)  # as in drive
            for leave in self.on_leave:
                leave(self._ended)
        if not self._ended and kind is None:
            raise RuntimeError(
                f"passes() was left after {self._done} of {self._length} passes: the weights are as before the step; "
                "run the loop to its end to take it"
            )


def loop_itinerary(switch: bool, sizes: Sequence[float] | None, ascents: int) -> Itinerary:
    """The chains of a step in loop form."""
    if isinstance(sizes, Real):
        raise TypeError(f"micro_batches={sizes!r}: give the size of each, for example micro_batches=[32, 32]")
    known = sizes_of(list(sizes)) if sizes is not None else (1.0,)
    if not known:
        raise ValueError("micro_batches=[]: give the size of each micro-batch")
    return Itinerary(tuple(size / sum(known) for size in known), max(ascents, 1) if switch else 1)
