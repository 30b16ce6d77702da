"""Storages: what a persistent id names, and where its bytes are. Each container says the latter in `StorageTable.locate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from firekeep.blobs import Blob, MemoryBlob
from firekeep.dtypes import BY_NAME, BY_STORAGE, DType
from firekeep.errors import MetadataError, UnsafePickleError
from firekeep.formats.pytorch._inert import Global, StorageRef

_UNTYPED = frozenset(("UntypedStorage", "_UntypedStorage"))
_LONGEST_KEY = 512
_OTHERS_SEARCHED = 64


@dataclass(slots=True)
class Storage:
    """The elements of one storage, or a view of them.

    `start` is where they begin in `blob`, in bytes. With a `problem` there are no bytes. `used` counts the bytes that views
    were made of, `expanded` those by which views that repeat elements are longer than what they look at.
    """

    dtype: DType | None
    untyped: bool
    numel: int
    blob: Blob
    start: int = 0
    problem: str | None = None
    used: int = 0
    expanded: int = 0


class StorageTable:
    """Makes `StorageRef` of persistent ids while a pickle is read, and `Storage` of these afterwards.

    `refs` has the first one of each key, `others` those that describe a known key otherwise. `swap` says that elements are
    big-endian.
    """

    swap = False

    def __init__(self) -> None:
        self.refs: dict[str, StorageRef] = {}
        self.others: list[StorageRef] = []
        self._found: dict[StorageRef, Storage] = {}

    def persistent(self, pid: Any) -> Any:
        """Read a persistent id: ('storage', class, key, location, elements[, view]) or ('module', class, file, source).

        Raises `UnsafePickleError` for anything else.
        """
        if type(pid) is tuple and pid:
            tag = pid[0]
            if tag in ("storage", b"storage") and len(pid) in (5, 6):
                return self._refer(pid)
            if tag in ("module", b"module") and len(pid) > 1 and type(pid[1]) is Global:
                return pid[1]
        raise UnsafePickleError("a persistent id names neither a storage nor a module's source")

    def _refer(self, pid: tuple[Any, ...]) -> StorageRef:
        kind, key, location, numel = pid[1:5]
        view = None if len(pid) == 5 else _read_view(pid[5])
        if type(kind) is not Global:
            raise UnsafePickleError(f"the class of a storage is a {type(kind).__name__}")
        if type(numel) is not int or numel < 0:
            raise UnsafePickleError(f"a storage declares {show(numel)} elements")
        text = key_text(key)
        known = self.refs.get(text)
        if known is not None and known.kind is kind and known.numel == numel and known.view == view:
            return known
        ref = StorageRef(kind, text, location if type(location) is str else "", numel, view)
        if known is None:
            self.refs[text] = ref
            return ref
        for other in self.others[-_OTHERS_SEARCHED:]:
            if other.key == text and other.kind is kind and other.numel == numel and other.view == view:
                return other
        self.others.append(ref)
        return ref

    def resolve(self, ref: StorageRef) -> Storage:
        """Find the bytes of a storage; raises `FormatError` where the file contradicts what was declared."""
        try:
            return self._found[ref]
        except KeyError:
            found = self._found[ref] = self._find(ref)
            return found

    def found(self) -> Iterator[tuple[StorageRef, Storage]]:
        """Give the storages looked up so far."""
        yield from self._found.items()

    def _find(self, ref: StorageRef) -> Storage:
        dtype, untyped = storage_dtype(ref.kind)
        if dtype is None:
            return Storage(None, untyped, ref.numel, MemoryBlob(b""), problem=f"its storage is a {ref.kind.path}")
        located = self.locate(ref, declared_bytes(dtype, ref.numel))
        if isinstance(located, str):
            return Storage(dtype, untyped, ref.numel, MemoryBlob(b""), problem=located)
        if ref.view is None:
            return Storage(dtype, untyped, ref.numel, located)
        first, numel = ref.view
        if first + numel > ref.numel:
            raise MetadataError(
                f"a view of elements {first} to {first + numel} lies outside the {ref.numel} elements of storage {ref.key!r}"
            )
        return Storage(dtype, untyped, numel, located, first * dtype.itemsize)

    def locate(self, ref: StorageRef, nbytes: int) -> Blob | str:
        """Give the bytes of a whole storage, exactly `nbytes` of them, or say why they cannot be had."""
        raise NotImplementedError


def storage_dtype(kind: Global) -> tuple[DType | None, bool]:
    """Tell the dtype of a storage class, and whether it is one without a type, counted in bytes."""
    if kind.module != "torch" and not kind.module.startswith("torch."):
        return None, False
    if kind.name in _UNTYPED:
        return BY_NAME["U8"], True
    return BY_STORAGE.get(kind.name), False


def declared_bytes(dtype: DType, numel: int) -> int:
    """Say how many bytes a storage of so many elements takes.

    The packed quantized types count elements of which several share a byte, yet declare bytes.
    """
    return numel * (dtype.bits // 8)


def key_text(key: Any) -> str:
    """Give the key of a storage as text: old files have numbers and byte strings."""
    if type(key) is str and len(key) <= _LONGEST_KEY:
        return key
    if type(key) is int and key.bit_length() <= 64:
        return str(key)
    if type(key) is bytes and len(key) <= _LONGEST_KEY:
        return key.decode("utf-8", "replace")
    raise UnsafePickleError(f"the key of a storage is {show(key)}")


def _read_view(view: Any) -> tuple[int, int] | None:
    if view is None:
        return None
    if type(view) is not tuple or len(view) != 3 or any(type(number) is not int or number < 0 for number in view[1:]):
        raise UnsafePickleError("the view of a storage is not (key, offset, size)")
    return view[1], view[2]


def show(value: Any) -> str:
    """Print a value that may be anything, of any size."""
    if type(value) is int:
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if type(value) is str:
        return repr(value[:40])
    return f"a {type(value).__name__}"
