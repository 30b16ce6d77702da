"""MessagePack, as far as Flax uses it: arrays are told by where their bytes lie, and not drawn.

The package msgpack would copy each array twice on the way to one, and hold the whole file in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

from firekeep.errors import LimitError, MetadataError, TruncatedError
from firekeep.limits import Limits

_FLOATS = {0xCA: Struct(">f"), 0xCB: Struct(">d")}
_EXT_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_MOST_AXES = 64
_MISSING = object()


@dataclass(frozen=True, slots=True)
class ArrayAt:
    """An array of the file: its `nbytes` bytes begin at `start`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Extension:
    """A value of a kind that Flax does not write."""

    code: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Open:
    """The head of a map or a list."""

    is_map: bool
    length: int


class _Frame:
    """A map or a list that is being filled."""

    __slots__ = ("key", "left", "made")

    def __init__(self, head: _Open) -> None:
        self.made: dict[int | str, Any] | list[Any] = {} if head.is_map else []
        self.left = head.length
        self.key: Any = _MISSING


class Decoder:
    """Reads one value. `position` is where it stands."""

    def __init__(self, data: memoryview, limits: Limits) -> None:
        self.position = 0
        self._data = data
        self._limits = limits
        self._values = 0
        self._text = 0

    def decode(self) -> Any:
        """Read a value with all that is in it; raises a `FormatError` for what is cut short, contradicts itself or is too much."""
        frames: list[_Frame] = []
        while True:
            value = self._item()
            if type(value) is _Open:
                if len(frames) >= self._limits.pickle_depth:
                    raise self._beyond("pickle_depth", len(frames) + 1, "maps within maps")
                frames.append(_Frame(value))
                if value.length:
                    continue
                value = frames.pop().made
            while frames:
                frame = frames[-1]
                self._put(frame, value)
                if frame.left or frame.key is not _MISSING:
                    break
                value = frames.pop().made
            else:
                return value

    def _put(self, frame: _Frame, value: Any) -> None:
        made = frame.made
        if isinstance(made, list):
            made.append(value)
            frame.left -= 1
        elif frame.key is _MISSING:
            if type(value) not in (str, int):
                raise MetadataError(f"a map has a key that is {type(value).__name__}, no text", offset=self.position)
            if value in made:
                raise MetadataError(f"a map has the key {value!r} twice", offset=self.position)
            frame.key = value
        else:
            made[frame.key] = value
            frame.key = _MISSING
            frame.left -= 1

    def _item(self) -> Any:
        self._values += 1
        if self._values > self._limits.pickle_nodes:
            raise self._beyond("pickle_nodes", self._values, "values")
        code = self._uint(1)
        if code < 0x80:
            return code
        if code < 0x90:
            return self._open(code & 0x0F, is_map=True)
        if code < 0xA0:
            return self._open(code & 0x0F, is_map=False)
        if code < 0xC0:
            return self._str(code & 0x1F)
        if code >= 0xE0:
            return code - 0x100
        return self._tagged(code)

    def _tagged(self, code: int) -> Any:
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        if 0xC4 <= code <= 0xC6:
            return bytes(self._take(self._counted(self._uint(1 << (code - 0xC4)))))
        if 0xC7 <= code <= 0xC9:
            return self._extension(self._uint(1 << (code - 0xC7)))
        if code in _FLOATS:
            return _FLOATS[code].unpack(self._take(_FLOATS[code].size))[0]
        if 0xCC <= code <= 0xD3:
            return int.from_bytes(self._take(1 << (code & 3)), "big", signed=code >= 0xD0)
        if code in _EXT_FIXED:
            return self._extension(_EXT_FIXED[code])
        if 0xD9 <= code <= 0xDB:
            return self._str(self._uint(1 << (code - 0xD9)))
        if code in (0xDC, 0xDD):
            return self._open(self._uint(2 << (code & 1)), is_map=False)
        if code in (0xDE, 0xDF):
            return self._open(self._uint(2 << (code & 1)), is_map=True)
        raise MetadataError(
            f"byte {code:#04x} at {self.position - 1} begins no value of MessagePack", offset=self.position - 1
        )

    def _open(self, length: int, *, is_map: bool) -> _Open:
        self._require(length * 2 if is_map else length)
        return _Open(is_map, length)

    def _str(self, length: int) -> str:
        try:
            return str(self._take(self._counted(length)), "utf-8")
        except UnicodeDecodeError:
            raise MetadataError(f"the text before byte {self.position} is not UTF-8", offset=self.position) from None

    def _counted(self, length: int) -> int:
        self._require(length)
        self._text += length
        if self._text > self._limits.text_bytes:
            raise self._beyond("text_bytes", self._text, "bytes of text")
        return length

    def _extension(self, length: int) -> Any:
        code = self._uint(1)
        code -= (code & 0x80) << 1
        self._require(length)
        end = self.position + length
        if code in (_ARRAY, _SCALAR):
            found: Any = self._array()
        elif code == _COMPLEX:
            found = self._complex()
        else:
            found, self.position = Extension(code, length), end
        if self.position != end:
            raise MetadataError(f"an extension that ends at {end} holds what ends at {self.position}", offset=end)
        return found

    def _complex(self) -> complex:
        head, parts = self._uint(1), (self._item(), self._item())
        if head != 0x92 or not all(type(part) in (int, float) for part in parts):
            raise MetadataError(
                f"a complex number before byte {self.position} is no pair of numbers", offset=self.position
            )
        try:
            return complex(*parts)
        except OverflowError:
            raise MetadataError(
                f"a complex number before byte {self.position} is too large", offset=self.position
            ) from None

    def _array(self) -> ArrayAt:
        """Read the inside of an array's extension: shape, name of the dtype, bytes."""
        place = self.position
        shape = None
        if (
            self._uint(1) == 0x93
            and type(head := self._item()) is _Open
            and not head.is_map
            and head.length <= _MOST_AXES
        ):
            shape = tuple(self._item() for _ in range(head.length))
        dtype = None if shape is None else self._item()
        dtype = dtype.decode("utf-8", "replace") if isinstance(dtype, bytes) else dtype
        if shape is None or type(dtype) is not str or not all(type(extent) is int and extent >= 0 for extent in shape):
            raise MetadataError(f"the array at {place} does not say shape, dtype and bytes", offset=place)
        nbytes = self._payload(place)
        found = ArrayAt(dtype, shape, self.position, nbytes)
        self.position += nbytes
        return found

    def _payload(self, place: int) -> int:
        """Read the length of an array's bytes, which Flax writes as bytes and old files hold as text."""
        code = self._uint(1)
        if 0xA0 <= code < 0xC0:
            length = code & 0x1F
        elif code in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
            length = self._uint(1 << ((code - 0xC4) if code < 0xD0 else (code - 0xD9)))
        else:
            raise MetadataError(f"the array at {place} has no bytes", offset=place)
        self._require(length)
        if length > self._limits.tensor_bytes:
            raise self._beyond("tensor_bytes", length, "bytes in one array")
        return length

    def _uint(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _take(self, length: int) -> memoryview:
        self._require(length)
        start, self.position = self.position, self.position + length
        return self._data[start : self.position]

    def _require(self, length: int) -> None:
        if self.position + length > len(self._data):
            raise TruncatedError(
                f"the file is cut short: at {self.position} it needs {length} bytes more, and has {len(self._data) - self.position}",
                offset=self.position,
                limit=self.position + length,
                actual=len(self._data),
            )

    def _beyond(self, field: str, actual: int, what: str) -> LimitError:
        limit: int = getattr(self._limits, field)
        return LimitError(f"the file holds more than {limit} {what}", limit=limit, actual=actual, offset=self.position)
