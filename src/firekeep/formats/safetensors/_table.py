"""The table of tensors as a whole: every byte of the data belongs to exactly one of them."""

from __future__ import annotations

from typing import NoReturn, Protocol

from firekeep.dtypes import DType
from firekeep.errors import MetadataError, TruncatedError

Form = tuple[DType | None, tuple[int, ...], int, str | None]
"""What a row says of a tensor besides its name and place: dtype, shape, bytes, and why there is no dtype, where there is none."""


class Table(Protocol):
    """The rows of a checked header, in the order of their data, which are contiguous from 0."""

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        ...

    def __len__(self) -> int: ...

    def find(self, name: str) -> tuple[Form, int] | None:
        """Give one tensor's form and where its data begin, or None."""
        ...

    def names(self) -> list[str]:
        """Give all names."""
        ...

    def forms(self) -> list[Form]:
        """Give each tensor's form."""
        ...


class ParsedTable:
    """Rows as lists."""

    def __init__(self, names: list[str], forms: list[Form], begins: list[int]) -> None:
        self._names = names
        self._forms = forms
        self._begins = begins

    def __len__(self) -> int:
        return len(self._names)

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return self._begins[-1] + self._forms[-1][2] if self._names else 0

    def find(self, name: str) -> tuple[Form, int] | None:
        """Give one tensor's form and where its data begin, or None."""
        try:
            row = self._names.index(name)
        except ValueError:
            return None
        return self._forms[row], self._begins[row]

    def names(self) -> list[str]:
        """Give all names."""
        return self._names

    def forms(self) -> list[Form]:
        """Give each tensor's form."""
        return self._forms


def sort_by_data(names: list[str], forms: list[Form], begins: list[int]) -> ParsedTable:
    """Put rows into the order their data lie; raises `MetadataError` for a hole or an overlap, naming both sides."""
    cursor = 0
    for begin, form in zip(begins, forms, strict=True):
        if begin != cursor:
            break
        cursor += form[2]
    else:
        return ParsedTable(names, forms, begins)
    order = sorted(range(len(names)), key=lambda row: (begins[row], forms[row][2]))
    table = ParsedTable([names[row] for row in order], [forms[row] for row in order], [begins[row] for row in order])
    _require_contiguous(table.names(), forms=table.forms(), begins=[begins[row] for row in order])
    return table


def require_length(table: Table, room: int, *, allow_trailing: bool) -> int:
    """Compare the table with the `room` bytes there are for data; give how many follow the last tensor.

    Raises `TruncatedError` saying how much is missing and which tensors are whole, and `MetadataError` for bytes after the last
    tensor, unless they are allowed.
    """
    due = table.data_bytes
    if room < due:
        _explain_truncation(table, due, room)
    if room > due and not allow_trailing:
        last = f"the last tensor, {table.names()[-1]!r}" if len(table) else "the header, which names no tensor"
        raise MetadataError(
            f"{room - due} bytes follow {last}: the table accounts for {due} bytes of data, the file has {room}",
            offset=due,
            limit=due,
            actual=room,
            remedy="Open it with allow_trailing=True (--allow-trailing) to read the tensors and leave those bytes aside.",
        )
    return room - due


def _require_contiguous(names: list[str], forms: list[Form], begins: list[int]) -> None:
    before, span = "", (0, 0)
    for name, form, begin in zip(names, forms, begins, strict=True):
        here = (begin, begin + form[2])
        if begin > span[1]:
            place = (
                f"between tensors {before!r} and {name!r}" if name != names[0] else f"before the first tensor, {name!r}"
            )
            raise MetadataError(
                f"a hole of {begin - span[1]} bytes in the data ({span[1]} to {begin}), {place}", offset=span[1]
            )
        if begin < span[1]:
            _explain_overlap(before, span, name, here)
        before, span = name, here


def _explain_overlap(first: str, span: tuple[int, int], second: str, other: tuple[int, int]) -> NoReturn:
    if span == other:
        raise MetadataError(
            f"tensors {first!r} and {second!r} both claim bytes {span[0]} to {span[1]} of the data: "
            "a safetensors file stores each tensor by itself"
        )
    raise MetadataError(
        f"tensors {first!r} and {second!r} overlap: bytes {span[0]} to {span[1]} and {other[0]} to {other[1]} of the data",
        offset=other[0],
    )


def _explain_truncation(table: Table, due: int, room: int) -> NoReturn:
    whole, end = [], 0
    for name, form in zip(table.names(), table.forms(), strict=True):
        end += form[2]
        if end <= room:
            whole.append(name)
    if whole:
        first = ", ".join(map(repr, whole[:3])) + (", ..." if len(whole) > 3 else "")
        kept = f"{len(whole)} of {len(table)} tensors are whole ({first})"
    else:
        kept = f"none of the {len(table)} tensors is whole"
    raise TruncatedError(
        f"the file is truncated: {due} bytes of data are declared, {room} are there, {due - room} are missing; {kept}",
        limit=due,
        actual=room,
        remedy="Fetch the file again.",
    )
