"""Tensor entries as NumPy arrays, and back."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firekeep.blobs import Blob
from firekeep.dtypes import TABLE, DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.strides import gather

Array = NDArray[Any]
_LITTLE = sys.byteorder == "little"


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Give the NumPy dtype of a row, through ml_dtypes for the small floats; raises `UnsupportedError` where there is none."""
    if dtype.numpy is None:
        raise UnsupportedError(f"NumPy has no type for {dtype}: its bytes can be copied, not computed with")
    module, _, name = dtype.numpy.rpartition(".")
    if not module:
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


@cache
def _rows() -> Mapping[np.dtype[Any], DType]:
    rows: dict[np.dtype[Any], DType] = {}
    for row in TABLE:
        if row.numpy is not None:
            rows.setdefault(numpy_dtype(row), row)
    return rows


def dtype_of(array: Array) -> DType:
    """Give the row of an array's dtype, whatever its byte order; raises `UnsupportedError` for objects, text and the like."""
    rows, dtype = _rows(), array.dtype
    row = rows.get(dtype) or rows.get(dtype.newbyteorder("="))
    if row is None:
        raise UnsupportedError(f"NumPy's {array.dtype} is not a tensor dtype")
    return row


def as_array(entry: TensorEntry) -> Array:
    """Give a tensor as an array: a view of the file where the bytes lie there as they are, else a fresh array.

    F4 is unpacked to one element a byte, low half first. Raises `UnsupportedError`, naming the tensor, for quantized kinds,
    6-bit floats and entries with a `problem`.
    """
    dtype = entry.require()
    try:
        target = numpy_dtype(dtype)
    except UnsupportedError as error:
        raise error.at(tensor=entry.name)  # noqa: B904 - the same error, with its place
    raw = entry.read()
    try:
        if dtype.bits == 4:
            return _unpack_halves(raw, target).reshape(entry.shape)
        if raw.nbytes == 0:
            return np.empty(entry.shape, target)
        return np.frombuffer(raw, dtype=target).reshape(entry.shape)
    except ValueError:  # more axes than NumPy has, or an extent beside a zero that no index reaches
        raise UnsupportedError(
            f"NumPy cannot hold a shape of {len(entry.shape)} axes and largest extent {max(entry.shape, default=0)}",
            tensor=entry.name,
        ) from None


def _unpack_halves(raw: memoryview, target: np.dtype[Any]) -> Array:
    packed = np.frombuffer(raw, dtype=np.uint8)
    halves = np.empty(packed.size * 2, np.uint8)
    halves[0::2] = packed & 0x0F
    halves[1::2] = packed >> 4
    return halves.view(target)


def _pack_halves(array: Array) -> memoryview:
    halves = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return (halves[0::2] & 0x0F | halves[1::2] << 4).data


def entry_of(name: str, value: object) -> TensorEntry:
    """Describe an array as an entry, without copying it.

    Any layout is taken: F-order, strided, negative strides, broadcast and big-endian arrays are gathered when drawn. Anything with
    `__array__` or DLPack will do. Raises `UnsupportedError`, naming the tensor, for dtypes that are not tensors'.
    """
    array = _as_numpy(value)
    try:
        dtype = dtype_of(array)
    except UnsupportedError as error:
        raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
    shape = array.shape
    nbytes = dtype.nbytes(shape) if dtype.bits < 8 else array.nbytes  # NumPy gives halves a byte each
    return TensorEntry(name, dtype, shape, ArrayBlob(array, nbytes))


class ArrayBlob(Blob):
    """The values of an array as row-major, little-endian bytes: its own memory where that is what it holds."""

    __slots__ = ("array",)

    def __init__(self, array: Array, nbytes: int) -> None:
        self.array = array
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """Give the array's memory, or gather it: F-order, strides, broadcasts, big-endian and packed halves."""
        array = self.array
        if not array.size:
            return memoryview(b"")
        if _LITTLE and array.dtype.isbuiltin == 1 and array.flags.c_contiguous:
            return array.data.cast("B")  # the way of most arrays, and twice as fast as the one below
        if array.nbytes != self.nbytes:
            return _pack_halves(array)
        if not (_LITTLE and array.dtype.isnative and array.flags.c_contiguous):
            array = gather(array, array.dtype.newbyteorder("<"))
        return array.reshape(-1).view(np.uint8).data

    def memory(self) -> tuple[range, ...]:
        """Give the range of addresses that the elements lie in."""
        array = self.array
        steps = [(extent - 1) * step for extent, step in zip(array.shape, array.strides, strict=True)]
        start = _address(array)
        low, high = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
        return (range(start + low, start + high + array.itemsize),) if array.size else ()

    def identity(self) -> Hashable:
        """Say which memory is looked at, and how: equal for two arrays that show the same elements in the same way."""
        array = self.array
        root: Any = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root is array and array.base is None:
            return (id(array), 0, array.strides, array.dtype.str)  # asking NumPy for an address costs ten times as much
        if root.base is None:
            return (id(root), _address(array) - _address(root), array.strides, array.dtype.str)
        return (None, _address(array), array.strides, array.dtype.str)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _as_numpy(value: object) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.from_dlpack(value)
