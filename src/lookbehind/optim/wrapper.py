"""Being a torch Optimizer around another one, so that loading, copying and schedulers keep working."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lookbehind.optim.checks import shown

_REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "it calls the closure itself, as often as it likes, and cannot be given gradients",
    torch.optim.SparseAdam: "sparse gradients are not supported; use nn.Embedding(..., sparse=False) and Adam",
}


def checked_base(base: Any, user: str) -> Optimizer:
    """The base optimizer itself, if it can be wrapped."""
    if not isinstance(base, Optimizer):
        kind = base.__name__ if inspect.isclass(base) and issubclass(base, Optimizer) else "torch.optim.SGD"
        given = base.__name__ if inspect.isclass(base) else shown(base)
        raise TypeError(
            f"{user}(base={given}): give an instance of an optimizer, for example "
            f"{user}({kind}(model.named_parameters(), lr=0.1))"
        )
    for refused, reason in _REFUSED.items():
        if isinstance(base, refused):
            raise TypeError(f"{user}(base={refused.__name__}): {reason}")
    if any(group.get("differentiable") for group in base.param_groups):
        raise TypeError(
            f"{user}(base={type(base).__name__}(differentiable=True)): a step cannot be differentiated here"
        )
    if not any(group["params"] for group in base.param_groups):
        raise ValueError(f"{user}(base={type(base).__name__}): its parameter list is empty; give it the model's")
    return base


class Wrapper(Optimizer):
    """A torch Optimizer whose ``param_groups`` and ``state`` are those of a base optimizer. Abstract."""

    base: Optimizer

    def __init__(self, base: Optimizer) -> None:
        if isinstance(base, Wrapper) and type(self).__name__ in base._wrappers():
            chain = _nested([type(self).__name__, *base._wrappers()])
            raise TypeError(
                f"{chain}: there is a {type(self).__name__} in it already; wrap the innermost optimizer once"
            )
        # not Optimizer.__init__: it would make groups of its own, which drift apart from the base's after a load
        Optimizer.__setstate__(self, {"base": base, "defaults": dict(base.defaults)})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base optimizer's groups."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        """The base optimizer's state."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the base optimizer."""
        self.base.add_param_group(param_group)

    def train(self) -> None:
        """For base optimizers that have a training and an evaluation mode (schedule-free ones)."""
        getattr(self.base, "train", lambda: None)()

    def eval(self) -> None:
        """See ``train``."""
        getattr(self.base, "eval", lambda: None)()

    # --- saving and loading

    def _saved(self) -> dict[str, Any]:
        """What this wrapper adds to the base's state dict, as plain types."""
        raise TypeError(f"{type(self).__name__} is abstract")

    def _check_saved(self, state_dict: dict[str, Any]) -> None:
        """Raise if a state was not saved by an optimizer like this one."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the base optimizer, and beside it which method saved it."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state_dict = {**self._packed(), **self._saved(), "wrappers": self._wrappers()}
        for after in self._optimizer_state_dict_post_hooks.values():
            state_dict = after(self, state_dict) or state_dict
        return state_dict

    def _wrappers(self) -> list[str]:
        """The classes from the outside in."""
        inner = self.base._wrappers() if isinstance(self.base, Wrapper) else [type(self.base).__name__]
        return [type(self).__name__, *inner]

    def _packed(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave, or a plain state of the base optimizer."""
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            held = f"a dict with the keys {list(state_dict)[:5]}" if isinstance(state_dict, dict) else shown(state_dict)
            raise ValueError(f"load_state_dict({held}): give what optimizer.state_dict() returned")
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        saved, mine = state_dict.pop("wrappers", None), self._wrappers()
        if saved is not None and saved != mine:
            raise ValueError(
                f"this state was saved by {_nested(saved)}, here it is {_nested(mine)}. Make the same optimizer, or "
                "load only the base optimizer's part, where that is the same: optimizer.base.load_state_dict(state)"
            )
        self._check_saved(state_dict)
        self._load(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)

    # --- copying

    def __getstate__(self) -> dict[str, Any]:
        # a scheduler puts a ``step`` on the instance that is bound to the original: a copy must not inherit it
        dropped = ("step", "_opt_called")
        return {k: v for k, v in self.__dict__.items() if k not in dropped and not k.startswith("_optimizer_")}

    # --- counters: in the groups, because distributed checkpoints keep nothing but ``state`` and ``param_groups``

    def _counter(self, name: str) -> int:
        return int(self.param_groups[0].get(name, 0))

    def _set_counter(self, name: str, value: int) -> None:
        for group in self.param_groups:
            group[name] = value

    def _run_hooks_around_loop(self, *, before: bool) -> None:
        """What torch does around ``step``, for the loop form, which never calls it."""
        hooks = self._optimizer_step_pre_hooks if before else self._optimizer_step_post_hooks
        for hook in hooks.values():
            if hook(self, (), {}) is not None and before:
                raise RuntimeError(
                    "a step pre-hook replaced the arguments of step(): use step(closure) in place of passes()"
                )
        if not before:
            self._opt_called = True  # a scheduler looks for this


def _nested(wrappers: list[str]) -> str:
    return "(".join(wrappers) + ")" * (len(wrappers) - 1)


def all_parameters(optimizer: Optimizer) -> list[Tensor]:
    """The parameters in the order in which a state dict numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class BaseState:
    """A copy of a base optimizer's state and group settings, to put back if a step fails."""

    def __init__(self, base: Optimizer, except_keys: Iterable[str]) -> None:
        self._base = base
        self._state = {key: _copied(entry) for key, entry in base.state.items()}
        kept_out = {"params", *except_keys}
        self._groups = [{k: _copied(v) for k, v in g.items() if k not in kept_out} for g in base.param_groups]

    def restore(self) -> None:
        """Put everything back; tensors are written in place, new entries removed."""
        state = self._base.state
        for key in [key for key in state if key not in self._state]:
            del state[key]
        for key, entry in self._state.items():
            state[key] = _put_back(state.get(key), entry)
        for group, saved in zip(self._base.param_groups, self._groups, strict=True):
            group.update({k: _put_back(group.get(k), v) for k, v in saved.items()})


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


def _put_back(current: Any, saved: Any) -> Any:
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        return {key: _put_back(current.get(key), inner) for key, inner in saved.items()}
    if isinstance(saved, Tensor) and isinstance(current, Tensor) and current.shape == saved.shape:
        with torch.no_grad():
            return current.copy_(saved)
    return saved
