"""Datasets: where the elements are, as a window of the file, or as chunks to be put together when drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firekeep.blobs import Blob, DeferredBlob, MemoryBlob, StridedBlob
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import LimitError, MetadataError
from firekeep.formats._absent import absent
from firekeep.formats.hdf5._chunks import ChunkedBlob, Chunks, read_filters
from firekeep.formats.hdf5._file import Fields, Hdf5
from firekeep.formats.hdf5._headers import (
    ATTRIBUTE,
    DATASPACE,
    DATATYPE,
    EXTERNAL,
    FILL,
    FILTERS,
    LAYOUT,
    Message,
    Messages,
)
from firekeep.formats.hdf5._types import Type, read_space, read_texts, read_type

_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2
_ELSEWHERE = "its elements are in other files, which are not opened"
_NEWER = (
    "its chunks are kept in a way of newer files (libver='latest'): "
    "write it again with h5py.File(..., libver='earliest'), or unchunked"
)
_OPAQUE = 5
_MOST_TEXTS = 100_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """An entry, and where its data begin: None where they are nowhere in the file."""

    entry: TensorEntry
    place: int | None


def is_dataset(messages: Messages) -> bool:
    """Tell a dataset by its messages."""
    return messages.find(DATASPACE) is not None and messages.find(DATATYPE) is not None


def read_dataset(file: Hdf5, messages: Messages, name: str) -> Dataset:
    """Describe a dataset. What cannot be read of it is the entry's problem; raises a `FormatError` where the file contradicts itself."""
    space, kind = _require(messages, DATASPACE), read_type(file, _require(messages, DATATYPE))
    shape = read_space(file, space)
    if shape is None:
        return Dataset(absent(name, (), "it has no elements (a null dataspace)"), None)
    dtype = kind.dtype if kind.dtype is not None else _dtype_by_attribute(file, messages, kind)
    if dtype is None:
        return Dataset(absent(name, shape, kind.problem or "its type is not known"), None)
    nbytes = dtype.nbytes(shape)
    if nbytes > file.limits.tensor_bytes:
        raise LimitError(
            f"it has {nbytes} bytes, the limit is {file.limits.tensor_bytes}",
            limit=file.limits.tensor_bytes,
            actual=nbytes,
        )
    if messages.find(EXTERNAL) is not None:
        return Dataset(absent(name, shape, _ELSEWHERE, dtype=dtype, nbytes=nbytes), None)
    found = _locate(file, messages, dtype, shape)
    if isinstance(found, str):
        return Dataset(absent(name, shape, found, dtype=dtype, nbytes=nbytes), None)
    blob, place = found
    if kind.is_big:
        blob = _turned(blob, dtype, shape)
    return Dataset(TensorEntry(name, dtype, shape, blob), place)


def _dtype_by_attribute(file: Hdf5, messages: Messages, kind: Type) -> DType | None:
    """Give the dtype that Keras writes beside the elements which HDF5 has no type for."""
    if kind.kind != _OPAQUE or kind.size != 2:
        return None
    return BY_NAME["BF16"] if read_attributes(file, messages).get("dtype") == "bfloat16" else None


def _turned(blob: Blob, dtype: DType, shape: tuple[int, ...]) -> Blob:
    steps = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return StridedBlob(blob, offset=0, itemsize=dtype.itemsize, shape=shape, strides=steps, swap=dtype.itemsize)


def _locate(file: Hdf5, messages: Messages, dtype: DType, shape: tuple[int, ...]) -> tuple[Blob, int | None] | str:
    """Find the elements by the layout message; a text says why they cannot be had."""
    fields = Fields(file, _require(messages, LAYOUT).data)
    version, kind = fields.number(1), fields.number(1)
    if version not in (3, 4):
        return f"its layout is of version {version}, which is not read"
    nbytes = dtype.nbytes(shape)
    if kind == _COMPACT:
        if fields.number(2) != nbytes:
            raise MetadataError(f"a dataset of {nbytes} bytes is kept in its header, which has another number of them")
        return MemoryBlob(bytes(fields.take(nbytes))), None
    if kind == _CONTIGUOUS:
        return _contiguous(file, messages, fields, dtype, nbytes)
    if kind == _CHUNKED and version == 3:
        return _chunked(file, messages, fields, dtype, shape)
    return _NEWER if kind == _CHUNKED else _ELSEWHERE


def _contiguous(file: Hdf5, messages: Messages, fields: Fields, dtype: DType, nbytes: int) -> tuple[Blob, int | None]:
    address, length = fields.address(), fields.length()
    if file.is_nowhere(address):
        return _unwritten(file, messages, dtype, nbytes), None
    if length != nbytes:
        raise MetadataError(
            f"a dataset needs {nbytes} bytes by its shape, and {length} are kept", limit=nbytes, actual=length
        )
    return file.window(address, nbytes), address


def _unwritten(file: Hdf5, messages: Messages, dtype: DType, nbytes: int) -> Blob:
    """Give the elements of a dataset that was made and never written: the value that it is filled with."""
    pattern = _fill_value(file, messages, dtype.itemsize)
    _refuse_bomb(file, nbytes, 0)
    return DeferredBlob(nbytes, lambda: pattern * (nbytes // len(pattern)))


def _chunked(
    file: Hdf5, messages: Messages, fields: Fields, dtype: DType, shape: tuple[int, ...]
) -> tuple[Blob, int | None] | str:
    rank, tree = fields.number(1) - 1, fields.address()
    extents = tuple(fields.number(4) for _ in range(max(0, rank)))
    if rank != len(shape) or rank == 0 or fields.number(4) != dtype.itemsize or 0 in extents:
        raise MetadataError(f"chunks of shape {list(extents)} do not fit a dataset of shape {list(shape)}")
    filters = messages.find(FILTERS)
    steps = read_filters(file, filters) if filters is not None else ()
    if isinstance(steps, str):
        return steps
    chunks = Chunks(file, tree, extents, shape)
    stored = min(chunks.read(), file.size)
    _refuse_bomb(file, dtype.nbytes(shape), stored)
    _refuse_bomb(file, math.prod(extents) * dtype.itemsize, stored)
    pattern = _fill_value(file, messages, dtype.itemsize)
    return ChunkedBlob(chunks, steps, dtype.itemsize, pattern), chunks.first


def _refuse_bomb(file: Hdf5, nbytes: int, stored: int) -> None:
    """Refuse what claims to be far larger than the bytes it is made of."""
    most = stored * file.limits.inflate_ratio + file.limits.expanded_bytes
    if nbytes > most:
        raise LimitError(f"{stored} bytes of the file claim to be {nbytes}", limit=most, actual=nbytes)


def _fill_value(file: Hdf5, messages: Messages, size: int) -> bytes:
    """Give the bytes of an element that was never written: those that the file says, or zeros."""
    message = messages.find(FILL)
    if message is None or message.is_shared:
        return bytes(size)
    fields = Fields(file, message.data)
    version = fields.number(1)
    if version == 3:
        is_said = fields.number(1) & 0x20
    else:
        fields.skip(2)
        is_said = fields.number(1)
    said = bytes(fields.take(fields.number(4))) if is_said and fields.left >= 4 else b""
    return said if len(said) == size else bytes(size)


def _require(messages: Messages, kind: int) -> Message:
    found = messages.find(kind)
    if found is None:
        raise MetadataError(f"an object of the file has no message of kind {kind:#x}")
    return found


def read_attributes(file: Hdf5, messages: Messages) -> Mapping[str, Any]:
    """Give the attributes of an object that are text, or lists of text."""
    return dict(pair for message in messages.each(ATTRIBUTE) if (pair := _read_attribute(file, message)) is not None)


def _read_attribute(file: Hdf5, message: Message) -> tuple[str, Any] | None:
    fields = Fields(file, message.data)
    version, flags = fields.number(1), fields.number(1)
    if message.is_shared or version not in (1, 2, 3) or (version > 1 and flags):
        return None
    sizes = [fields.number(2) for _ in range(3)]
    if version == 3:
        fields.skip(1)
    take = fields.padded if version == 1 else fields.take
    name = bytes(take(sizes[0])).rstrip(b"\0").decode("utf-8", "replace")
    kind = read_type(file, Message(DATATYPE, take(sizes[1]), is_shared=False))
    shape = read_space(file, Message(DATASPACE, take(sizes[2]), is_shared=False))
    if shape is None or not kind.is_text or kind.size == 0:
        return None
    number = math.prod(shape)
    if number > _MOST_TEXTS or number * kind.size > fields.left:
        raise MetadataError(f"the attribute {name[:40]!r} claims {number} texts, and has {fields.left} bytes")
    texts = list(read_texts(file, kind, fields.take(number * kind.size), number))
    return name, texts if shape else texts[0]
