"""What the globals and calls of a pickle become: objects that remember what was asked for and do nothing.

`Opaque` and `TensorRef` are what a reader of `values()` sees; the others live between the pickle machine and the walkers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firekeep.errors import UnsafePickleError

Maker = Callable[[tuple[Any, ...]], Any]

_KEY_NODES = 1_000
_KEY_DEPTH = 16
_KEY_BITS = 64


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands in `values()` where the file has a tensor; `name` is its key in the open file."""

    name: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object of a class that was not imported: its name, and the plain data it would have been built from.

    `args` are the arguments of its constructor, `state` its attributes (a dict) or whatever stands for them, `items` what a
    subclass of list or dict holds.
    """

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: Any = None


class Global:
    """A name that an unpickler would import. One object a name and pickle; `make` gives plain data for a call of it."""

    __slots__ = ("called", "count", "make", "module", "name", "offset")

    def __init__(self, module: str, name: str, *, offset: int, make: Maker | None) -> None:
        self.module = module
        self.name = name
        self.offset = offset
        self.make = make
        self.count = 0
        self.called = False

    @property
    def path(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}"


class Call:
    """A call that did not happen, and what was set on its result afterwards."""

    __slots__ = ("args", "elements", "func", "items", "state")

    def __init__(self, func: Any, args: tuple[Any, ...]) -> None:
        self.func = func
        self.args = args
        self.state: Any = None
        self.items: dict[Any, Any] | None = None
        self.elements: list[Any] | None = None


class InertDict(dict[Any, Any]):
    """An OrderedDict, defaultdict or Counter. `state`, where BUILD set it, holds a state dict's `_metadata`."""

    __slots__ = ("state",)
    state: Any


class InertSet:
    """A set or frozenset as the list of its elements: nothing is hashed."""

    __slots__ = ("elements", "frozen")

    def __init__(self, elements: list[Any], *, frozen: bool) -> None:
        self.elements = elements
        self.frozen = frozen


class StorageRef:
    """A storage that a pickle speaks of: `numel` elements of the class `kind` under `key`.

    `view` is the (first element, number of elements) of a view into it, which old files have.
    """

    __slots__ = ("key", "kind", "location", "numel", "view")

    def __init__(self, kind: Global, key: str, location: str, numel: int, view: tuple[int, int] | None = None) -> None:
        self.kind = kind
        self.key = key
        self.location = location
        self.numel = numel
        self.view = view


def name_of(func: Any) -> str:
    """Name what would have been called: a global, or the result of another call."""
    for _ in range(8):
        if isinstance(func, Global):
            return func.path
        if not isinstance(func, Call):
            break
        func = func.func
    return f"a {type(func).__name__}"


def checked_key(key: Any) -> Any:
    """Let a dictionary key through if hashing it is safe and cheap; raises `UnsafePickleError` otherwise."""
    kind = type(key)
    if kind is str or kind is bytes or kind is float or kind is bool or key is None:
        return key
    if kind is int:
        if key.bit_length() > _KEY_BITS:
            raise UnsafePickleError(f"a dictionary key is an integer of {key.bit_length()} bits")
        return key
    if kind is tuple:
        _check_tuple(key)
    elif kind in (dict, list, InertDict, bytearray):
        raise UnsafePickleError(f"a dictionary key is a {kind.__name__}, which cannot be one")
    return key


SAME_HASH = 100
"""Tuples of one hash that may be keys of one dictionary; honest ones hardly ever share theirs, and each is compared with all others."""


def crowded() -> UnsafePickleError:
    """Make the error of a dictionary with too many of them."""
    return UnsafePickleError(f"more than {SAME_HASH} tuple keys of one dictionary have the same hash")


def is_crowded(values: list[Any]) -> bool:
    """Say whether so many tuples among the values have one hash that a set of them would take its time."""
    counts = Counter(hash(value) for value in values if type(value) is tuple)
    return max(counts.values(), default=0) > SAME_HASH


def _check_tuple(key: tuple[Any, ...]) -> None:
    """Hashing a tuple visits all below it, without a limit to depth or sharing: so look first."""
    level: list[Any] = list(key[: _KEY_NODES + 1])
    seen = depth = 0
    while level:
        seen += len(level)
        depth += 1
        if seen > _KEY_NODES or depth > _KEY_DEPTH:
            raise UnsafePickleError(
                f"a dictionary key is a tuple of more than {_KEY_NODES} values or {_KEY_DEPTH} levels"
            )
        below: list[Any] = []
        for value in level:
            if type(value) is tuple:
                below.extend(value[: _KEY_NODES + 1])
            else:
                checked_key(value)
        level = below
