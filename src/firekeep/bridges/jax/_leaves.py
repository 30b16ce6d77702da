"""Arrays of JAX, their shapes without values, and NumPy's arrays beside them: what they are, as entries."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firekeep.arrays import ArrayBlob, dtype_of
from firekeep.blobs import Blob
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.tensors import array_entry

Piece = tuple[tuple[slice, ...], jax.Array]
"""A part of an array's values, and where in the whole it lies."""

_NO_NUMBERS = tuple("OUSMm")
_KEY_DATA = BY_NAME["U32"]
_NO_DTYPE = BY_NAME["U8"]


def is_leaf(value: Any) -> bool:
    """Tell arrays, and what stands for one."""
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return True
    if not isinstance(value, np.ndarray | np.generic):
        return False
    return value.dtype.kind not in _NO_NUMBERS and value.dtype.names is None


def is_number(value: Any) -> bool:
    """Tell Python's numbers, which a training state holds beside arrays."""
    return isinstance(value, bool | int | float)


def is_key(value: Any) -> bool:
    """Tell typed PRNG keys, and the shapes of such."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and not isinstance(dtype, np.dtype) and bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def key_suffix(value: Any) -> str | None:
    """Give the name of a typed key's implementation, or None for any other array."""
    return implementation(value) if is_key(value) else None


def implementation(value: Any) -> str:
    """Name the implementation of a typed key."""
    if isinstance(value, jax.Array):
        return str(jax.random.key_impl(value))
    return str(value.dtype._impl.name)  # noqa: SLF001 - there is no public word for the key of a shape


def looks(value: Any) -> tuple[DType, tuple[int, ...], str | None]:
    """Give dtype and shape of an array as a file holds it, and what is wrong with it."""
    if is_number(value):
        is_huge = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
        return _number_dtype(value), (), "it is a whole number of more than 64 bits" if is_huge else None
    shape = tuple(map(int, value.shape))
    if is_key(value):
        return _KEY_DATA, (*shape, *_key_shape(value)), None
    try:
        return _row_of(value.dtype), shape, None
    except UnsupportedError as error:
        return _NO_DTYPE, shape, error.message


@cache
def _row_of(dtype: Any) -> DType:
    return dtype_of(np.empty(0, dtype))


def fault(value: Any) -> str | None:
    """Say why an array has no values to give, or None."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return "it has a shape and no values: load the values into it first"
    if isinstance(value, jax.core.Tracer):
        return "JAX is tracing it, and it has no values yet: save outside of jit, grad and vmap"
    if not isinstance(value, jax.Array):
        return None
    if value.is_deleted():
        return "its memory was given away (donated): use what the step returned"
    if not value.is_fully_addressable:
        return (
            "parts of it lie on devices of other processes: gather it first, "
            "as jax.experimental.multihost_utils.process_allgather does"
        )
    return None


def describe(path: str, value: Any) -> TensorEntry:
    """Describe an array without copying it; one without values has a `problem`."""
    dtype, shape, problem = looks(value)
    problem = problem or fault(value)
    if problem is not None:
        return TensorEntry(path, dtype, shape, Blob(dtype.nbytes(shape)), problem=problem)
    if is_number(value):
        return array_entry(path, np.asarray(value, _number_dtype(value).numpy))
    if isinstance(value, jax.Array):
        return TensorEntry(path, dtype, shape, JaxBlob(value, dtype.nbytes(shape)))
    return array_entry(path, value)


class JaxBlob(Blob):
    """The values of an array of JAX as row-major bytes, fetched from its devices when they are drawn."""

    __slots__ = ("_coming", "_value")
    comes_late = True

    def __init__(self, value: Any, nbytes: int) -> None:
        self._value = value
        self._coming: list[Piece] | None = None
        super().__init__(nbytes)

    def view(self) -> memoryview:
        """Give the array's memory where that is one piece of the CPU's, else a copy of it."""
        if (problem := fault(self._value)) is not None:
            raise UnsupportedError(problem)
        value = jax.random.key_data(self._value) if is_key(self._value) else self._value
        coming, self._coming = self._coming, None  # what was copied beforehand goes with the view
        return ArrayBlob(join(value, pieces_of(value) if coming is None else coming), self.nbytes).view()

    def expect(self) -> None:
        """Have the devices begin to copy the values to the CPU's memory, if they are not there."""
        value = self._value
        if self._coming is None and fault(value) is None and not is_key(value) and not _is_at_hand(value):
            self._coming = pieces_of(value)
            for _, piece in self._coming:
                piece.copy_to_host_async()

    def lasting(self) -> memoryview | None:
        """Give the array's memory where it is the CPU's: arrays never change, and JAX gives no memory away that is looked at."""
        value = self._value
        return self.view() if fault(value) is None and value.is_fully_replicated and _is_at_hand(value) else None

    def memory(self) -> tuple[range, ...] | None:
        """Give the CPU's memory: JAX never writes to it, but NumPy and PyTorch may, who can have it through dlpack."""
        if fault(self._value) is not None or not _is_at_hand(self._value):
            return ()
        value = jax.random.key_data(self._value) if is_key(self._value) else self._value
        held = [(piece.unsafe_buffer_pointer(), piece.nbytes) for _, piece in pieces_of(value)]
        return tuple(range(start, start + nbytes) for start, nbytes in held)

    def identity(self) -> Hashable:
        """One object is one array."""
        return ("jax", id(self._value))


def pieces_of(value: jax.Array) -> list[Piece]:
    """Give each part of the values once, as an array of its own, which whatever is copied of it stays with."""
    if value.is_fully_replicated:
        return [((), value.addressable_data(0))]
    return [
        (shard.index, value.addressable_data(number))
        for number, shard in enumerate(value.addressable_shards)
        if shard.replica_id == 0
    ]


def join(value: jax.Array, pieces: Sequence[Piece]) -> Any:
    """Give the values as an array of NumPy's. No copy stays with the array, as `numpy.asarray` would leave one there."""
    if value.is_fully_replicated:
        return np.asarray(pieces[0][1])
    whole = np.empty(value.shape, value.dtype)
    for index, piece in pieces:
        whole[index] = np.asarray(piece)
    return whole


def _is_at_hand(value: Any) -> bool:
    """Say whether the CPU has the values in its memory."""
    return all(device.platform == "cpu" for device in value.sharding.device_set)


def _key_shape(value: Any) -> tuple[int, ...]:
    return tuple(value.dtype._impl.key_shape)  # noqa: SLF001 - the public way is to make a key


def _number_dtype(value: float) -> DType:
    """Choose what holds a number exactly: as JAX would make an array of it, unless it needs 64 bits."""
    if isinstance(value, bool):
        return BY_NAME["BOOL"]
    wide = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    if isinstance(value, int):
        return BY_NAME["I64" if wide or not -(1 << 31) <= value < 1 << 31 else "I32"]
    return BY_NAME["F64" if wide or not _is_single(value) else "F32"]


def widest(value: float) -> DType:
    """Give what holds any number of the kind: one of Python's takes whatever a file has of it."""
    return BY_NAME["BOOL" if isinstance(value, bool) else "I64" if isinstance(value, int) else "F64"]


def _is_single(value: float) -> bool:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return False
    return rounded == value or math.isnan(value)
