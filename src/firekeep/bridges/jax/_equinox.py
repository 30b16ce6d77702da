"""What Equinox keeps apart from its modules: the state of stateful layers, and parts that a model shares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from firekeep.bridges.jax._frameworks import is_a, is_equinox, is_equinox_state
from firekeep.errors import UnsupportedError


def indices_of(value: Any) -> Iterator[Any]:
    """Give the marker by which a `StateIndex` finds its value in a state."""
    if is_a(value, "equinox.nn", "StateIndex"):
        yield value.marker


def state_values(state: Any, path: str) -> list[tuple[Any, Any]]:
    """Give the markers and values of a state; raises `UnsupportedError` for one that a later one has replaced."""
    try:
        values, markers = state.tree_flatten()
    except ValueError:
        raise UnsupportedError(
            "this State was replaced by a later one, and has no values any more",
            tensor=path,
            remedy="Give the state that the model returned last.",
        ) from None
    return list(zip(markers, values, strict=True))


def state_path(marker: Any, place: int, path: str) -> str:
    """Name a value of which no layer is at hand: by the attributes that its marker tells, else by its number."""
    name = ".".join(re.findall(r"[^.\[\]'\"]+", marker)[1:]) if isinstance(marker, str) else str(place)
    return f"{path}.{name}" if path and name else path or name


def main_parts(value: Any) -> int | None:
    """Give the number of the model in a pair of a model and its state, which are named as one."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    if is_equinox(value[0]) and is_equinox_state(value[1]):
        return 0
    return 1 if is_equinox(value[1]) and is_equinox_state(value[0]) else None


def shared_whole(value: Any) -> Any:
    """Give what a `Shared` stands for, with the shared parts in all their places; None for anything else, and where that fails."""
    if not is_a(value, "equinox.nn", "Shared"):
        return None
    try:
        return value()
    except Exception:  # noqa: BLE001 - a user's function, which may not know shapes without values
        return None
