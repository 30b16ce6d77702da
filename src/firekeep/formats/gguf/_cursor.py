"""Reading the head of a file: numbers of either byte order, texts, values by their type. Arrays of values are skipped until asked for."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from firekeep.errors import LimitError, MetadataError, TruncatedError
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.limits import Limits
from firekeep.sources import Source

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Types of values by their number, as `struct` calls them; 7 is bool."""
_BOOL, STRING, _ARRAY = 7, 8, 9
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class ArrayAt:
    """An array of values that was skipped: `length` values of one type from `start` on."""

    kind: int
    length: int
    start: int


class Cursor:
    """A place in the head of a file that moves on as it is read. `wide` tells the 64-bit lengths of version 2 and later."""

    def __init__(self, source: Source, limits: Limits, *, order: str, wide: bool) -> None:
        self.position = 0
        self._data = source.view(0, source.size)
        self._limits = limits
        self._order = order
        self._wide = wide
        self._text = 0
        self._values = 0

    def number(self, code: str) -> Any:
        """Read one number of a type as `struct` calls it."""
        layout = struct.Struct(self._order + code)
        return layout.unpack(self.take(layout.size))[0]

    def count(self) -> int:
        """Read a length."""
        found: int = self.number("Q" if self._wide else "I")
        return found

    def text(self) -> str:
        """Read a text; raises `MetadataError` for one that is not UTF-8, `LimitError` for more text than the limits allow."""
        length = self.count()
        raw = self.take(length)
        self._text += length
        if self._text > self._limits.text_bytes:
            raise LimitError(
                f"the file holds more than {self._limits.text_bytes} bytes of text",
                limit=self._limits.text_bytes,
                actual=self._text,
            )
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise MetadataError(f"the text before byte {self.position} is not UTF-8", offset=self.position) from None

    def take(self, length: int) -> memoryview:
        """Move over bytes."""
        start, end = self.position, self.position + length
        if end > len(self._data):
            raise TruncatedError(
                f"the file is cut short: at {start} its head needs {length} bytes more, and there are {len(self._data) - start}",
                offset=start,
                limit=end,
                actual=len(self._data),
                remedy=COPY_AGAIN,
            )
        self.position = end
        return self._data[start:end]

    def value(self) -> Any:
        """Read a type and a value of it; an array is skipped, and told by where it lies."""
        kind = self.number("I")
        return self._skip_array(_DEEPEST) if kind == _ARRAY else self._single(kind)

    def read_array(self, array: ArrayAt) -> list[Any]:
        """Read an array that was skipped."""
        self.position = array.start
        if array.kind == _ARRAY:
            return [self.read_array(self._array_then_back()) for _ in range(array.length)]
        self._visit(array.length)
        if array.kind == STRING:
            return [self.text() for _ in range(array.length)]
        layout = struct.Struct(f"{self._order}{array.length}{_CODES[array.kind]}")
        found = layout.unpack(self.take(layout.size))
        return [bool(value) for value in found] if array.kind == _BOOL else list(found)

    def _array_then_back(self) -> ArrayAt:
        return ArrayAt(self.number("I"), self.count(), self.position)

    def _single(self, kind: int) -> Any:
        self._visit(1)
        if kind == STRING:
            return self.text()
        if kind not in _CODES:
            raise MetadataError(
                f"a value at {self.position} is of type {kind}, which GGUF does not have", offset=self.position
            )
        found = self.number(_CODES[kind])
        return bool(found) if kind == _BOOL else found

    def _skip_array(self, depth: int) -> ArrayAt:
        place = self.position
        kind, length = self.number("I"), self.count()
        found = ArrayAt(kind, length, self.position)
        if kind in _CODES:
            self.take(length * struct.calcsize("=" + _CODES[kind]))
        elif kind not in (STRING, _ARRAY) or not depth:
            raise MetadataError(f"the array at {place} holds values of type {kind}, or nests too deep", offset=place)
        else:
            self._skip_each(kind, length, depth)
        return found

    def _skip_each(self, kind: int, length: int, depth: int) -> None:
        self._visit(length)
        for _ in range(length):
            if kind == STRING:
                self.take(self.count())
            else:
                self._skip_array(depth - 1)

    def _visit(self, number: int) -> None:
        self._values += number
        if self._values > self._limits.pickle_nodes:
            raise LimitError(
                f"the file holds more than {self._limits.pickle_nodes} values beside its tensors",
                limit=self._limits.pickle_nodes,
                actual=self._values,
            )
