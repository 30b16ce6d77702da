"""Find the columns of a large table with NumPy, without making an object of each descriptor.

Burn spells descriptors in one way only, so that 20,000 of them can be taken apart at once: the constant keys are found and
compared, the numbers between them are gathered. Every byte of the table is accounted for; whatever is not exactly where Burn puts it
makes the scan give up, and a decoder reads the table instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import lt
from typing import Any

_TOP = b"\x67tensors"
_DTYPE = b"\x65dtype"
_OFFSETS = b"\x6cdata_offsets\x82"
_PARAM_ID = b"\x68param_id"
_SLACK = 64
"""Zeros behind the table, so that windows over its last bytes exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The columns in name order, as they stand in the table.

    `forms` are the bytes from the key "dtype" to the end of the shape. `rest` is a map of what follows the tensors.
    """

    names: list[str]
    forms: list[bytes]
    starts: list[int]
    ends: list[int]
    param_ids: list[int | None]
    rest: bytes


def scan(data: bytes | memoryview, *, most: int) -> Scan | None:
    """Take a table apart; None unless it is spelled as Burn does, names ascending, with one to `most` tensors."""
    import numpy as np

    table = b"".join((data, bytes(_SLACK)))
    keys = table[0] - 0xA0 if table[1:9] == _TOP else 0
    count, first_name = _map_head(table, 9)
    if not 1 <= keys <= 3 or not 1 <= count <= most:
        return None
    marks = _find(np, table, b"dtyp") - 1
    offsets = _find(np, table, b"_off") - 5
    if len(marks) != count or len(offsets) != count:
        return None
    columns = _columns(np, _Bytes(np, table), marks, offsets, first_name)
    if columns is None:
        return None
    starts, ends, param_ids, has_id, name_starts, name_ends, end = columns
    try:
        names = [table[at:to].decode() for at, to in zip(name_starts.tolist(), name_ends.tolist(), strict=True)]
    except UnicodeDecodeError:
        return None
    if not all(map(lt, names, names[1:])):
        return None
    ids = param_ids.tolist()
    if not has_id.all():
        ids = [one if there else None for one, there in zip(ids, has_id.tolist(), strict=True)]
    return Scan(
        names=names,
        forms=[table[at:to] for at, to in zip(marks.tolist(), offsets.tolist(), strict=True)],
        starts=starts.tolist(),
        ends=ends.tolist(),
        param_ids=ids,
        rest=bytes((0xA0 + keys - 1,)) + table[end:-_SLACK],
    )


def _map_head(data: bytes, pos: int) -> tuple[int, int]:
    """Read the number of tensors: 0 for anything but a map of known length."""
    byte = data[pos]
    if 0xA0 <= byte < 0xB8:
        return byte - 0xA0, pos + 1
    if 0xB8 <= byte < 0xBB:
        width = 1 << byte - 0xB8
        return int.from_bytes(data[pos + 1 : pos + 1 + width], "big"), pos + 1 + width
    return 0, pos


def _find(np: Any, padded: bytes, word: bytes) -> Any:
    """Give all positions of four bytes, ascending."""
    wanted = int.from_bytes(word, "little")
    found = []
    for shift in range(4):
        words = np.frombuffer(padded, "<u4", offset=shift, count=(len(padded) - shift) // 4)
        found.append(np.flatnonzero(words == wanted) * 4 + shift)
    return np.sort(np.concatenate(found))


class _Bytes:
    """The table as NumPy sees it: bytes, and the eight bytes that begin at each of them as one number."""

    def __init__(self, np: Any, padded: bytes) -> None:
        self.np = np
        self.end = len(padded) - _SLACK
        self._bytes = np.frombuffer(padded, np.uint8)
        self._eights = np.ndarray(len(padded) - 8, ">u8", buffer=padded, strides=(1,))
        self._widths = np.full(256, 99, np.int64)
        self._widths[:24] = 0
        self._widths[24:28] = (1, 2, 4, 8)

    def at(self, places: Any) -> Any:
        """Give the byte at every place."""
        return self._bytes[self.np.clip(places, 0, self.end)]

    def eight(self, places: Any) -> Any:
        """Give the eight bytes at every place; places outside the table give some that fit nothing."""
        return self._eights[self.np.clip(places, 0, self.end)].astype(self.np.uint64)

    def equal(self, places: Any, wanted: bytes) -> Any:
        """Say at which places the wanted bytes stand: at least six of them."""
        cut = self.np.uint64(max(0, 64 - 8 * len(wanted)))
        found = self.eight(places) >> cut == int.from_bytes(wanted[:8], "big")
        if len(wanted) > 8:
            found &= self.eight(places + len(wanted) - 8) == int.from_bytes(wanted[-8:], "big")
        return found

    def integers(self, places: Any) -> tuple[Any, Any, Any]:
        """Read an unsigned integer at every place: the values, the places behind them, and which are integers at all."""
        heads = self.at(places)
        widths = self._widths[heads]
        shifts = (64 - 8 * widths & 63).astype(self.np.uint64)
        values = self.np.where(widths == 0, heads, self.eight(places + 1) >> shifts)
        return values, places + 1 + widths, widths <= 8

    def texts(self, places: Any) -> tuple[Any, Any, Any]:
        """Read the head of a text of up to 65,535 bytes at every place: starts, ends, and which are texts at all."""
        np = self.np
        heads = self.at(places).astype(np.int64)
        medium, long = heads == 0x78, heads == 0x79
        two = (self.eight(places + 1) >> np.uint64(48)).astype(np.int64)
        lengths = np.where(medium, two >> 8, np.where(long, two, heads - 0x60))
        starts = places + 1 + medium + 2 * long
        return starts, starts + lengths, (heads >= 0x60) & (heads <= 0x79)


def _columns(np: Any, table: _Bytes, marks: Any, offsets: Any, first_name: int) -> Any:
    """Follow the descriptors from key to key; None where something else stands than Burn writes."""
    heads = table.at(marks - 1)
    has_id = heads == 0xA4
    sound = (has_id | (heads == 0xA3)) & (marks < offsets)
    sound &= table.equal(marks, _DTYPE) & table.equal(offsets, _OFFSETS)
    starts, cursor, whole = table.integers(offsets + len(_OFFSETS))
    sound &= whole
    ends, cursor, whole = table.integers(cursor)
    sound &= whole
    param_ids, behind, whole = table.integers(cursor + len(_PARAM_ID))
    sound &= ~has_id | (whole & table.equal(cursor, _PARAM_ID))
    cursor = np.where(has_id, behind, cursor)
    name_heads = np.concatenate(([first_name], cursor[:-1]))
    name_starts, name_ends, whole = table.texts(name_heads)
    sound &= whole & (name_ends == marks - 1)
    end = int(cursor[-1])
    if not sound.all() or end > table.end:
        return None
    return starts, ends, param_ids, has_id, name_starts, name_ends, end
