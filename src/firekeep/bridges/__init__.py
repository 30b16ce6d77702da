"""The family of bridges: objects of frameworks described as slots and entries, and filled. One row a member, none imported unasked."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from firekeep.bridges._protocol import Bridge, Filling, Remaker, check_fillings
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.slots import Outline

__all__ = [
    "BRIDGES",
    "Bridge",
    "BridgeRow",
    "Filling",
    "Remaker",
    "at_once",
    "bridge_of",
    "check_fillings",
    "entries_of",
    "remaker_of",
    "slots_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRow:
    """A row of the table: a member's name, what it takes in words, and its door, imported when used."""

    name: str
    takes: str

    def door(self) -> Bridge:
        """Give the member: its module is the bridge."""
        return cast(Bridge, import_module(f"firekeep.bridges.{self.name}"))


# In this order: the first that owns an object has it.
BRIDGES = {
    row.name: row
    for row in (
        BridgeRow(name="torch", takes="a torch.nn.Module"),
        BridgeRow(name="jax", takes="an nnx, Equinox or Linen model of JAX's"),
        BridgeRow(name="native", takes="a firekeep.Module"),
        BridgeRow(name="plain", takes="dicts, lists or dataclasses of arrays"),
    )
}


def bridge_of(obj: object) -> Bridge:
    """Find the member that owns an object; raises `UnsupportedError`, naming its type and what is taken."""
    for row in BRIDGES.values():
        bridge = row.door()
        if bridge.owns(obj):
            return bridge
    if isinstance(obj, type):
        raise UnsupportedError(
            f"{obj.__module__}.{obj.__qualname__} is a class, and holds no tensors",
            remedy=f"Give an object of it, such as {obj.__name__}(...).",
        )
    kind = type(obj)
    raise UnsupportedError(
        f"an object of type {kind.__module__}.{kind.__qualname__} holds no tensors that can be told",
        remedy=f"Give {' or '.join(row.takes for row in BRIDGES.values())}.",
    )


def at_once(bridge: Bridge) -> Bridge:
    """Give a bridge for one load or save, during which nobody else changes the object: where there is such, one that looks at it once."""
    made = getattr(bridge, "at_once", None)
    return bridge if made is None else cast(Bridge, made())


def remaker_of(obj: object) -> Remaker:
    """Find the member that owns an object and can make another of it; raises `UnsupportedError` for models that are changed in place."""
    bridge = bridge_of(obj)
    if not hasattr(bridge, "filled"):
        raise UnsupportedError(
            f"a {type(obj).__name__} is a model that is changed in place, and no other is made of it",
            remedy="Use load_into, with a copy of the model if this one is to stay.",
        )
    return cast(Remaker, bridge)


def slots_of(obj: Any) -> Outline:
    """Describe the places of a model that want tensors, without initialising any."""
    return bridge_of(obj).outline(obj)


def entries_of(obj: Any) -> list[TensorEntry]:
    """Describe the tensors a model holds, without copying any."""
    return bridge_of(obj).entries(obj)
