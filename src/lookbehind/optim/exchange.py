"""The exchange of the weights that the parameters show inside a step, and where those wait that they do not show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lookbehind.optim.weights import ALONE, COMPLEX, PLAIN, Scratch, Vector, is_dense, real, reals, references


def aside(tensor: Tensor) -> Tensor:
    """A copy that waits in the CPU's memory; pinned if it comes from CUDA, so that the way there is not waited for.

    The host must not read it before the device is done.
    """
    waiting = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return waiting.copy_(tensor, non_blocking=tensor.is_cuda)


class Returning(Sequence[Tensor]):
    """A vector that waits in the CPU's memory: each tensor comes back to its device when it is read, one at a time."""

    def __init__(self, waiting: Vector, devices: Sequence[torch.device]) -> None:
        self._waiting = waiting
        self._devices = devices

    def __len__(self) -> int:
        return len(self._waiting)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Returning(self._waiting[index], self._devices[index])
        device = self._devices[index]
        return self._waiting[index].to(device, non_blocking=device.type == "cuda")


class Exchange:
    """Lets the parameters show one of the vectors ``slow``, ``point`` and ``fast`` at a time.

    Where a parameter fills a storage of its own in CPU memory, showing a vector means pointing the parameter at
    another storage, which costs nothing. Everywhere else (CUDA, DTensor, shared memory, views and aliases) values are
    copied in place; so they are with ``offload``, where ``slow`` waits in the CPU's memory. Either way ``slow`` is
    never written but by ``move_slow``, so that ``home`` puts the weights back bit for bit at any time until
    ``release``, also when an interrupt came amid an exchange.
    """

    def __init__(self, parameters: Sequence[Tensor], scratch: Scratch, *, offload: bool = False) -> None:
        self.parameters = list(parameters)
        self.offload = offload
        self.point: Vector = []
        self.held = False
        self.point_is_over = False  # no more gradient will be evaluated: the memory of ``point`` is free
        self._scratch = scratch
        self._slow: Vector = []
        self._before: Vector = []  # the slow weights that the step began with
        self._homes: Vector = []  # what the parameters point at outside the step
        self._views: Vector = []  # its numbers
        self._lends: list[bool] = []
        self._shown: Vector = []
        self._versions: list[int] = []

    def hold(self) -> None:
        """Put ``slow`` aside and make room for ``point``: one vector of buffers for both."""
        self._lends = [not self.offload and _fills_a_storage_of_its_own(p) for p in self.parameters]
        self._homes = [p.data for p in self.parameters]
        self._views = reals(self._homes)
        if self.offload:
            slow, self.point = [aside(view) for view in self._views], list(self._views)
        else:
            slow, self.point = [], []
            for lends, view, buffer in zip(self._lends, self._views, reals(self._scratch.take()), strict=True):
                slow.append(view if lends else buffer.copy_(view))
                self.point.append(buffer if lends else view)
        self._shown = self.point  # where values are copied in place, ``point`` lives in the parameters at first
        self._versions = [t._version for t in slow]
        self._slow = self._before = slow
        self.held = True

    @property
    def slow(self) -> Sequence[Tensor]:
        """The weights before the step, on their devices."""
        return Returning(self._slow, [view.device for view in self._views]) if self.offload else self._slow

    @property
    def start(self) -> Vector:
        """Where a climb begins: the memory that the parameters have outside the step, with the slow weights in it."""
        return self._views

    @property
    def room(self) -> list[Tensor | None]:
        """The memory of ``point`` before the first ascent step writes it, where a climb does not begin in it."""
        return [point if lends else None for point, lends in zip(self.point, self._lends, strict=True)]

    @property
    def moved(self) -> bool:
        """Have the slow weights been moved, that is, is the step taken?"""
        written = (t._version != v for t, v in zip(self._before, self._versions, strict=True))
        return self.held and (self._slow is not self._before or any(written))

    def start_fast(self) -> Vector:
        """The fast weights, equal to the slow ones; in ``point``'s place once no more gradient is to be evaluated."""
        fast = self.point if self.point_is_over else reals(self._scratch.take())
        torch._foreach_copy_(fast, self._slow, non_blocking=fast[0].is_cuda)
        return fast

    def show(self, vector: Vector) -> None:
        """Let the parameters have the values of ``vector`` (``point`` or ``fast``)."""
        for i, (parameter, lends) in enumerate(zip(self.parameters, self._lends, strict=True)):
            if lends:
                parameter.data = vector[i]
            elif vector is not self._shown:
                view, other = self._views[i], vector[i]
                kept = view.clone()
                view.copy_(other)
                other.copy_(kept)
                self._shown[i], vector[i] = other, view
        self._shown = vector

    def settle(self) -> None:
        """Take over the values where a forward pass or an optimizer put another tensor in a parameter's place."""
        for i, (parameter, place) in enumerate(zip(self.parameters, self._shown, strict=True)):
            if _address(parameter) != place.data_ptr():
                place.copy_(real(parameter))
                parameter.data = place if self._lends[i] else self._homes[i]

    def move_slow(self, fast: Vector, alpha: float | Sequence[Tensor]) -> None:
        """Set slow to slow + alpha (fast - slow), all at once: an interrupt finds either none or all of it done."""
        # in a model of several types all alphas are of the widest, and torch 2.6 wants each weight's own
        fractions = alpha if isinstance(alpha, float) else [a.to(f.dtype) for a, f in zip(alpha, fast, strict=True)]
        if not self.offload:
            torch._foreach_lerp_(self._slow, fast, fractions)
            return
        slow = self.slow
        for i, moved in enumerate(fast):
            torch.lerp(slow[i], moved, fractions if isinstance(fractions, float) else fractions[i], out=moved)
        self._slow = fast

    def home(self) -> None:
        """Let the parameters have the slow weights again, in the storage they had before the step."""
        if not self.held:
            return
        for i, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            if not self._lends[i]:
                view.copy_(self._slow[i], non_blocking=view.is_cuda)
            if _address(parameter) != view.data_ptr():
                parameter.data = self._homes[i]

    def release(self) -> None:
        """Give the weights back for good: from here on the base optimizer moves them as it would alone."""
        self.home()
        self.held = False


def _address(parameter: Tensor) -> int:
    return (parameter if type(parameter) in PLAIN else real(parameter)).data_ptr()


def _fills_a_storage_of_its_own(parameter: Tensor) -> bool:
    """May the parameter be pointed at another storage, without anyone noticing?"""
    if type(parameter) not in PLAIN or not parameter.is_cpu:
        return False
    if parameter.layout is not torch.strided or parameter.dtype in COMPLEX:
        return False
    storage = parameter.untyped_storage()
    if storage.is_shared() or not storage.resizable():  # memory that came from elsewhere: NumPy, a mapped file
        return False
    if storage.nbytes() != parameter.nbytes or not (parameter.is_contiguous() or is_dense(parameter)):
        return False
    return references(storage) == ALONE
