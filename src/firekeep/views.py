"""Tensors made of tensors: permuted, flipped, cut, reshaped, joined and computed; no byte is copied before it is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from firekeep.blobs import CHUNK, Blob, MemoryBlob, StridedBlob, WindowBlob
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, UnsupportedError
from firekeep.ids import ParamId
from firekeep.strides import collapse, restride


def permuted(entry: TensorEntry, axes: Sequence[int]) -> TensorEntry:
    """Give a tensor with its axes in another order, as `numpy.transpose` does.

    Tied tensors stay tied, and what is permuted back is the tensor it was. Raises `UnsupportedError`, naming the tensor, for
    elements that are no whole number of bytes, and for quantized ones.
    """
    axes = tuple(axes)
    if sorted(axes) != list(range(len(entry.shape))):
        raise EntryError(f"the axes {list(axes)} are no order of those of shape {list(entry.shape)}", tensor=entry.name)
    if axes == tuple(range(len(axes))):
        return entry
    shape = tuple(entry.shape[axis] for axis in axes)
    if entry.problem is not None:
        return replace(entry, shape=shape)
    laid = _lay(entry)
    strides = tuple(laid.strides[axis] for axis in axes)
    turned = _Laid(laid.base, laid.offset, shape, strides, laid.itemsize, laid.swap)
    return TensorEntry(entry.name, entry.dtype, shape, _blob(turned), entry.param_id)


def flipped(entry: TensorEntry, axes: Sequence[int]) -> TensorEntry:
    """Give a tensor back to front along some axes, as `numpy.flip` does.

    Tied tensors stay tied, and what is flipped back is the tensor it was.
    """
    if any(not 0 <= axis < len(entry.shape) for axis in axes):
        raise EntryError(f"shape {list(entry.shape)} has not all of the axes {list(axes)}", tensor=entry.name)
    turned = [axis for axis in axes if entry.shape[axis] > 1]
    if not turned or entry.problem is not None or 0 in entry.shape:
        return entry
    laid = _lay(entry)
    last = sum((laid.shape[axis] - 1) * laid.strides[axis] for axis in turned)
    strides = tuple(-step if axis in turned else step for axis, step in enumerate(laid.strides))
    back = _Laid(laid.base, laid.offset + last * laid.itemsize, laid.shape, strides, laid.itemsize, laid.swap)
    return TensorEntry(entry.name, entry.dtype, entry.shape, _blob(back), entry.param_id)


def sliced(entry: TensorEntry, *, axis: int, start: int, stop: int) -> TensorEntry:
    """Give the part of a tensor from `start` up to `stop` along an axis. It is another tensor: it has no parameter id."""
    if not 0 <= axis < len(entry.shape) or not 0 <= start <= stop <= entry.shape[axis]:
        raise EntryError(f"{start}:{stop} along axis {axis} is outside shape {list(entry.shape)}", tensor=entry.name)
    shape = (*entry.shape[:axis], stop - start, *entry.shape[axis + 1 :])
    if shape == entry.shape:
        return entry
    if entry.problem is not None:
        return replace(entry, shape=shape, param_id=None)
    laid = _lay(entry)
    offset = laid.offset + start * laid.strides[axis] * laid.itemsize
    cut = _Laid(laid.base, offset, shape, laid.strides, laid.itemsize, laid.swap)
    return TensorEntry(entry.name, entry.dtype, shape, _blob(cut))


def reshaped(entry: TensorEntry, shape: Sequence[int]) -> TensorEntry:
    """Give the same elements, in the same order, under another shape of as many."""
    if math.prod(shape) != entry.numel:
        raise EntryError(
            f"shape {list(entry.shape)} holds {entry.numel} elements and {list(shape)} {math.prod(shape)}",
            tensor=entry.name,
        )
    itemsize, shape = _itemsize(entry), tuple(shape)
    if type(entry.blob) is StridedBlob and entry.problem is None:
        laid = _lay(entry)
        strides = restride(laid.shape, laid.strides, shape) if laid.base is not entry.blob else None
        if strides is not None:  # seen through, so that what is laid back is the tensor it was
            seen = _Laid(laid.base, laid.offset, shape, strides, itemsize, laid.swap)
            return TensorEntry(entry.name, entry.dtype, shape, _blob(seen), entry.param_id)
    return replace(entry, shape=shape)


def joined(entries: Sequence[TensorEntry], *, axis: int = 0, name: str) -> TensorEntry:
    """Give one tensor of several, one after the other along an axis. It is another tensor: it has no parameter id.

    Raises `EntryError`, naming a tensor, where dtypes or the other extents differ.
    """
    first = entries[0]
    shape = _joined_shape(entries, axis)
    if len(entries) == 1:
        return replace(first, name=name)
    bad = next((entry for entry in entries if entry.problem is not None), None)
    if bad is not None:
        return replace(bad, name=name, shape=shape, param_id=None)
    for entry in entries:
        _itemsize(entry)
    blob = JoinedBlob(tuple(entry.blob for entry in entries), outer=math.prod(shape[:axis]))
    return TensorEntry(name, first.dtype, shape, blob)


def stacked(entries: Sequence[TensorEntry], *, axis: int = 0, name: str) -> TensorEntry:
    """Give one tensor of several of one shape, side by side along a new axis."""
    layers = [reshaped(entry, (*entry.shape[:axis], 1, *entry.shape[axis:])) for entry in entries]
    return replace(joined(layers, axis=axis, name=name), param_id=None)


def summed(first: TensorEntry, second: TensorEntry, *, name: str) -> TensorEntry:
    """Give the sum of two tensors of one dtype and shape, in that dtype. It is another tensor: it has no parameter id."""
    if first.dtype is not second.dtype or first.shape != second.shape:
        raise EntryError(
            f"it is {first.dtype} {list(first.shape)} and cannot be added to {second.name!r}, {second.dtype} "
            f"{list(second.shape)}",
            tensor=first.name,
        )
    return _computed(first, second, _add, "sum", name=name)


def scaled_back(entry: TensorEntry, steps: TensorEntry, *, momentum: float) -> TensorEntry:
    """Give a running mean that began at zero without the bias of that: divided by 1 - momentum**steps, after 0 steps as it is."""
    return _computed(entry, steps, _Debias(momentum), ("debiased", momentum), name=entry.name)


def constant(name: str, dtype: DType, shape: Sequence[int], value: int = 0) -> TensorEntry:
    """Give a tensor all of whose elements are one whole number. Raises `UnsupportedError` for types that NumPy has not."""
    import numpy as np

    from firekeep.arrays import entry_of, numpy_dtype

    if value == 0 and dtype.kind != "quantized" and dtype.scheme is None and dtype.bits % 8 == 0:
        return TensorEntry(name, dtype, tuple(shape), MemoryBlob(bytes(dtype.nbytes(shape))))
    return entry_of(name, np.full(tuple(shape), value, numpy_dtype(dtype)))


def is_ghost(entry: TensorEntry) -> bool:
    """Say whether a tensor stands for one that is elsewhere, or is made of such."""
    return _is_ghost(entry.blob)


def ghost(name: str, dtype: DType, shape: Sequence[int], param_id: ParamId | None = None) -> TensorEntry:
    """Describe a tensor that has a name, a dtype and a shape, and no values: drawing them raises `EntryError`."""
    return TensorEntry(name, dtype, tuple(shape), GhostBlob(dtype.nbytes(shape)), param_id)


class GhostBlob(Blob):
    """The bytes of a tensor that is only talked about."""

    __slots__ = ()

    def view(self) -> memoryview:
        """Refuse: there are none."""
        raise EntryError("it has a shape and no values: it stands for a tensor that is elsewhere")


class JoinedBlob(Blob):
    """The bytes of several tensors joined along an axis before which there are `outer` rows of each."""

    __slots__ = ("_outer", "parts")

    def __init__(self, parts: tuple[Blob, ...], *, outer: int) -> None:
        self.parts = parts
        self._outer = outer
        super().__init__(sum(part.nbytes for part in parts))

    def view(self) -> memoryview:
        """Gather the parts into a fresh buffer."""
        import numpy as np

        whole = np.empty(self.nbytes, np.uint8)
        place = 0
        for piece in self.chunks():
            whole[place : place + piece.nbytes] = piece
            place += piece.nbytes
        if place != self.nbytes:
            raise EntryError(f"{self.nbytes} bytes were declared, {place} came", limit=self.nbytes, actual=place)
        return whole.data if self.nbytes else memoryview(b"")

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the parts' pieces; along an inner axis, pieces of some rows of all parts."""
        if self._outer == 1:
            for part in self.parts:
                yield from part.chunks(size)
        elif self.nbytes:
            yield from self._rows(size)

    def memory(self) -> tuple[range, ...] | None:
        """Give the memory of all parts."""
        return _memory(self.parts)

    def identity(self) -> Hashable | None:
        """The same tensors joined in the same way are one tensor."""
        parts = tuple(part.identity() for part in self.parts)
        return None if None in parts else ("joined", self._outer, parts)

    def _rows(self, size: int) -> Iterator[memoryview]:
        import numpy as np

        outer = self._outer
        tables = [np.frombuffer(part.view(), np.uint8).reshape(outer, -1) for part in self.parts if part.nbytes]
        step = max(1, size * outer // self.nbytes)
        for first in range(0, outer, step):
            rows = np.concatenate([table[first : first + step] for table in tables], axis=1).reshape(-1).data
            for start in range(0, rows.nbytes, size):
                yield rows[start : start + size]


class ComputedBlob(Blob):
    """Bytes computed of those of other blobs. `key` says how, so that the same of the same is one tensor."""

    __slots__ = ("_key", "_make", "parts")

    def __init__(
        self, parts: tuple[Blob, ...], nbytes: int, make: Callable[[Sequence[memoryview]], memoryview], *, key: Hashable
    ) -> None:
        self.parts = parts
        self._make = make
        self._key = key
        super().__init__(nbytes)

    def view(self) -> memoryview:
        """Compute them; nothing is kept."""
        return self._make([part.view() for part in self.parts])

    def memory(self) -> tuple[range, ...] | None:
        """Give the memory of all parts."""
        return _memory(self.parts)

    def identity(self) -> Hashable | None:
        """The same computed of the same tensors is one tensor."""
        parts = tuple(part.identity() for part in self.parts)
        return None if None in parts else ("computed", self._key, parts)


class _Debias:
    """Divide by 1 - momentum**steps, in the numbers' own type as JAX does."""

    __slots__ = ("_momentum",)

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum

    def __call__(self, value: TensorEntry, steps: TensorEntry) -> object:
        """Compute the array."""
        from firekeep.arrays import as_array

        array, count = as_array(value), int(as_array(steps).reshape(()))
        share = array.dtype.type(1) - array.dtype.type(self._momentum) ** array.dtype.type(count)
        return array if count == 0 else array / share


def _add(first: TensorEntry, second: TensorEntry) -> object:
    from firekeep.arrays import as_array

    return as_array(first) + as_array(second)


def _computed(
    first: TensorEntry,
    second: TensorEntry,
    compute: Callable[[TensorEntry, TensorEntry], object],
    key: Hashable,
    *,
    name: str,
) -> TensorEntry:
    """Compute a tensor of the first one's dtype and shape of two."""
    bad = next((entry for entry in (first, second) if entry.problem is not None), None)
    if bad is not None:
        return replace(bad, name=name, shape=first.shape, param_id=None)
    _itemsize(first)

    def draw(views: Sequence[memoryview]) -> memoryview:
        from firekeep.arrays import entry_of

        pair = [replace(one, blob=MemoryBlob(view)) for one, view in zip((first, second), views, strict=True)]
        return entry_of(name, compute(*pair)).read()

    blob = ComputedBlob((first.blob, second.blob), first.blob.nbytes, draw, key=key)
    return TensorEntry(name, first.dtype, first.shape, blob)


def _is_ghost(blob: Blob) -> bool:
    if isinstance(blob, StridedBlob):
        return _is_ghost(blob.base)
    if isinstance(blob, JoinedBlob | ComputedBlob):
        return any(map(_is_ghost, blob.parts))
    return isinstance(blob, GhostBlob)


def _memory(parts: Sequence[Blob]) -> tuple[range, ...] | None:
    memories = [part.memory() for part in parts]
    return None if None in memories else tuple(one for memory in memories for one in memory or ())


# Not frozen, as a TensorEntry is not: there may be tens of thousands.
@dataclass(slots=True)
class _Laid:
    """Where the elements of a tensor are in the bytes of a blob: `offset` in bytes, `strides` in elements."""

    base: Blob
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    swap: int = 0


def _lay(entry: TensorEntry) -> _Laid:
    """See through a strided blob, so that views of views walk the storage once."""
    itemsize = _itemsize(entry)
    blob = entry.blob
    if type(blob) is StridedBlob and blob.shape == entry.shape and blob.itemsize == itemsize:
        return _Laid(blob.base, blob.offset, blob.shape, blob.strides, itemsize, blob.swap)
    strides, step = [0] * len(entry.shape), 1
    for axis in range(len(entry.shape) - 1, -1, -1):
        strides[axis] = step
        step *= entry.shape[axis]
    return _Laid(blob, 0, entry.shape, tuple(strides), itemsize)


def _blob(laid: _Laid) -> Blob:
    """Give the bytes of these elements: the storage itself, or a window of its file, where they lie in order."""
    base, nbytes = laid.base, math.prod(laid.shape) * laid.itemsize
    in_order = laid.swap < 2 and collapse(laid.shape, laid.strides)[1] in ((), (1,))
    if in_order and laid.offset == 0 and nbytes == base.nbytes:
        return base
    if in_order and type(base) is WindowBlob:
        return WindowBlob(base.source, base.offset + laid.offset, nbytes)
    # An axis of one element has no stride to speak of; said alike, equal views have equal identities.
    strides = tuple(0 if extent == 1 else step for extent, step in zip(laid.shape, laid.strides, strict=True))
    return StridedBlob(
        base, offset=laid.offset, itemsize=laid.itemsize, shape=laid.shape, strides=strides, swap=laid.swap
    )


def _itemsize(entry: TensorEntry) -> int:
    if entry.problem is not None:
        return 0
    dtype = entry.require()
    if dtype.kind == "quantized" or dtype.scheme is not None or dtype.bits % 8:
        raise UnsupportedError(
            f"its elements ({dtype}) are packed or quantized, and cannot be laid out another way", tensor=entry.name
        )
    return dtype.itemsize


def _joined_shape(entries: Sequence[TensorEntry], axis: int) -> tuple[int, ...]:
    first = entries[0]
    if not 0 <= axis < len(first.shape):
        raise EntryError(f"shape {list(first.shape)} has no axis {axis} to be joined along", tensor=first.name)
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    for entry in entries[1:]:
        if entry.dtype is not first.dtype:
            raise EntryError(
                f"it is {entry.dtype} and cannot be joined to {first.name!r}, which is {first.dtype}", tensor=entry.name
            )
        if len(entry.shape) != len(first.shape) or (*entry.shape[:axis], *entry.shape[axis + 1 :]) != rest:
            raise EntryError(
                f"its shape {list(entry.shape)} cannot be joined to {first.name!r}, {list(first.shape)}, along axis {axis}",
                tensor=entry.name,
            )
    return (*first.shape[:axis], sum(entry.shape[axis] for entry in entries), *first.shape[axis + 1 :])
