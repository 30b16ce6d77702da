"""The tar layout of PyTorch 0.1: members `sys_info`, `pickle`, `storages` and `tensors`, as torch's own loader still reads them.

    storages   pickle(count), per storage pickle((key, location, class)), its number of elements as a 64-bit integer, the elements;
               then pickle(list of (view key, root key, first element, number of elements))
    tensors    pickle(count), per tensor pickle((key, storage key, class)), the rank as a 32-bit integer, 4 unused bytes, the
               extents, the strides and the offset as 64-bit integers
    pickle     the object; persistent ids are keys of tensors and storages, or (class, file, source) of a module

Files that only pretend to be of this kind keep `_rebuild_tensor_v2` calls in the pickle, and no `tensors`; they are read as well.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from firekeep.blobs import Blob, WindowBlob
from firekeep.errors import MetadataError, TruncatedError, UnsafePickleError, WrongFormatError
from firekeep.formats._protocol import OpenOptions
from firekeep.formats.pytorch._found import Found
from firekeep.formats.pytorch._inert import Global, StorageRef
from firekeep.formats.pytorch._legacy import PickleStream, read_system
from firekeep.formats.pytorch._storages import StorageTable, declared_bytes, key_text, show, storage_dtype
from firekeep.formats.pytorch._tensors import RawTensor
from firekeep.formats.pytorch._window import Window
from firekeep.sources import Source

_BLOCK = 512
_MOST_MEMBERS = 1000
_MOST_AXES = 64
_PADDING_SEARCHED = 1 << 16
_FILES = (b"0", b"\0", b"7")


class TarStorages(StorageTable):
    """Storages and tensors that lie in members of the archive, by key."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key: dict[str, StorageRef] = {}
        self.tensors: dict[str, RawTensor] = {}
        self._places: dict[str, tuple[Source, int, int]] = {}

    def persistent(self, pid: Any) -> Any:
        """Read a persistent id: the key of a tensor or storage, a module's class, or what later files have."""
        if type(pid) is tuple and pid and type(pid[0]) is Global:
            return pid[0]
        if type(pid) is tuple:
            return super().persistent(pid)
        key = key_text(pid)
        found = self.tensors.get(key) or self.by_key.get(key)
        if found is None:
            raise UnsafePickleError(f"there is no tensor or storage {key!r} in the file")
        return found

    def place(self, ref: StorageRef, source: Source, offset: int, nbytes: int) -> None:
        """Remember a storage and where it lies."""
        self.by_key[ref.key] = ref
        self._places[ref.key] = (source, offset, nbytes)

    def locate(self, ref: StorageRef, nbytes: int) -> Blob | str:
        """Give the bytes of a storage."""
        place = self._places.get(ref.key)
        if place is None:
            return f"its storage {ref.key!r} is not among those of the file"
        if nbytes != place[2]:
            raise MetadataError(f"storage {ref.key!r} has {place[2]} bytes, the pickle says {nbytes}")
        return WindowBlob(*place)


def read_tar(source: Source, options: OpenOptions) -> Found:
    """Read the members that matter; raises `WrongFormatError` for a tar archive that PyTorch did not write."""
    members, end = read_members(source)
    if "pickle" not in members:
        shown = ", ".join(repr(name[:60]) for name in list(members)[:5]) or "none"
        raise WrongFormatError(
            f"this is a tar archive, but not one that PyTorch saved: it has no member 'pickle'; its members are {shown}",
            kind="tar",
        )
    limits = options.limits
    storages = TarStorages()
    notes: list[str] = []
    rest = source.view(end, min(source.size - end, _PADDING_SEARCHED))
    if any(rest):
        notes.append(f"{source.size - end} bytes follow the end of the tar archive, at {end}")
    little = True
    taken = Counter[str]()  # by all of the streams together
    if "sys_info" in members:
        system = PickleStream(members["sys_info"], limits, taken=taken)
        little, more = read_system(system.load("the pickle in 'sys_info'"))
        notes += more
    if "storages" in members:
        _read_storages(
            PickleStream(members["storages"], limits, taken=taken), members["storages"], storages, little=little
        )
    if "tensors" in members:
        _read_tensors(PickleStream(members["tensors"], limits, taken=taken), members["tensors"], storages)
    stream = PickleStream(members["pickle"], limits, taken=taken)
    root = stream.load("the pickle in 'pickle'", storages.persistent)
    if stream.position < members["pickle"].size:
        notes.append(f"{members['pickle'].size - stream.position} bytes follow the pickle in 'pickle'")
    return Found(
        variant="tar",
        root=root,
        storages=storages,
        globals=stream.globals,
        details={"pickle_protocol": stream.protocol, "byte_order": "little", "members": len(members)},
        notes=notes,
        taken=taken,
    )


def read_members(source: Source) -> tuple[dict[str, Window], int]:
    """Read a tar archive's headers: its files by name, and where it ends. Raises `FormatError` for damaged or unfinished ones."""
    members: dict[str, Window] = {}
    position = 0
    for _ in range(_MOST_MEMBERS):
        if position + _BLOCK > source.size:
            raise TruncatedError(
                f"the tar archive has no end: it was cut short at byte {source.size}",
                offset=position,
                actual=source.size,
            )
        header = bytes(source.view(position, _BLOCK))
        if not any(header):
            _check_end(source, position)
            return members, position + 2 * _BLOCK
        size = _read_header(header, position)
        start = position + _BLOCK
        name = header[:100].split(b"\0", 1)[0].decode("utf-8", "replace").removeprefix("./")
        if start + size > source.size:
            raise TruncatedError(
                f"tar member {name!r} takes bytes {start} to {start + size}, but the file has {source.size}: it was cut short",
                offset=start,
                limit=start + size,
                actual=source.size,
            )
        if header[156:157] in _FILES:
            members[name] = Window(source, start, size)
        position = start + -(-size // _BLOCK) * _BLOCK
    raise MetadataError(f"the tar archive has more than {_MOST_MEMBERS} members; PyTorch's have four")


def _read_header(header: bytes, position: int) -> int:
    """Check a member's header and give its size."""
    try:
        size = _octal(header[124:136])
        told = _octal(header[148:156])
    except ValueError:
        raise MetadataError(f"the tar header at byte {position} is damaged: a number in it is not octal") from None
    if told != sum(header[:148]) + 8 * 0x20 + sum(header[156:]):
        raise MetadataError(f"the tar header at byte {position} is damaged: its checksum does not match")
    return size


def _octal(raw: bytes) -> int:
    if raw[:1] == b"\x80":
        return int.from_bytes(raw[1:], "big")
    return int(raw.strip(b"\0 ") or b"0", 8)


def _check_end(source: Source, position: int) -> None:
    if position + 2 * _BLOCK > source.size or any(bytes(source.view(position + _BLOCK, _BLOCK))):
        raise TruncatedError(
            f"the tar archive ends at byte {source.size}, without the two empty blocks that end one: it was cut short",
            offset=position,
            limit=position + 2 * _BLOCK,
            actual=source.size,
        )


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise MetadataError(f"the number of {what} is {show(value)}")
    return value


def _triple(value: Any, what: str) -> tuple[str, Any, Any]:
    if type(value) not in (tuple, list) or len(value) != 3:
        raise MetadataError(f"a {what} is not described by three values")
    return key_text(value[0]), value[1], value[2]


def _read_storages(stream: PickleStream, member: Window, storages: TarStorages, *, little: bool) -> None:
    for _ in range(_count(stream.load("the first pickle in 'storages'"), "storages")):
        key, location, kind = _triple(stream.load("a pickle in 'storages'"), "storage")
        dtype = storage_dtype(kind)[0] if type(kind) is Global else None
        if dtype is None or type(kind) is not Global:
            raise MetadataError(f"the class of storage {key!r} is unknown: its size cannot be told")
        raw = bytes(member.view(stream.position, 8))
        numel = int.from_bytes(raw, "little")
        nbytes = declared_bytes(dtype, numel)
        if stream.position + 8 + nbytes > member.size and not little:
            numel = int.from_bytes(raw, "big")
            nbytes = declared_bytes(dtype, numel)
        if stream.position + 8 + nbytes > member.size:
            raise TruncatedError(
                f"storage {key!r} in 'storages' has {numel} elements, {nbytes} bytes; {member.size - stream.position - 8} follow",
                offset=member.start + stream.position,
                limit=stream.position + 8 + nbytes,
                actual=member.size,
            )
        ref = StorageRef(kind, key, location if type(location) is str else "", numel)
        storages.place(ref, member.source, member.start + stream.position + 8, nbytes)
        stream.position += 8 + nbytes
    if stream.position < member.size:
        _read_views(stream.load("the last pickle in 'storages'"), storages)


def _read_views(views: Any, storages: TarStorages) -> None:
    if type(views) not in (list, tuple):
        raise MetadataError("the views of storages are not a list")
    for view in views:
        if type(view) not in (tuple, list) or len(view) != 4:
            raise MetadataError("a view of a storage is not described by four values")
        key, base = key_text(view[0]), storages.by_key.get(key_text(view[1]))
        if base is None:
            raise MetadataError(f"storage {key!r} is a view of one that is not in the file")
        first, numel = _count(view[2], "elements before a view"), _count(view[3], "elements of a view")
        storages.by_key[key] = StorageRef(base.kind, base.key, base.location, base.numel, (first, numel))


def _read_tensors(stream: PickleStream, member: Window, storages: TarStorages) -> None:
    for _ in range(_count(stream.load("the first pickle in 'tensors'"), "tensors")):
        key, storage, _ = _triple(stream.load("a pickle in 'tensors'"), "tensor")
        ref = storages.by_key.get(key_text(storage))
        if ref is None:
            raise MetadataError(f"tensor {key!r} lies in storage {key_text(storage)!r}, which is not in the file")
        (rank,) = struct.unpack("<i", member.view(stream.position, 4))
        if not 0 <= rank <= _MOST_AXES:
            raise MetadataError(f"tensor {key!r} has rank {rank}", offset=member.start + stream.position)
        numbers = struct.unpack(f"<{2 * rank + 1}q", member.view(stream.position + 8, 16 * rank + 8))
        stream.position += 16 + 16 * rank
        storages.tensors[key] = RawTensor(ref, numbers[-1], numbers[:rank], numbers[rank:-1])
