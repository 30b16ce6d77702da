"""What a file holds besides tensors, as plain Python data.

Each object is made once, however often it is shared, so that cycles stay cycles and nothing multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from firekeep.dtypes import BY_TORCH
from firekeep.errors import LimitError, UnsafePickleError
from firekeep.formats.pytorch._flatten import key_name
from firekeep.formats.pytorch._inert import (
    Call,
    Global,
    InertDict,
    InertSet,
    Opaque,
    TensorRef,
    checked_key,
    is_crowded,
    name_of,
)
from firekeep.formats.pytorch._modules import module_state, state_parts
from firekeep.formats.pytorch._numpy import decode_array, decode_dtype, decode_scalar
from firekeep.limits import Limits

_PLAIN = frozenset((str, int, float, bool, type(None), bytes, complex))
_TABLES = ("_parameters", "_buffers", "_modules")
_PATHS: dict[str, type[PurePath]] = {
    f"{module}.{name}": PureWindowsPath if "Windows" in name else PurePosixPath
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath")
}
_LONGEST_PATH = 4096

Step = Generator[tuple[Any, str], Any, Any]
"""A conversion under way: it yields children with their names, is sent what they became, and returns what it made."""


class ValueMaker:
    """Turns inert objects into plain data; `names` are those of listed tensors, by the `id` of their objects."""

    def __init__(
        self,
        *,
        is_tensor: Callable[[Any], bool],
        listed: Container[str],
        names: Mapping[int, str],
        limits: Limits,
    ) -> None:
        self._is_tensor = is_tensor
        self._listed = listed
        self._names = names
        self._limits = limits
        self._made: dict[int, Any] = {}
        self._spelled = 0

    def make(self, root: Any) -> Any:
        """Convert an object; raises `LimitError` for one that is too large or too deep."""
        result = self._at_once(root, "")
        if result is not _PENDING:
            return result
        steps: list[Step] = [self._step(root, "")]
        answer: Any = None
        while steps:
            try:
                child, name = steps[-1].send(answer)
            except StopIteration as stop:
                steps.pop()
                answer = stop.value
                continue
            answer = self._at_once(child, name)
            if answer is _PENDING:
                answer = None
                steps.append(self._step(child, name))
                if len(steps) > self._limits.pickle_depth:
                    raise _beyond("pickle_depth", self._limits.pickle_depth, len(steps), "levels")
                if len(self._made) > self._limits.pickle_nodes:
                    raise _beyond("pickle_nodes", self._limits.pickle_nodes, len(self._made), "objects")
        return answer

    def _at_once(self, value: Any, name: str) -> Any:
        """Convert what has no children, or was converted before."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is Global:
            return f"torch.{value.name}" if value.module == "torch" and value.name in BY_TORCH else Opaque(value.path)
        if id(value) in self._made:
            return self._made[id(value)]
        if self._is_tensor(value):
            return TensorRef(name if name in self._listed else self._names.get(id(value), name))
        if kind is Call:
            return self._known_call(value)
        return _PENDING if kind in (dict, InertDict, list, tuple, InertSet) else Opaque(f"a {kind.__name__}")

    def _known_call(self, call: Call) -> Any:
        """Convert arrays, scalars, devices and paths."""
        path = name_of(call.func)
        if path.startswith("numpy."):
            for decode in (decode_array, decode_scalar, decode_dtype):
                found = decode(call)
                if found is not None:
                    self._made[id(call)] = found = str(found) if decode is decode_dtype else found
                    return found
        if path == "torch.device" and 0 < len(call.args) < 3:
            return ":".join(map(key_name, call.args))[:80]
        if path in _PATHS and all(type(part) is str for part in call.args):
            return str(_PATHS[path](*call.args)) if sum(map(len, call.args)) < _LONGEST_PATH else _PENDING
        return _PENDING

    def _step(self, value: Any, name: str) -> Step:
        if isinstance(value, dict):
            return self._dict(value, name, value)
        if type(value) is list:
            return self._list(value, name, value)
        if type(value) is tuple:
            return self._tuple(value, name)
        if type(value) is InertSet:
            return self._set(value, name)
        return self._object(value, name)

    def _dict(self, value: Mapping[Any, Any], name: str, owner: Any) -> Step:
        made: dict[Any, Any] = {}
        if owner is not None:
            self._made[id(owner)] = made
        for key, item in value.items():
            plain = _unused_key(made, key)
            made[plain] = item if type(item) in _PLAIN else (yield item, self._below(name, key_name(key)))
        return made

    def _list(self, value: list[Any], name: str, owner: Any) -> Step:
        made: list[Any] = []
        if owner is not None:
            self._made[id(owner)] = made
        for index, item in enumerate(value):
            made.append(item if type(item) in _PLAIN else (yield item, self._below(name, str(index))))
        return made

    def _tuple(self, value: tuple[Any, ...], name: str) -> Step:
        self._made[id(value)] = Opaque("builtins.tuple")  # what stands for it inside itself
        made = []
        for index, item in enumerate(value):
            made.append(item if type(item) in _PLAIN else (yield item, self._below(name, str(index))))
        self._made[id(value)] = result = tuple(made)
        return result

    def _set(self, value: InertSet, name: str) -> Step:
        made = yield from self._list(value.elements, name, value)
        if not all(map(_is_plain_key, made)) or is_crowded(made):
            return made
        self._made[id(value)] = result = frozenset(made) if value.frozen else set(made)
        return result

    def _object(self, call: Call, name: str) -> Step:
        made = Opaque(name_of(call.func))
        self._made[id(call)] = made
        _set(made, "args", (yield from self._tuple(call.args, name)))
        if call.items is not None:
            _set(made, "items", (yield from self._dict(call.items, name, None)))
        elif call.elements is not None:
            _set(made, "items", (yield from self._list(call.elements, name, None)))
        module = module_state(call)
        if module is not None:
            _set(made, "state", (yield from self._module(module, name)))
            return made
        parts = list(state_parts(call.state))
        if parts:
            merged = {key: item for part in parts for key, item in part.items()}
            _set(made, "state", (yield from self._dict(merged, name, None)))
        elif call.state is not None:
            _set(made, "state", (yield call.state, self._below(name, "state")))
        return made

    def _module(self, state: dict[Any, Any], name: str) -> Step:
        """The tables of a module add nothing to the names of what is in them."""
        made: dict[Any, Any] = {}
        for key, item in state.items():
            if key in _TABLES:
                made[key] = yield from self._dict(item, name, item)
            else:
                made[_unused_key(made, key)] = yield item, self._below(name, key_name(key))
        return made

    def _below(self, name: str, key: str) -> str:
        """Spell a name, counting what it takes."""
        below = f"{name}.{key}" if name else key
        self._spelled += len(below)
        if self._spelled > self._limits.text_bytes:
            raise _beyond("text_bytes", self._limits.text_bytes, self._spelled, "bytes of names")
        return below


_PENDING = object()


def _set(made: Opaque, field: str, value: Any) -> None:
    """Fill in an object that others may already refer to."""
    object.__setattr__(made, field, value)


def _is_plain_key(value: Any) -> bool:
    if type(value) in (tuple, int):
        try:
            checked_key(value)
        except UnsafePickleError:  # to hash it costs too much: long integers can all have one hash
            return False
        return type(value) is int or all(map(_is_plain_key, value))
    return type(value) in _PLAIN


def _unused_key(made: dict[Any, Any], key: Any) -> Any:
    """Give a key as plain data: classes and objects by their name, numbered by their place where one name is taken."""
    if _is_plain_key(key):
        return key
    text = key_name(key)
    number = len(made)
    while text in made:
        number += 1
        text = f"{key_name(key)}#{number}"
    return text


def _beyond(field: str, limit: int, actual: int, what: str) -> LimitError:
    return LimitError(
        f"the pickled object has more than {limit:,} {what}",
        limit=limit,
        actual=actual,
        remedy=f"If the file is honest, open it with a larger firekeep.Limits({field}=...).",
    )
