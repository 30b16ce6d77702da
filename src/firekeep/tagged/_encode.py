"""Values into tagged text."""

from __future__ import annotations

import base64
import enum
import json
import math
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import PurePath
from typing import Any

from firekeep.errors import LimitError, UnsupportedError
from firekeep.tagged._words import MAX_DEPTH, MAX_TEXT, MAX_VALUES, NUMPY, SMALL_FLOATS, TensorAt, Values, below, place

_WORDY_INT = 1024
"""Bits of the longest integer that is written in digits; Python limits how many it turns into text or back."""
_QUIET_NAN = 0x7FF8 << 48
_JSON = json.JSONEncoder(separators=(",", ":"))
_PLAIN = (type(None), bool, str)
"""Types whose values stand in JSON as they are."""


def encode(value: object, *, path: str = "") -> str:
    """Write a value as text; `path` names the value in errors.

    Taken are None, bool, int, float (with every bit of a NaN), complex, str, bytes, list, tuple, dict, OrderedDict, Counter, set,
    frozenset, deque, NumPy scalars and `TensorAt`. The order of a dictionary is kept; sets are sorted, so that equal sets give equal
    texts. Raises `UnsupportedError` for any other type, subclasses of these included, naming the place; `LimitError` for a value that
    is deeper or larger than `decode` would take.
    """
    text = _JSON.encode(_Encoder().encode(value, path, 0))
    if len(text) > MAX_TEXT:
        raise LimitError(place(path, f"it takes {len(text)} characters"), limit=MAX_TEXT, actual=len(text))
    return text


class _Encoder:
    """Counts what it has written."""

    def __init__(self) -> None:
        self._count = 0

    def encode(self, value: Any, path: str, depth: int) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            raise LimitError(place(path, "there are too many values"), limit=MAX_VALUES, actual=self._count)
        if depth > MAX_DEPTH:
            raise LimitError(place(path, "values lie too deep in one another, or in themselves"), limit=MAX_DEPTH)
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if value.bit_length() <= _WORDY_INT else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": _float_text(value)}
        if kind is list:
            return self._items(value, path, depth)
        if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, f"{path}.{key}" if path else key, depth + 1) for key, item in value.items()}
        tag = _TAGS.get(kind)
        if tag is not None:
            return {f"${tag}": getattr(self, f"_{tag}")(value, path, depth)}
        if _is_numpy_scalar(value):
            return {"$numpy": _numpy_parts(value, path)}
        raise _refusal(value, path)

    def _items(self, values: Iterable[Any], path: str, depth: int) -> Values:
        return [self.encode(item, below(path, number), depth + 1) for number, item in enumerate(values)]

    _tuple = _items

    def _pairs(self, value: Mapping[Any, Any], path: str, depth: int) -> list[Values]:
        return [
            [self.encode(key, below(path, "key"), depth + 1), self.encode(item, below(path, key), depth + 1)]
            for key, item in value.items()
        ]

    _dict = _ordered = _counter = _pairs

    def _set(self, value: Iterable[Any], path: str, depth: int) -> Values:
        return sorted(self._items(value, path, depth), key=json.dumps)

    _frozenset = _set

    def _deque(self, value: deque[Any], path: str, depth: int) -> Values:
        return [self._items(value, path, depth), value.maxlen]

    def _bytes(self, value: bytes, _path: str, _depth: int) -> str:
        return base64.b64encode(value).decode("ascii")

    def _complex(self, value: complex, path: str, depth: int) -> Values:
        return [self.encode(part, path, depth + 1) for part in (value.real, value.imag)]

    def _tensor(self, value: TensorAt, _path: str, _depth: int) -> str:
        return value.path


_TAGS: dict[type, str] = {
    tuple: "tuple",
    dict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    bytes: "bytes",
    complex: "complex",
    TensorAt: "tensor",
}


def _float_text(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return "nan" if bits == _QUIET_NAN else f"{bits:#018x}"


def _is_numpy_scalar(value: object) -> bool:
    numpy: Any = sys.modules.get("numpy")  # who gives such a scalar has it imported
    return numpy is not None and isinstance(value, numpy.generic)


def _numpy_parts(value: Any, path: str) -> list[str]:
    name = str(value.dtype.name)
    if name not in NUMPY and name not in SMALL_FLOATS:
        raise UnsupportedError(
            place(path, f"a NumPy scalar of {name} cannot be kept as text"), remedy="Give it as a plain value."
        )
    raw = value.tobytes() if sys.byteorder == "little" else value.byteswap().tobytes()
    return [name, raw.hex()]


def _refusal(value: object, path: str) -> UnsupportedError:
    kind = type(value)
    what, remedy = f"{kind.__module__}.{kind.__qualname__}", "Leave it out, or give its parts as plain values."
    if isinstance(value, enum.Enum):
        what, remedy = f"the enum {what}", "Give its .value, or its .name."
    elif isinstance(value, defaultdict):
        what, remedy = "a defaultdict, whose factory is code", "Give dict(...) of it."
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        what, remedy = f"the named tuple {what}", "Give its _asdict(), or tuple(...) of it."
    elif is_dataclass(value) and not isinstance(value, type):
        what, remedy = f"the dataclass {what}", "Give dataclasses.asdict(...) of it."
    elif isinstance(value, PurePath):
        what, remedy = f"a path ({what})", "Give str(...) of it."
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        what, remedy = f"a tensor ({what})", "Keep it among the tensors, or give tolist() of it."
    elif callable(value):
        what, remedy = f"code ({what})", "Leave it out: code is never kept in a file."
    else:
        for base in kind.__mro__[1:]:
            if base in (*_TAGS, int, float, str, list):
                what, remedy = f"{what}, a kind of {base.__name__}", f"Give {base.__name__}(...) of it."
                break
    return UnsupportedError(place(path, f"{what} cannot be kept as text"), remedy=remedy)
