"""From calls that would have rebuilt tensors to windows of storages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firekeep.blobs import Blob, MemoryBlob, StridedBlob
from firekeep.dtypes import DType
from firekeep.errors import LimitError, MetadataError
from firekeep.formats._absent import NoBlob
from firekeep.formats.pytorch._blobs import BoolBlob, part_of
from firekeep.formats.pytorch._handlers import HANDLERS, Handler
from firekeep.formats.pytorch._inert import Call, Global, StorageRef
from firekeep.formats.pytorch._nested import is_nested, load_nested
from firekeep.formats.pytorch._storages import Storage, StorageTable
from firekeep.formats.pytorch._tensors import RawTensor, Tensor, lost, measure, show_extents
from firekeep.limits import Limits

_MOST_AXES = 31
"""NumPy 1 has 32; gathering complex numbers takes one more."""
_MOST_WRAPPERS = 16
_FREE_EXPANSION = 8
"""How many times over a storage may be repeated by views of it before that counts against the limit."""


class Rebuilder:
    """Gives the `Tensor` that a call, or a storage by itself, stands for.

    `attributes` counts tensors that were set on other tensors, which no list of names has, `expanded` the bytes that views which repeat
    add to the file.
    """

    def __init__(self, storages: StorageTable, limits: Limits) -> None:
        self.attributes = 0
        self._storages = storages
        self._limits = limits
        self._handlers: dict[Global, Handler | None] = {}
        self._nested: dict[Call, Storage] = {}
        self._depth = 0
        self.expanded = 0

    def is_tensor(self, value: Any) -> bool:
        """Tell whether `recognise` would give a tensor, without making it."""
        kind = type(value)
        if kind is Call:
            return type(value.func) is Global and self._handler(value.func) is not None
        return kind is StorageRef or kind is RawTensor

    def recognise(self, value: Any) -> Tensor | None:
        """Give the tensor, or None for a value that is none. Raises `MetadataError` for one that contradicts its storage."""
        kind = type(value)
        if kind is Call:
            if type(value.func) is not Global or (handler := self._handler(value.func)) is None:
                return None
            return self._apply(handler, value)
        if kind is StorageRef:
            return self.view(value, 0, (self._storages.resolve(value).numel,), (1,))
        if kind is RawTensor:
            return self.view(value.storage, value.offset, value.shape, value.strides)
        return None

    def _handler(self, func: Global) -> Handler | None:
        try:
            return self._handlers[func]
        except KeyError:
            handler = self._handlers[func] = HANDLERS.get((func.module, func.name))
            return handler

    def _apply(self, handler: Handler, call: Call) -> Tensor:
        self._depth += 1
        try:
            if self._depth > _MOST_WRAPPERS:
                raise MetadataError(f"it is wrapped more than {_MOST_WRAPPERS} times")
            return handler(self, call.args)
        except (IndexError, ValueError) as error:
            if isinstance(error, MetadataError | LimitError):
                raise
            raise MetadataError(f"the arguments of {call.func.path} are not what PyTorch writes") from None
        finally:
            self._depth -= 1

    def note_attributes(self, state: Any) -> None:
        """Count the tensors among the attributes of a tensor."""
        for part in state if type(state) is tuple else (state,):
            if isinstance(part, dict):
                self.attributes += sum(map(self.is_tensor, part.values()))

    def storage(self, ref: Any) -> Storage:
        """Find the storage an argument names; raises `MetadataError` for anything else."""
        if type(ref) is tuple:
            # Some writers forget to mark the description of a storage as a persistent id.
            ref = self._storages.persistent(ref)
        if type(ref) is StorageRef:
            return self._storages.resolve(ref)
        if is_nested(ref):
            found = self._nested.get(ref)
            if found is None:
                found = self._nested[ref] = load_nested(ref, self._limits)
            return found
        raise MetadataError(f"its storage is a {type(ref).__name__}")

    def view(self, ref: Any, offset: Any, shape: Any, strides: Any, dtype: DType | None = None) -> Tensor:
        """Give a view of a storage, once it is known to lie inside it."""
        storage = self.storage(ref)
        if type(shape) is list:
            shape = tuple(shape)
        if type(offset) is not int or type(shape) is not tuple or type(strides) not in (tuple, list):
            raise MetadataError("its offset, shape and strides are not an integer and two tuples")
        numel, last, contiguous = measure(offset, shape, strides)
        dtype, room = _fit_dtype(storage, dtype)
        if dtype is None:
            return lost(shape, storage.problem or "its dtype is unknown")
        if numel and last >= room:
            raise MetadataError(
                f"its offset {offset}, shape {show_extents(shape)} and strides {show_extents(strides)} reach element {last} of a "
                f"storage of {room}"
            )
        nbytes = numel * (dtype.bits // 8)
        self._check_size(nbytes)
        problem = storage.problem
        if len(shape) > _MOST_AXES and problem is None:
            problem = f"it has {len(shape)} axes; at most {_MOST_AXES} can be given"
        if problem is None and numel:
            problem = self._count_expansion(
                storage, nbytes, (last - offset + 1) * (dtype.bits // 8), room * (dtype.bits // 8)
            )
        if problem is not None:
            return Tensor(dtype, shape, NoBlob(nbytes, problem), problem)
        storage.used += nbytes
        if nbytes == 0:
            return Tensor(dtype, shape, MemoryBlob(b""))
        swap = _swap_width(dtype) if self._storages.swap else 0
        blob: Blob
        if (
            contiguous
            and not swap
            and (part := part_of(storage.blob, storage.start + offset * (dtype.bits // 8), nbytes))
        ):
            blob = part
        else:
            blob = _strided(storage, dtype, offset, shape, strides, swap)
        return Tensor(dtype, shape, BoolBlob(blob) if dtype.kind == "bool" else blob)

    def _count_expansion(self, storage: Storage, nbytes: int, span: int, room: int) -> str | None:
        """Count by how much a view is longer than the bytes it looks at; say so where a file of a few bytes would fill a disk."""
        if nbytes <= span:
            return None
        free = max(0, _FREE_EXPANSION * room - storage.expanded)
        beyond = max(0, nbytes - span - free)
        if self.expanded + beyond > self._limits.expanded_bytes:
            return (
                f"it repeats {span:,} bytes of its storage so that they make {nbytes:,}, and views that repeat may add "
                f"{self._limits.expanded_bytes:,} bytes to a file: firekeep.Limits(expanded_bytes=...) allows more"
            )
        self.expanded += beyond
        storage.expanded += nbytes - span
        return None

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._limits.tensor_bytes:
            raise LimitError(
                f"it takes {nbytes:,} bytes as it would lie in memory; {self._limits.tensor_bytes:,} are allowed",
                limit=self._limits.tensor_bytes,
                actual=nbytes,
                remedy="If the file is honest, open it with a larger firekeep.Limits(tensor_bytes=...).",
            )

    def wasted(self) -> Iterator[tuple[StorageRef, int, int]]:
        """Name storages of which the tensors use less than half: storage, its bytes, the bytes used."""
        for ref, storage in self._storages.found():
            if storage.dtype is not None and storage.problem is None:
                nbytes = ref.numel * (storage.dtype.bits // 8)
                if 0 < storage.used * 2 < nbytes:
                    yield ref, nbytes, storage.used


def _swap_width(dtype: DType) -> int:
    """Give the width of the units whose bytes are reversed; a complex number is two of them."""
    width = dtype.bits // 8
    if dtype.kind == "complex":
        width //= 2
    return width if width > 1 else 0


def _strided(
    storage: Storage, dtype: DType, offset: int, shape: tuple[int, ...], strides: Any, swap: int
) -> StridedBlob:
    itemsize = dtype.bits // 8
    return StridedBlob(
        storage.blob,
        offset=storage.start + offset * itemsize,
        itemsize=itemsize,
        shape=shape,
        # The stride of an axis of one element is never used, and may be anything.
        strides=tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True)),
        swap=swap,
    )


def _fit_dtype(storage: Storage, dtype: DType | None) -> tuple[DType | None, int]:
    """Settle the dtype of a view, and how many of its elements the storage holds."""
    if dtype is None:
        return storage.dtype, storage.numel
    if storage.untyped:
        return dtype, storage.numel // (dtype.bits // 8)
    if storage.dtype is not None and storage.dtype.bits != dtype.bits:
        raise MetadataError(f"it is {dtype} in a storage of {storage.dtype}")
    return dtype, storage.numel
