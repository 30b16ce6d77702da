"""What hangs on an optimizer or a schedule besides what its state dict gives: nobody keeps it, and some of it moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from firekeep.bridges._values import Hanging
from firekeep.bridges.torch._optimizers import overrides, owns_optimizer

_LIBRARIES = frozenset(
    ("torch", "accelerate", "transformers", "lightning", "lightning_fabric", "pytorch_lightning", "bitsandbytes")
)
"""Those whose optimizers give all that moves by their state dict, and hang counters of their own on the others they wrap."""
_OF_PYTORCH = frozenset(
    (
        *("state", "param_groups", "defaults", "optimizer", "step", "_params", "_numel_cache", "_opt_called"),
        *("grad_scale", "found_inf", "_step_supports_amp_scaling", "_hook_for_profile", "_zero_grad_profile_name"),
    )
)
_OF_SCHEDULES = frozenset(("_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step"))
"""What PyTorch's schedulers warn by, or give out."""
_DEEP = 4
_MANY = 1_000
"""How deep, and at how many values, numbers are looked for."""


def beside_optimizer(optimizer: Any, *, kept: AbstractSet[int] = frozenset()) -> Iterator[Hanging]:
    """Find it; see the door."""
    yield from _beside(optimizer, "", _Given(optimizer), kept, set())


def beside_schedule(scheduler: Any) -> Iterator[Hanging]:
    """Find it; see the door."""
    for one in _family(scheduler):
        held = _functions(one)
        for name, function in held.items():
            if (inside := _inside(function)) is not None and (mark := _mark(inside)) is not None:
                yield Hanging(name, f"what {getattr(function, '__qualname__', name)} counts in", mark)
        if type(one).__module__.partition(".")[0] in _LIBRARIES:
            continue
        given = one.state_dict()
        for name, value in vars(one).items():
            if name not in (*given, *_OF_PYTORCH, *_OF_SCHEDULES) and (mark := _mark(value)) is not None:
                yield Hanging(name, _told(value), mark)


def _beside(optimizer: Any, prefix: str, given: _Given, kept: AbstractSet[int], around: set[int]) -> Iterator[Hanging]:
    around.add(id(optimizer))
    is_known = type(optimizer).__module__.partition(".")[0] in _LIBRARIES
    for name, value in vars(optimizer).items():
        if owns_optimizer(value):
            if id(value) not in around and id(value) not in kept:
                yield from _inner(optimizer, value, f"{prefix}{name}", given, kept, around)
        elif not (is_known or name in _OF_PYTORCH or name.startswith(("_optimizer_", "_warned"))):
            if any(given.lacks(one) for one in _tensors(value)):
                yield Hanging(f"{prefix}{name}", "a tensor" if isinstance(value, torch.Tensor) else "tensors", None)
            elif not given.counts(value) and (mark := _mark(value)) is not None:
                yield Hanging(f"{prefix}{name}", _told(value), mark)


def _inner(
    optimizer: Any, inner: Any, name: str, given: _Given, kept: AbstractSet[int], around: set[int]
) -> Iterator[Hanging]:
    """Look into an optimizer that another one steps with: its state is the other's, is given by it, or is nobody's."""
    if inner.state is not optimizer.state and any(given.lacks(one) for one in _tensors(dict(inner.state))):
        yield Hanging(f"{name}.state", f"the state of the {type(inner).__name__} within", None)
    yield from _beside(inner, "" if inner.state is optimizer.state else f"{name}.", given, kept, around)


class _Given:
    """What an optimizer's state dict brings along, where its class says so itself; parameters are a model's."""

    def __init__(self, optimizer: Any) -> None:
        self._params = {id(value) for group in optimizer.param_groups for value in group["params"]}
        state: Any = optimizer.state_dict() if overrides(optimizer, "state_dict") else {}
        self._tensors = {id(one) for one in _tensors(state)} | {one.data_ptr() for one in _tensors(state)}
        self._numbers = {value for key, value in state.items() if isinstance(value, int | float)}

    def lacks(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor is kept nowhere, and more than one number."""
        if tensor.numel() < 2 or id(tensor) in self._params or id(tensor) in self._tensors:
            return False
        return tensor.data_ptr() not in self._tensors

    def counts(self, value: Any) -> bool:
        """Say whether a number is among those that are given."""
        return isinstance(value, int | float) and value in self._numbers


def _family(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for child in getattr(scheduler, "_schedulers", ()):
        yield from _family(child)


def _functions(scheduler: Any) -> dict[str, Any]:
    held = {f"lr_lambdas.{place}": one for place, one in enumerate(getattr(scheduler, "lr_lambdas", ()))}
    scale = getattr(scheduler, "_scale_fn_custom", None)
    return held if scale is None else {**held, "scale_fn": scale}


def _inside(function: Any) -> Any:
    """Give what a method or a function can count in: of other objects PyTorch keeps what they have as attributes."""
    if (owner := getattr(function, "__self__", None)) is not None:
        return getattr(owner, "__dict__", None)
    cells = getattr(function, "__closure__", None) or ()
    held = [_content(cell) for cell in cells]
    return [getattr(one, "__dict__", one) for one in held]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that nothing was given to yet
        return None


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= _DEEP:
        if isinstance(value, Mapping):
            for part in value.values():
                yield from _tensors(part, depth + 1)
        elif isinstance(value, list | tuple | deque):
            for part in value:
                yield from _tensors(part, depth + 1)


def _mark(value: Any) -> Hashable | None:
    """Tell numbers from what they are later; None for what holds none."""
    found: list[Hashable] = []
    _add_numbers(value, found, 0)
    return (len(found), *found) if found or isinstance(value, list | dict | deque | set) else None


def _add_numbers(value: Any, found: list[Hashable], depth: int) -> None:
    if len(found) >= _MANY or depth > _DEEP:
        return
    if isinstance(value, bool | int | float | complex):
        found.append(repr(value))
    elif isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_meta:
            found.append(repr(value.item()))
    elif isinstance(value, Mapping):
        for part in value.values():
            _add_numbers(part, found, depth + 1)
    elif isinstance(value, list | tuple | deque | set | frozenset):
        for part in value:
            _add_numbers(part, found, depth + 1)


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return type(value).__name__
