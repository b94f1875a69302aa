"""Lookahead's slow weights in the state of its base optimizer, for those who read and save it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

PREFIX = "lookahead_"


class JoinedState(MutableMapping[Any, Any]):
    """A base optimizer's state and the slow weights as one mapping.

    They are kept apart, since optimizers such as Adam take a parameter with an entry for one that they have met.
    """

    def __init__(self, base: MutableMapping[Any, Any], slow: dict[str, dict[Tensor, Tensor]]) -> None:
        self._base = base
        self._slow = slow

    def __getitem__(self, key: Any) -> Any:
        ours = {PREFIX + name: tensors[key] for name, tensors in self._slow.items() if key in tensors}
        if not ours:
            return self._base[key]
        return ChainMap(self._base.get(key, {}), ours)  # writes go to the base's entry

    def __contains__(self, key: object) -> bool:
        return key in self._base or any(key in tensors for tensors in self._slow.values())

    def get(self, key: Any, default: Any = None) -> Any:
        """Without making an entry, as a dict would."""
        return self[key] if self.__contains__(key) else default

    def __setitem__(self, key: Any, entry: Any) -> None:
        ours, rest = split(entry)
        for name, tensor in ours.items():
            self._slow.setdefault(name, {})[key] = tensor
        if rest or not ours:
            self._base[key] = rest

    def __delitem__(self, key: Any) -> None:
        self._base.pop(key, None)
        for tensors in self._slow.values():
            tensors.pop(key, None)

    def __iter__(self) -> Iterator[Any]:
        yield from dict.fromkeys([*self._base, *(key for tensors in self._slow.values() for key in tensors)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def split(entry: Any) -> tuple[dict[str, Tensor], Any]:
    """An entry's slow tensors, and the base optimizer's own part of it."""
    if not isinstance(entry, Mapping):
        return {}, entry
    ours = {k[len(PREFIX) :]: v for k, v in entry.items() if str(k).startswith(PREFIX)}
    return ours, {k: v for k, v in entry.items() if not str(k).startswith(PREFIX)}
