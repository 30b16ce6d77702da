"""Arrays of JAX made of tensors: on the devices of the one they replace, in memory that no file and nobody else has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firekeep.arrays import numpy_dtype
from firekeep.bridges._drawing import draw, draw_own, plain_dtype
from firekeep.bridges.jax._leaves import implementation, is_key, is_number
from firekeep.bridges.jax._meshes import is_unplaced
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.reading import ALIGNMENT, read_windows
from firekeep.sources import Source

BATCH = 64 << 20
"""Bytes that are read from a file at once, before the first of them go to their devices."""


@dataclass(slots=True)
class Order:
    """An array to be made like another, of a tensor that has the shape in the file form."""

    like: Any
    entry: TensorEntry
    dtype: DType


def cannot_become(value: Any, dtype: DType) -> str | None:
    """Say why no array of the kind holds a dtype, or None."""
    if is_number(value):
        return None
    if is_unplaced(value):
        return (
            "its sharding names the axes of a mesh and no devices, as jax.eval_shape makes it: give a shape with a "
            "sharding NamedSharding(mesh, ...), or load within jax.set_mesh(mesh)"
        )
    if is_key(value):
        return None if dtype.name == "U32" else f"a PRNG key is made of U32, not of {dtype}"
    if not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return None
    if isinstance(value, jax.core.Tracer):
        return "JAX is tracing it: load outside of jit, grad and vmap"
    if dtype.numpy is None:
        return f"JAX has no arrays of {dtype}"
    target = numpy_dtype(plain_dtype(dtype))
    try:
        narrowed = jax.dtypes.canonicalize_dtype(target)
    except TypeError:
        return f"JAX has no arrays of {dtype}"
    if narrowed != target:
        return f"JAX makes no arrays of {dtype} unless jax_enable_x64 is set: it would be narrowed to {narrowed}"
    return None


def make(orders: deque[Order]) -> Iterator[Any]:
    """Make arrays, in the order asked for. Those whose bytes lie in a file as they are needed are read many at once.

    Orders are taken off the queue, so that an array can go as soon as another is in its place.
    """
    while orders:
        batch = deque([orders.popleft()])
        nbytes = batch[0].entry.nbytes
        while orders and nbytes + orders[0].entry.nbytes <= BATCH:
            nbytes += orders[0].entry.nbytes
            batch.append(orders.popleft())
        yield from _make_batch(batch)


def _make_batch(batch: deque[Order]) -> Iterator[Any]:
    windows = [_window(order) for order in batch]
    lying = [(*window, order.entry.nbytes) for window, order in zip(windows, batch, strict=True) if window is not None]
    views = deque(read_windows(lying) if lying else ())
    for window in windows:
        order = batch.popleft()
        if window is None:
            yield _make(order)
            continue
        raw = np.frombuffer(views.popleft(), numpy_dtype(plain_dtype(order.dtype)))
        yield _place(order.like, raw.reshape(order.entry.shape))


def _window(order: Order) -> tuple[Source, int] | None:
    """Give the file and offset where exactly the bytes lie that an array on one device shall hold, or None."""
    window = order.entry.blob.window()
    if window is None or window[0].fileno() is None or not order.entry.nbytes:
        return None
    dtype = order.entry.require()
    same = dtype == order.dtype and dtype.kind != "bool" and dtype.bits >= 8 and dtype.numpy is not None
    return window if same and not is_number(order.like) and not _is_spread(order.like) else None


def _make(order: Order) -> Any:
    like, dtype = order.like, order.dtype
    if is_number(like):
        return type(like)(draw(order.entry, order.entry.require()).item())  # a number of Python's has no width
    if not isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return _place(like, draw_own(order.entry, dtype))
    drawn = draw(order.entry, dtype)
    if dtype.kind == "bool":  # any byte may stand in a file, and XLA counts on 0 and 1
        drawn = drawn.view(np.uint8) != 0
    if _is_spread(like) and not is_key(like):
        return jax.make_array_from_callback(drawn.shape, like.sharding, lambda index: _own(drawn[index]))
    return _place(like, drawn if _copies(like) else _own(drawn))


def _place(like: Any, array: Any) -> Any:
    """Put an array onto the devices where another is. On the CPU, JAX takes its memory over where that is aligned."""
    if is_key(like):
        made = jax.random.wrap_key_data(jax.device_put(array), impl=implementation(like))
        return jax.device_put(made, like.sharding) if _is_pinned(like) else made
    if not isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return array[()] if isinstance(like, np.generic) else array
    if not _is_pinned(like):
        return jax.device_put(array)
    return jax.device_put(array, like.sharding)


def weakened(array: jax.Array) -> jax.Array:
    """Give an array of a weak type where its dtype is the one that JAX has for Python's numbers of the kind."""
    kind = {"f": float, "i": int, "c": complex}.get(array.dtype.kind)
    if kind is None or jax.dtypes.canonicalize_dtype(kind) != array.dtype:
        return array
    return jnp.full(array.shape, kind(0)).at[...].set(array)  # a conversion to the same dtype would do nothing


def _is_pinned(like: Any) -> bool:
    """Say whether an array is bound to its devices; one that is not follows the others that it is computed with."""
    if isinstance(like, jax.Array):
        return bool(like.committed) or like.devices() != _default_devices()
    return like.sharding is not None


def _is_spread(like: Any) -> bool:
    """Say whether an array lies on several devices, so that each takes its own part of the values."""
    sharding = getattr(like, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


def _copies(like: Any) -> bool:
    """Say whether going to the device is a copy: on the CPU it would be the same memory, perhaps that of a file."""
    sharding = getattr(like, "sharding", None)
    devices = sharding.device_set if sharding is not None else _default_devices()
    return all(device.platform != "cpu" for device in devices)


def _default_devices() -> set[Any]:
    """Give the device that an array goes to where nothing is said."""
    chosen = getattr(jax.config, "jax_default_device", None)
    return {chosen} if isinstance(chosen, jax.Device) else set(jax.local_devices()[:1])


def _own(array: Any) -> Any:
    """Copy an array into memory of its own, aligned so that JAX need not copy it once more."""
    nbytes = array.size * array.dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    made = raw[start : start + nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(made, array)
    return made


def make_alone(entry: TensorEntry, kind: str) -> Any:
    """Make an array that replaces none, on the default device; of a `kind` a typed key."""
    dtype = entry.require()
    like: Any = jax.ShapeDtypeStruct(entry.shape, numpy_dtype(plain_dtype(dtype)))  # type: ignore[no-untyped-call]
    if (why := cannot_become(like, dtype)) is not None:
        raise UnsupportedError(why, tensor=entry.name)
    (made,) = make(deque([Order(like, entry, dtype)]))
    return jax.random.wrap_key_data(made, impl=kind) if kind else made
