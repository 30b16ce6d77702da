"""From nested containers to the places of their tensors, by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from firekeep.bridges._values import is_object, join_others
from firekeep.bridges.plain._leaves import is_tensor
from firekeep.errors import LimitError, UnsupportedError
from firekeep.wording import kind

_DEEPEST = 256


class _Route(NamedTuple):
    """The way to a value, from the inside out: told only when something is wrong."""

    outer: _Route | None
    key: Any
    is_field: bool

    def __str__(self) -> str:
        steps: list[str] = []
        at: _Route | None = self
        while at is not None:
            steps.append(f".{at.key}" if at.is_field else f"[{at.key!r}]")
            at = at.outer
        return "".join(reversed(steps))


# Not frozen: a filled place holds another value.
@dataclass(slots=True)
class Place:
    """Where a tensor is: under `key` in `holder`, which is None for a tensor that is the whole tree."""

    path: str
    value: Any
    holder: Any = None
    key: Any = None
    route: _Route | None = None


class Tree:
    """All tensors of nested containers. `places` are in the order they are met, `modules` the paths of what holds them.

    `others` says by name what values are that are no tensors, a dataclass or a named tuple of such as one; `numbers` names those that
    are numbers in dicts, lists and tuples alone. Raises `UnsupportedError` for two tensors of one name, keys that make no name, a tree
    that contains itself and models inside of it, and `LimitError` for one too deep.
    """

    def __init__(self, root: Any) -> None:
        self.places: dict[str, Place] = {}
        self.modules: set[str] = set()
        self.keyed: set[str] = set()
        self.others: dict[str, str] = {}
        self.numbers: list[str] = []
        self._within_objects = 0
        self._around: set[int] = set()
        self._visit(Place("", root), fault=None)
        self.modules.discard("")

    def _visit(self, place: Place, *, fault: str | None) -> None:
        value = place.value
        if is_tensor(value):
            self._list(place, fault)
        elif _is_model(value):
            raise UnsupportedError(
                f"a {type(value).__name__} is a model, and this is a plain tree",
                tensor=place.path,
                remedy="Give its state dict instead, or the model by itself.",
            )
        elif is_container(value):
            self._enter(place, fault)
        elif value is not None:  # which stands for nothing in trees
            self.others[place.path] = kind(value)
            if isinstance(value, bool | int | float) and not self._within_objects:
                self.numbers.append(place.path)

    def _enter(self, place: Place, fault: str | None) -> None:
        value = place.value
        if id(value) in self._around:
            raise UnsupportedError(
                f"the {type(value).__name__} at tree{place.route or ''} contains itself",
                tensor=place.path,
                remedy="Leave that reference out of the tree.",
            )
        if len(self._around) >= _DEEPEST:
            raise LimitError(
                f"the tree is deeper than {_DEEPEST} levels",
                tensor=place.path[:200],
                limit=_DEEPEST,
                actual=_DEEPEST + 1,
            )
        self._around.add(id(value))
        self.modules.add(place.path)
        if isinstance(value, Mapping) and any(str(key).isdecimal() for key in value):
            self.keyed.add(place.path)
        self.modules.update(_told_modules(value, place.path))
        known, others, whole = len(self.places), len(self.others), is_object(value)
        self._within_objects += whole
        prefix = "" if place.route is None else f"{place.path}."
        for key, child, is_field in children(value):
            name, new_fault = _name(key)
            below = Place(prefix + name, child, value, key, _Route(place.route, key, is_field))
            self._visit(below, fault=fault or new_fault)
        self._around.discard(id(value))
        self._within_objects -= whole
        if place.path and whole and len(self.places) == known:
            join_others(self.others, place.path, value, first=others, is_meant=_is_linen(value))

    def _list(self, place: Place, fault: str | None) -> None:
        if fault is not None:
            raise UnsupportedError(
                f"the tensor at tree{place.route or ''} has no name: {fault}",
                tensor=place.path,
                remedy="Use keys that are text or whole numbers.",
            )
        other = self.places.get(place.path)
        if other is not None:
            raise UnsupportedError(
                f"two tensors come to one name: tree{other.route or ''} and tree{place.route or ''}",
                tensor=place.path,
                remedy="Rename one of the keys.",
            )
        self.places[place.path] = place


def is_container(value: Any) -> bool:
    """Tell what has parts that have names."""
    return isinstance(value, Mapping | list | tuple) or (is_dataclass(value) and not isinstance(value, type))


def children(value: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Give key, value and whether the key is a field, for what is directly in a container."""
    if isinstance(value, Mapping):
        yield from ((key, child, False) for key, child in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((key, child, True) for key, child in zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple):
        yield from ((key, child, False) for key, child in enumerate(value))
    else:
        for known in fields(value):
            if hasattr(value, known.name):  # a field that is set later may not be yet
                yield known.name, getattr(value, known.name), True


def _name(key: Any) -> tuple[str, str | None]:
    """Spell a key as a part of a name, and say why it cannot be one."""
    if isinstance(key, str):
        return str.__str__(key), None  # a member of an enum of texts prints as something else
    if isinstance(key, int) and not isinstance(key, bool):
        return int.__repr__(key), None
    return str(key), f"its key {key!r} is a {type(key).__name__}"


def _told_modules(value: Any, path: str) -> Iterator[str]:
    """Give the modules that a state dict of PyTorch speaks of, those without tensors too."""
    metadata = getattr(value, "_metadata", None) if isinstance(value, dict) else None
    if isinstance(metadata, Mapping):
        for name in metadata:
            if isinstance(name, str):
                yield f"{path}.{name}" if path and name else path or name


def _is_linen(value: Any) -> bool:
    """Tell a module of Linen, whose tensors are never in it."""
    cls = getattr(sys.modules.get("flax.linen"), "Module", None)
    return isinstance(cls, type) and isinstance(value, cls)


def _is_model(value: Any) -> bool:
    """Tell models, which have bridges of their own: who has one has imported its class."""
    for module, name in (("torch.nn", "Module"), ("firekeep.module", "Module")):
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type) and isinstance(value, cls):
            return True
    return False
