"""Trees made anew around other arrays; what has none of these is in both."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

from firekeep.bridges.plain._leaves import is_tensor
from firekeep.bridges.plain._walk import Place, children, is_container

New = Mapping[tuple[int, Any], Any]
"""Other values, by the container they are in and their key there."""


def remakable(place: Place) -> bool:
    """Say whether another can be made of what directly holds an array."""
    holder = place.holder
    return not isinstance(holder, Mapping) or isinstance(holder, MutableMapping | MappingProxyType)


def remade(value: Any, new: New) -> Any:
    """Make a container like another with other values in it, at whatever depth; the same one where there are none."""
    if is_tensor(value) or not is_container(value):
        return value
    changes = {}
    for key, child, _ in children(value):
        place = (id(value), key)
        other = new[place] if place in new else remade(child, new)
        if other is not child:
            changes[key] = other
    return _with(value, changes) if changes else value


def _with(value: Any, changes: Mapping[Any, Any]) -> Any:
    if isinstance(value, MappingProxyType):
        return MappingProxyType({**value, **changes})
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return value._replace(**changes)  # type: ignore[attr-defined]
        return type(value)(changes.get(place, part) for place, part in enumerate(value))
    other = copy.copy(value)
    for key, part in changes.items():
        if is_dataclass(other) and not isinstance(other, MutableMapping | list):
            object.__setattr__(other, key, part)
        else:
            other[key] = part
    return other
