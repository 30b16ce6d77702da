"""The header: its length, its JSON, and each tensor's row, checked one by one."""

from __future__ import annotations

import os
from contextlib import suppress
from reprlib import Repr
from typing import Any, NoReturn

from firekeep.dtypes import BY_SAFETENSORS
from firekeep.errors import HeaderError, LimitError, MetadataError, TruncatedError, WrongFormatError
from firekeep.formats._json import parse_object, refuse_giants, require_text
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.formats.safetensors._table import Form, Table, sort_by_data
from firekeep.limits import Limits
from firekeep.sources import Source

METADATA = "__metadata__"
LENGTH_BYTES = 8
_POINTER = b"version https://git-lfs"
_REPR = Repr()
_REPR.maxlist, _REPR.maxstring, _REPR.maxother, _REPR.maxlevel = 8, 60, 60, 2
_U64 = (1 << 64) - 1


def read_header(source: Source, limits: Limits) -> bytes:
    """Give the header's bytes, once its length is known to be possible.

    Raises `TruncatedError` when the file is shorter than it says, `LimitError` past `limits.safetensors_header_bytes`.
    """
    if source.size < LENGTH_BYTES:
        what = "the file is empty" if source.size == 0 else f"the file has {source.size} bytes"
        raise TruncatedError(
            f"{what}: a safetensors file starts with {LENGTH_BYTES} bytes that give the length of its header",
            limit=LENGTH_BYTES,
            actual=source.size,
            remedy=COPY_AGAIN,
        )
    length = int.from_bytes(source.view(0, LENGTH_BYTES), "little")
    room = source.size - LENGTH_BYTES
    if length > room:
        _refuse_pointer(source)
        raise TruncatedError(
            f"the header is declared to have {length} bytes, and {room} follow: the file is truncated or is not safetensors",
            limit=length,
            actual=room,
            remedy=COPY_AGAIN,
        )
    if length > limits.safetensors_header_bytes:
        raise LimitError(
            f"the header has {length} bytes, more than the limit of {limits.safetensors_header_bytes}",
            limit=limits.safetensors_header_bytes,
            actual=length,
            remedy="Pass Limits(safetensors_header_bytes=...) if the file is trusted.",
        )
    if length == 0:
        raise HeaderError("the header has 0 bytes, where even a file without tensors has '{}'")
    view = source.view(LENGTH_BYTES, length)
    refuse_giants(view, "the header")
    return _copy(source, view)


def _copy(source: Source, view: memoryview) -> bytes:
    """Copy the header, from the file itself where it is one: to map its pages first takes ten times as long."""
    descriptor = source.fileno()
    if descriptor is not None and hasattr(os, "pread"):
        with suppress(OSError):
            raw = os.pread(descriptor, view.nbytes, LENGTH_BYTES)
            if len(raw) == view.nbytes:
                return raw
    return bytes(view)


def _refuse_pointer(source: Source) -> None:
    """Name the file that most often stands where a shard should: the detection by content looks at whole files, not at shards."""
    if bytes(source.view(0, min(source.size, len(_POINTER)))) == _POINTER:
        raise WrongFormatError(
            "this is a git-LFS pointer, not the file itself",
            kind="lfs-pointer",
            remedy="Fetch the file in its repository: `git lfs pull`.",
        )


def parse_header(raw: bytes, limits: Limits) -> tuple[Table, dict[str, str] | None]:
    """Parse a header into its table and `__metadata__`, None when there is none; raises `MetadataError` with the cause."""
    rows = parse_object(raw, "the header")
    metadata = None
    if METADATA in rows:
        metadata = check_metadata(rows.pop(METADATA))
    if len(rows) > limits.safetensors_tensors:
        raise LimitError(
            f"the header names {len(rows)} tensors, more than the limit of {limits.safetensors_tensors}",
            limit=limits.safetensors_tensors,
            actual=len(rows),
        )
    if has_escapes(raw):
        for name in rows:
            require_text(name, "the tensor name")
    return _tabulate(rows), metadata


def has_escapes(raw: bytes) -> bool:
    """Say whether any character may be written as its number."""
    return b"\\" in raw and b"\\u" in raw  # one byte is found ten times as fast as two


def check_metadata(value: object) -> dict[str, str] | None:
    """Require an object of texts; JSON's null counts as none, as for the library."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MetadataError(f"{METADATA} is a JSON {_kind(value)}, where an object of texts is due")
    if "dtype" in value and "data_offsets" in value:
        raise MetadataError(f"a tensor is called {METADATA}, which is the key of the file's metadata")
    for key, text in value.items():
        if not isinstance(text, str):
            raise MetadataError(f"{METADATA}: the value of {key!r} is a JSON {_kind(text)}, where only text is allowed")
        require_text(key, "the metadata key")
        require_text(text, f"the metadata value of {key!r}")
    return value


def _tabulate(rows: dict[str, Any]) -> Table:
    forms: list[Form] = []
    begins: list[int] = []
    for name, row in rows.items():
        try:
            code, shape = row["dtype"], row["shape"]
            begin, end = row["data_offsets"]
            count = 1
            for extent in shape:
                if type(extent) is not int or not 0 <= extent <= _U64:
                    raise TypeError
                count *= extent
                if count > _U64:
                    raise TypeError
        except (TypeError, KeyError, ValueError):
            _explain_row(name, row)
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= _U64 or type(shape) is not list:
            _explain_row(name, row)
        if type(code) is not str:
            _explain_row(name, row)
        dtype = BY_SAFETENSORS.get(code)
        if dtype is None:
            forms.append((None, tuple(shape), end - begin, _unknown(code)))
        elif count * dtype.bits != (end - begin) * 8:
            _explain_length(name, code, shape, count * dtype.bits, (begin, end))
        else:
            forms.append((dtype, tuple(shape), end - begin, None))
        begins.append(begin)
    return sort_by_data(list(rows), forms, begins)


def _unknown(code: str) -> str:
    return f"dtype {_short(code)} is not one firekeep knows: its bytes cannot be interpreted"


def _explain_row(name: str, row: object) -> NoReturn:
    """Say what is wrong with a row that was found to be wrong."""
    if not isinstance(row, dict):
        raise MetadataError(f"its row is a JSON {_kind(row)}, where an object is due", tensor=name)
    for key, kind in (("dtype", str), ("shape", list), ("data_offsets", list)):
        if key not in row:
            raise MetadataError(f"its row has no {key!r}", tensor=name)
        if not isinstance(row[key], kind):
            due = "text" if kind is str else "a list"
            raise MetadataError(f"its {key} is a JSON {_kind(row[key])}, where {due} is due", tensor=name)
    offsets, shape = row["data_offsets"], row["shape"]
    if len(offsets) != 2:
        raise MetadataError(f"its data_offsets are {len(offsets)} numbers, where 2 are due: begin and end", tensor=name)
    for what, number in (*(("shape", extent) for extent in shape), *(("data_offsets", offset) for offset in offsets)):
        if type(number) is not int:
            raise MetadataError(
                f"its {what} holds {_short(number)}, a JSON {_kind(number)}, not an integer", tensor=name
            )
        if number < 0:
            raise MetadataError(f"its {what} holds {_short(number)}, which is negative", tensor=name)
        if number > _U64:
            raise MetadataError(f"its {what} holds {_short(number)}, which overflows 64 bits", tensor=name)
    if offsets[0] > offsets[1]:
        raise MetadataError(f"its data_offsets end at {offsets[1]}, before they begin at {offsets[0]}", tensor=name)
    raise MetadataError(f"its shape {_short(shape)} overflows: more than 2**64 - 1 elements", tensor=name)


def _explain_length(name: str, code: str, shape: list[int], bits: int, span: tuple[int, int]) -> NoReturn:
    where = f"its data_offsets span {span[1] - span[0]} ({span[0]} to {span[1]})"
    if bits % 8:
        raise MetadataError(f"shape {_short(shape)} of {code} is {bits} bits, not whole bytes; {where}", tensor=name)
    raise MetadataError(
        f"shape {_short(shape)} of {code} needs {bits // 8} bytes, {where}",
        tensor=name,
        limit=bits // 8,
        actual=span[1] - span[0],
    )


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "integer", float: "float"}
    return names.get(type(value), "null")


def _short(value: object) -> str:
    """Show a value from the file, whatever its length and depth."""
    return _REPR.repr(value)
