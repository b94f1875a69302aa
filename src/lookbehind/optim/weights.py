"""Lists of tensors, one per parameter: their norms and products, and scratch memory for them.

A *vector* here is a list with one tensor per parameter. Three of them exist inside a step: ``slow`` (the weights
before the step), ``point`` (where a gradient is evaluated) and ``fast`` (what the base optimizer moves).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Vector = list[Tensor]
Room = Callable[[Tensor], Tensor]  # gives scratch memory like a tensor, valid until it is asked again


# most tensors by far: looked at first, and a list at a time, as small networks notice every microsecond
PLAIN = frozenset((Tensor, torch.nn.Parameter))
COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))
WIDE = frozenset((torch.float64, torch.complex128))


def is_sharded(tensor: Tensor) -> bool:
    """Is this a DTensor? Looked up in ``sys.modules``: importing the package would take a second."""
    if type(tensor) in PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def real(tensor: Tensor) -> Tensor:
    """A tensor's numbers in this process: detached, the local shard of a DTensor, complex ones as pairs of reals."""
    if type(tensor) is not Tensor or tensor.requires_grad:
        tensor = tensor.detach()
        if is_sharded(tensor):
            tensor = tensor.to_local()  # type: ignore[attr-defined]
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _plain_and_real(tensors: Sequence[Tensor]) -> bool:
    return {type(t) for t in tensors} <= PLAIN and not {t.dtype for t in tensors} & COMPLEX


def reals(tensors: Sequence[Tensor]) -> Vector:
    """``real`` of each, without a call for each where none needs it."""
    if not _plain_and_real(tensors):
        return [real(t) for t in tensors]
    return [t if type(t) is Tensor and not t.requires_grad else t.detach() for t in tensors]


def on(device: torch.device, tensor: Tensor) -> Tensor:
    """The tensor on a device, without waiting where that is safe: the host must not read a copy before it is there."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=device.type != "cpu")


def wide(*tensors: Tensor) -> torch.dtype:
    """The type that sums are accumulated in: an fp16 norm overflows at 65504, and SAM would silently stop."""
    return torch.float64 if {t.dtype for t in tensors} & WIDE else torch.float32


def widened(tensor: Tensor) -> Tensor:
    """The tensor itself, or a float32 copy of a half-precision one."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of two tensors of one shape, summed in float32 or wider."""
    a, b = widened(a), widened(b)
    if a.stride() == b.stride() and not a.is_contiguous() and is_dense(a):  # channels-last: as it lies in memory
        a, b = (t.as_strided((t.numel(),), (1,)) for t in (a, b))
    return torch.dot(a.flatten(), b.flatten())


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The Euclidean norm of each tensor (of the local shard, for a DTensor)."""
    if not tensors:
        return []
    return list(torch._foreach_norm(reals(tensors), 2, dtype=wide(*tensors)))


def total(parts: Sequence[Tensor], owners: Sequence[Tensor]) -> Tensor:
    """The sum of 0-dimensional tensors, each computed from the local part of its owner, over all devices and ranks."""
    if not parts:
        return torch.zeros(())
    device = parts[0].device
    plain = [part for part, owner in zip(parts, owners, strict=True) if not is_sharded(owner)]
    sums = [torch.stack([on(device, part) for part in plain]).sum()] if plain else []
    sharded: dict[object, tuple[list[Tensor], Tensor]] = {}
    for part, owner in zip(parts, owners, strict=True):
        if is_sharded(owner):
            key = (owner.device_mesh, tuple(owner.placements))  # type: ignore[attr-defined]
            sharded.setdefault(key, ([], owner))[0].append(part)
    for members, owner in sharded.values():
        sums.append(on(device, _sum_over_ranks(torch.stack(members).sum(), owner)))
    return torch.stack(sums).sum()


def _sum_over_ranks(part: Tensor, owner: Tensor) -> Tensor:
    distributed = sys.modules["torch.distributed.tensor"]
    placements = [p if p.is_replicate() else distributed.Partial() for p in owner.placements]  # type: ignore[attr-defined]
    whole: Tensor = distributed.DTensor.from_local(part, owner.device_mesh, placements).full_tensor()  # type: ignore[attr-defined]
    return whole


def total_norm(parts: Sequence[Tensor], owners: Sequence[Tensor]) -> Tensor:
    """The norm of the whole vector from the norms of its tensors."""
    if not parts or (not {type(owner) for owner in owners} <= PLAIN and any(map(is_sharded, owners))):
        return total([part.square() for part in parts], owners).sqrt()
    if len({part.device for part in parts}) > 1:
        parts = [on(parts[0].device, part) for part in parts]
    # not the root of a sum of squares: the norm of norms keeps one tensor's norm bit for bit
    norm: Tensor = torch.linalg.vector_norm(torch.stack(tuple(parts)))
    return norm


ALONE = 2  # references to a storage that only one tensor uses: the tensor's, and that of the object we ask through


class Scratch:
    """Parameter-sized buffers that are kept between steps, since fresh memory costs page faults.

    Buffers are not state: nothing reads one before writing it, and they are never saved.
    """

    def __init__(self) -> None:
        self._vectors: list[Vector] = []
        self._parameters: list[Tensor] = []
        self._taken = 0
        self._temporaries: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}
        self._shaped: dict[tuple[object, ...], Tensor] = {}  # views of the above, by what they are like

    def open(self, parameters: Sequence[Tensor]) -> None:
        """Begin a step: every buffer is free again; buffers that do not fit the parameters are dropped."""
        self._taken = 0
        self._parameters = list(parameters)
        for vector in self._vectors[:1]:
            if len(vector) != len(self._parameters) or not all(map(_fits, vector, self._parameters)):
                self._vectors.clear()
                self._shaped.clear()  # of shapes that may never come again
        # whoever kept a buffer (a base optimizer its gradient, a closure a state dict) may have it
        if any(references(real(b).untyped_storage()) > ALONE for vector in self._vectors for b in vector):
            self._vectors.clear()

    def take(self) -> Vector:
        """One more vector of uninitialised buffers."""
        if self._taken == len(self._vectors):
            self._vectors.append([torch.empty_like(p.detach()) for p in self._parameters])
        self._taken += 1
        return list(self._vectors[self._taken - 1])

    def temporary(self, like: Tensor, number: int = 0) -> Tensor:
        """A buffer for one tensor, valid until the next call with the same number."""
        key = (like.dtype, like.device, like.shape, like.stride(), number)
        shaped = self._shaped.get(key)
        if shaped is None:
            shaped = self._shaped[key] = self._view_like(like, number)
        return shaped

    def _view_like(self, like: Tensor, number: int) -> Tensor:
        key = (like.dtype, like.device, number)
        flat = self._temporaries.get(key)
        if flat is None or flat.numel() < like.numel():
            flat = self._temporaries[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
            self._shaped.clear()  # they would keep the smaller memory alive
        dense = is_dense(like)
        return flat.as_strided(like.size(), like.stride()) if dense else flat[: like.numel()].view(like.size())

    def free(self) -> None:
        """Let all buffers go."""
        self._vectors.clear()
        self._temporaries.clear()
        self._shaped.clear()
        self._parameters = []


def _fits(buffer: Tensor, parameter: Tensor) -> bool:
    kind = Tensor if type(parameter) in PLAIN else type(parameter.detach())
    return (
        type(buffer) is kind
        and buffer.shape == parameter.shape
        and buffer.dtype is parameter.dtype
        and buffer.device == parameter.device
        and (buffer.stride() == parameter.stride() or not is_dense(parameter))
        and (kind is Tensor or getattr(buffer, "placements", None) == getattr(parameter, "placements", None))
    )


def is_dense(tensor: Tensor) -> bool:
    """Do the elements fill their memory without gaps or overlap, in whatever order of dimensions?"""
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return True  # nearly all are; what follows takes 30 times as long
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def overlapping(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Two tensors that have elements of the same memory, if there are any (dense ones; others are not looked into)."""
    if not _plain_and_real(tensors):
        tensors = reals(tensors)  # the others need not be detached, which costs more
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) == len(storages):
        return None
    by_storage: dict[int, list[tuple[int, Tensor]]] = {}
    for number, (storage, tensor) in enumerate(zip(storages, tensors, strict=True)):
        by_storage.setdefault(storage, []).append((number, tensor))
    for members in by_storage.values():
        if len(members) == 1:
            continue
        dense = [(n, t.storage_offset(), t.numel()) for n, t in members if t.numel() and is_dense(t)]
        spans = sorted((start, start + size, n) for n, start, size in dense)
        for (_, end, first), (start, _, second) in pairwise(spans):
            if start < end:
                return min(first, second), max(first, second)
    return None


def references(storage: torch.UntypedStorage) -> int:
    """A further reference is a view or a tied tensor, which would go on showing the old values."""
    return int(torch._C._storage_Use_Count(storage._cdata))
