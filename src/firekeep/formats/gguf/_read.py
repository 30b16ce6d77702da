"""Opening a file: its values, and the table of tensors.

"GGUF"   version u32   tensors   values   [key, type, value] ...   [name, axes, extents (the last axis first), type, offset] ...
padding to `general.alignment`   data
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from firekeep.blobs import Blob, DeferredBlob, StridedBlob, WindowBlob
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import HeaderError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.formats._absent import absent, tell_absent
from firekeep.formats._protocol import Container, OpenOptions
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.formats.gguf._cursor import ArrayAt, Cursor
from firekeep.formats.gguf._types import BLOCKS, PLAIN
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.sources import Source

_MAGIC = b"GGUF"
_ALIGNMENT = "general.alignment"
_SHAPE = "comfy.gguf.orig_shape."
"""The key by which ComfyUI keeps the shape of a tensor that was reshaped so that its rows fill whole blocks."""
_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table of tensors: `extents` with the last axis first, `offset` from where the data begin."""

    name: str
    extents: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Table:
    """What the head of a file says."""

    values: Mapping[str, Any]
    rows: tuple[_Row, ...]
    version: int
    order: Literal["little", "big"]
    end: int

    @property
    def alignment(self) -> int:
        """To what multiple the data of each tensor begin."""
        found = self.values.get(_ALIGNMENT, 32)
        if type(found) is not int or found < 1 or found & (found - 1):
            raise MetadataError(f"{_ALIGNMENT} is {str(found)[:40]}, which is no power of two")
        return found


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read the head of the file, and no tensor.

    Shapes are given as NumPy and PyTorch have them, the last axis innermost. Texts among the values are `metadata`; all values are
    `values()`, whose arrays are read when it is called. Tensors that are quantized in blocks keep their bytes under the name of their
    kind, or are F32 with `options.dequantize`. Raises a `FormatError` for a head or data that are cut short, names given twice, and
    tensors that overlap.
    """
    with collector_paused():
        table = _read_table(source, options.limits)
        begin = _align(table.end, table.alignment)
        entries, end = _place(source, table, begin, options)
    left = source.size - end
    notes = list(tell_absent(entries))
    if left > 0 and (left >= table.alignment or source.size != _align(end, table.alignment)):
        notes.append(f"{left} bytes follow the last tensor and were left aside")
    blocks = sorted({BLOCKS[row.kind].name for row in table.rows if row.kind in BLOCKS})
    if blocks and not options.dequantize:
        notes.append(
            f"some tensors are quantized in blocks ({', '.join(blocks)}): their bytes are kept, and they are no arrays"
        )
    return Container(
        format="gguf",
        variant=f"v{table.version}",
        entries={entry.name: entry for entry in entries},
        metadata={key: value for key, value in table.values.items() if isinstance(value, str)},
        notes=tuple(notes),
        details={
            "version": table.version,
            "byte_order": table.order,
            "alignment": table.alignment,
            "values": len(table.values),
            "data_offset": begin,
            "file_bytes": source.size,
        },
        values=lambda: _read_values(source, table, options.limits),
    )


def _read_table(source: Source, limits: Limits) -> _Table:
    head = bytes(source.view(0, min(source.size, 8)))
    if head[:4] != _MAGIC[: len(head)]:
        raise HeaderError(f"a GGUF file begins with {_MAGIC!r}, this one with {head[:4]!r}", offset=0)
    if len(head) < 8:
        raise TruncatedError("the file ends within its header", limit=24, actual=source.size, remedy=COPY_AGAIN)
    order: Literal["little", "big"] = "little" if head[4:6] != b"\0\0" else "big"
    version = int.from_bytes(head[4:8], order)
    if not 1 <= version <= 3:
        raise UnsupportedError(f"the file is of version {version} of GGUF; 1 to 3 are known")
    cursor = _cursor(source, limits, order, version)
    cursor.position = 8
    tensors, pairs = cursor.count(), cursor.count()
    _require_count(tensors, limits, source)
    values = dict(_read_pairs(cursor, pairs))
    rows = tuple(_read_rows(cursor, tensors))
    return _Table(values, rows, version, order, cursor.position)


def _cursor(source: Source, limits: Limits, order: str, version: int) -> Cursor:
    return Cursor(source, limits, order="<" if order == "little" else ">", wide=version > 1)


def _require_count(tensors: int, limits: Limits, source: Source) -> None:
    if tensors > limits.safetensors_tensors:
        raise LimitError(
            f"the file claims {tensors} tensors: the limit is {limits.safetensors_tensors}",
            limit=limits.safetensors_tensors,
            actual=tensors,
        )
    if tensors * 16 > source.size:
        raise TruncatedError(
            f"the file claims {tensors} tensors and has {source.size} bytes",
            limit=tensors * 16,
            actual=source.size,
            remedy=COPY_AGAIN,
        )


def _read_pairs(cursor: Cursor, pairs: int) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for _ in range(pairs):
        key = cursor.text()
        if key in seen:
            raise MetadataError(f"the key {key[:80]!r} is there twice")
        seen.add(key)
        yield key, cursor.value()


def _read_rows(cursor: Cursor, tensors: int) -> Iterator[_Row]:
    seen: set[str] = set()
    for _ in range(tensors):
        name = cursor.text()
        if name in seen:
            raise MetadataError("the name is there twice", tensor=name)
        seen.add(name)
        axes = cursor.number("I")
        if axes > _MOST_AXES:
            raise MetadataError(f"it has {axes} axes", tensor=name)
        extents = tuple(cursor.count() for _ in range(axes))
        yield _Row(name, extents, cursor.number("I"), cursor.number("Q"))


def _place(source: Source, table: _Table, begin: int, options: OpenOptions) -> tuple[list[TensorEntry], int]:
    """Find where each tensor lies, in the order that they do, and where the last one ends."""
    entries: list[TensorEntry] = []
    before, end = ("", 0, 0), begin if table.rows else table.end
    for row in sorted(table.rows, key=lambda row: row.offset):
        entry = _make(source, table, row, begin, options)
        entries.append(entry)
        start, nbytes = row.offset, _stored_bytes(row)
        if nbytes is None:
            continue
        if start % table.alignment:
            raise MetadataError(
                f"it begins at {start}, no multiple of the alignment {table.alignment}", tensor=row.name
            )
        if begin + start + nbytes > source.size:
            raise TruncatedError(
                f"the file is cut short: the tensor ends at byte {begin + start + nbytes}, the file at {source.size}",
                tensor=row.name,
                limit=begin + start + nbytes,
                actual=source.size,
                remedy=COPY_AGAIN,
            )
        if nbytes and start < before[2] and (start, start + nbytes) != before[1:]:
            raise MetadataError(f"tensors {before[0]!r} and {row.name!r} both claim byte {begin + start} of the file")
        if nbytes:
            before = (row.name, start, start + nbytes)
        end = max(end, begin + start + nbytes)
    return entries, end


def _stored_bytes(row: _Row) -> int | None:
    """Say how long a tensor is in the file; None for an unknown type."""
    dtype = PLAIN.get(row.kind) or BLOCKS.get(row.kind)
    if dtype is None:
        return None
    if dtype.block is not None and (not row.extents or row.extents[0] % dtype.block[0]):
        raise MetadataError(
            f"its rows of {row.extents[0] if row.extents else 1} elements do not fill blocks of {dtype.block[0]} ({dtype.name})",
            tensor=row.name,
        )
    return dtype.nbytes(row.extents)


def _make(source: Source, table: _Table, row: _Row, begin: int, options: OpenOptions) -> TensorEntry:
    dtype = PLAIN.get(row.kind) or BLOCKS.get(row.kind)
    nbytes = _stored_bytes(row)
    shape, problem = _shape_of(source, table, row, options.limits)
    if dtype is None or nbytes is None:
        return absent(
            row.name, shape, f"its type has the number {row.kind}, which this version of firekeep does not know"
        )
    if nbytes > options.limits.tensor_bytes:
        raise LimitError(
            f"it has {nbytes} bytes, the limit is {options.limits.tensor_bytes}",
            tensor=row.name,
            limit=options.limits.tensor_bytes,
            actual=nbytes,
        )
    if problem is None and dtype.block is not None and table.order == "big":
        problem = (
            f"it is quantized in blocks ({dtype.name}) of a big-endian machine, and their inside is not turned round"
        )
    if problem is not None:
        return absent(row.name, shape, problem, dtype=dtype, nbytes=nbytes)
    window = WindowBlob(source, begin + row.offset, nbytes)
    if dtype.block is None:
        return TensorEntry(row.name, dtype, shape, window if table.order == "little" else _turned(window, dtype, shape))
    return (
        _dequantized(row.name, dtype, shape, window)
        if options.dequantize
        else TensorEntry(row.name, dtype, shape, window)
    )


def _turned(window: WindowBlob, dtype: DType, shape: tuple[int, ...]) -> Blob:
    steps = tuple(itertools.accumulate(shape[::-1], lambda a, b: a * b, initial=1))[:-1][::-1]
    swap = dtype.itemsize if dtype.itemsize > 1 else 0
    return StridedBlob(window, offset=0, itemsize=dtype.itemsize, shape=shape, strides=steps, swap=swap)


def _dequantized(name: str, dtype: DType, shape: tuple[int, ...], window: WindowBlob) -> TensorEntry:
    from firekeep.formats.gguf._dequantize import dequantize

    target = BY_NAME["F32"]
    blob = DeferredBlob(
        target.nbytes(shape), lambda: dequantize(dtype, window.view(), name=name), identity=(window.identity(), "F32")
    )
    return TensorEntry(name, target, shape, blob)


def _shape_of(source: Source, table: _Table, row: _Row, limits: Limits) -> tuple[tuple[int, ...], str | None]:
    """Give a tensor's shape: the one it had before it was reshaped for its blocks, where the file keeps that."""
    shape = row.extents[::-1]
    kept = table.values.get(_SHAPE + row.name)
    if not isinstance(kept, ArrayAt) or kept.length > _MOST_AXES:
        return shape, None
    extents = _cursor(source, limits, table.order, table.version).read_array(kept)
    if not all(type(extent) is int and extent >= 0 for extent in extents) or math.prod(extents) != math.prod(shape):
        return shape, f"its shape is {list(shape)}, and the value {_SHAPE}{row.name} says {str(extents)[:60]}"
    return tuple(extents), None


def _read_values(source: Source, table: _Table, limits: Limits) -> dict[str, Any]:
    """Give all values, with the arrays that were skipped."""
    cursor = _cursor(source, limits, table.order, table.version)
    return {
        key: cursor.read_array(value) if isinstance(value, ArrayAt) else value for key, value in table.values.items()
    }


def _align(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment
