"""Arrays of JAX, their shapes without values, and NumPy's arrays beside them: what they are, as entries."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firekeep.arrays import dtype_of
from firekeep.blobs import Blob
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.tensors import array_entry

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
        return _number_dtype(value), (), None
    shape = tuple(map(int, value.shape))
    if is_key(value):
        return _KEY_DATA, (*shape, *_key_shape(value)), None
    try:
        return dtype_of(np.empty(0, value.dtype)), shape, None
    except UnsupportedError as error:
        return _NO_DTYPE, shape, error.message


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

    __slots__ = ("_value",)

    def __init__(self, value: Any, nbytes: int) -> None:
        self._value = value
        super().__init__(nbytes)

    def view(self) -> memoryview:
        """Give the array's memory where that is one piece of the CPU's, else a copy of it."""
        if (problem := fault(self._value)) is not None:
            raise UnsupportedError(problem)
        value = jax.random.key_data(self._value) if is_key(self._value) else self._value
        return array_entry("", fetch(value)).read()

    def memory(self) -> tuple[range, ...] | None:
        """Arrays of JAX are never written to: whatever is filled, these values stay."""
        return ()

    def identity(self) -> Hashable:
        """One object is one array."""
        return ("jax", id(self._value))


def fetch(value: jax.Array) -> Any:
    """Give the values as an array of NumPy's. No copy stays with the array, as `numpy.asarray` would leave one there."""
    if value.is_fully_replicated:
        return np.asarray(value.addressable_data(0))
    whole = np.empty(value.shape, value.dtype)
    for number, shard in enumerate(value.addressable_shards):
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(value.addressable_data(number))
    return whole


def _key_shape(value: Any) -> tuple[int, ...]:
    return tuple(value.dtype._impl.key_shape)  # noqa: SLF001 - the public way is to make a key


def _number_dtype(value: float) -> DType:
    if isinstance(value, bool):
        return BY_NAME["BOOL"]
    wide = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    return BY_NAME[("I" if isinstance(value, int) else "F") + ("64" if wide else "32")]
