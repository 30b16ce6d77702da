"""Which objects this member takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax

from firekeep.bridges.jax._frameworks import is_equinox, is_equinox_state, is_nnx_object, is_nnx_state, is_variable

_PLAIN = (dict, list, tuple, str, int, float, bool, type(None))
_ARRAYS = (jax.Array, jax.Ref, jax.ShapeDtypeStruct)


def owns(obj: object) -> bool:
    """Look into containers until something tells: an object of Flax or Equinox, an array of JAX or of PyTorch."""
    found = False
    for value in _leaves(obj):
        if _is_torch(value):
            return False
        found = found or _is_ours(value)
    return found


def _is_ours(value: object) -> bool:
    if type(value) in _PLAIN:
        return False
    if isinstance(value, _ARRAYS) and not isinstance(value, type):
        return True
    tests = (is_nnx_object, is_nnx_state, is_variable, is_equinox, is_equinox_state)
    return any(test(value) for test in tests)


def _leaves(obj: object) -> Iterator[Any]:
    """Give all that is in containers and is none, or is one of our own kinds."""
    seen: set[int] = set()
    waiting: list[Any] = [obj]
    while waiting:
        value = waiting.pop()
        if _is_ours(value):
            yield value
            continue
        below = _children(value)
        if below is None:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.extend(below)


def _children(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, known.name) for known in fields(value) if hasattr(value, known.name)]
    if isinstance(value, type) or not is_node(value):
        return None
    return jax.tree_util.tree_leaves(value, is_leaf=lambda below: below is not value)


def is_node(value: Any) -> bool:
    """Say whether JAX knows how to take a value apart."""
    return value is not None and not jax.tree_util.all_leaves([value])


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (getattr(torch, "Tensor", ()), getattr(torch.nn, "Module", ())))
