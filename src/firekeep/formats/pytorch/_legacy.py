"""The stream that PyTorch wrote before 1.6, and still writes on demand: five pickles, then the storages.

    pickle(magic number) pickle(1001) pickle(system) pickle(object) pickle(storage keys)
    per key: the number of elements as a little-endian 64-bit integer, then the elements

Elements are little-endian whatever the machine was: PyTorch swapped them on big-endian ones when it wrote. Only the number
before them was at times left as the machine had it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.blobs import Blob, WindowBlob
from firekeep.errors import LimitError, MetadataError, TruncatedError, UnsafePickleError
from firekeep.formats._protocol import OpenOptions
from firekeep.formats.pytorch._found import Found
from firekeep.formats.pytorch._inert import Global, StorageRef
from firekeep.formats.pytorch._machine import Machine
from firekeep.formats.pytorch._storages import StorageTable, declared_bytes, key_text, show, storage_dtype
from firekeep.limits import Limits
from firekeep.sources import Source

MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_FIRST_WINDOW = 1 << 18


@dataclass(frozen=True, slots=True)
class LegacyFile:
    """A legacy stream: its object, its storages, and what was noticed."""

    root: Any
    storages: StorageTable
    protocol: int
    globals: dict[tuple[str, str], Global]
    notes: tuple[str, ...]
    little_endian: bool
    end: int
    taken: Mapping[str, int]


class LegacyStorages(StorageTable):
    """Storages that lie one after the other behind the pickles."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, key: str, offset: int, nbytes: int) -> None:
        """Remember where a storage lies."""
        self._places[key] = (offset, nbytes)

    def locate(self, ref: StorageRef, nbytes: int) -> Blob | str:
        """Give the bytes of a storage."""
        place = self._places.get(ref.key)
        if place is None:
            return f"its storage {ref.key!r} is not among those of the file"
        if nbytes != place[1]:
            raise MetadataError(f"storage {ref.key!r} is declared with {nbytes} bytes and with {place[1]}")
        return WindowBlob(self._source, *place)


@dataclass(slots=True)
class PickleStream:
    """Pickles one after the other in a source, read through windows that grow: what follows is not touched."""

    source: Source
    limits: Limits
    position: int = 0
    protocol: int = 0
    globals: dict[tuple[str, str], Global] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)

    def load(self, place: str, persistent: Callable[[Any], Any] | None = None) -> Any:
        """Read the next pickle; raises as `Machine.run` does."""
        window = _FIRST_WINDOW
        while True:
            most = min(self.source.size - self.position, self.limits.pickle_bytes)
            data = bytes(self.source.view(self.position, min(window, most)))
            machine = Machine(data, limits=self.limits, base=self.position, place=place)
            if persistent is not None:
                machine.persistent = persistent
            try:
                value = machine.run()
            except TruncatedError:
                if window < most:
                    window *= 8
                    continue
                if most == self.limits.pickle_bytes:
                    raise _too_long(place, self.limits) from None
                raise
            self.position += machine.position
            self.taken.update({**machine.taken(), "pickle_bytes": machine.position})
            self.protocol = machine.protocol
            self.globals.update(machine.globals)
            return value


def _too_long(place: str, limits: Limits) -> LimitError:
    return LimitError(
        f"{place} does not end within {limits.pickle_bytes:,} bytes",
        limit=limits.pickle_bytes,
        actual=limits.pickle_bytes + 1,
        remedy="If the file is honest, open it with a larger firekeep.Limits(pickle_bytes=...).",
    )


def read_legacy(source: Source, limits: Limits) -> LegacyFile:
    """Read the pickles and find the storages, without reading these.

    Raises `MetadataError` where a storage's number of elements contradicts the pickle, `TruncatedError` where the file ends early.
    """
    stream = PickleStream(source, limits)
    magic = stream.load("the magic number's pickle")
    if magic != MAGIC:
        raise UnsafePickleError("the file does not start with PyTorch's magic number")
    protocol = stream.load("the protocol's pickle")
    if protocol != _PROTOCOL:
        raise MetadataError(f"the legacy stream has protocol {show(protocol)}, not {_PROTOCOL}")
    little, notes = read_system(stream.load("the pickle of the system's facts"))
    storages = LegacyStorages(source)
    root = stream.load("the main pickle", storages.persistent)
    protocol = stream.protocol
    keys = stream.load("the pickle of the storage keys")
    end = _place_storages(source, storages, keys, stream.position, little=little)
    if end < source.size:
        notes.append(f"{source.size - end} bytes follow the last storage, at {end}")
    return LegacyFile(root, storages, protocol, stream.globals, tuple(notes), little, end, stream.taken)


def open_legacy(source: Source, options: OpenOptions) -> Found:
    """Read a legacy stream as a file of its own."""
    file = read_legacy(source, options.limits)
    return Found(
        variant="legacy",
        root=file.root,
        storages=file.storages,
        globals=file.globals,
        details={
            "pickle_protocol": file.protocol,
            "byte_order": "little",
            "written_on_big_endian": not file.little_endian,
        },
        notes=file.notes,
        taken=file.taken,
    )


def read_system(facts: Any) -> tuple[bool, list[str]]:
    """Read what the file says of the machine that wrote it: whether it was little-endian, and notes."""
    if not isinstance(facts, dict):
        raise MetadataError(f"the system's facts are a {type(facts).__name__}, not a dict")
    little = facts.get("little_endian", facts.get(b"little_endian"))
    if little is False:
        return False, ["the file was written on a big-endian machine; PyTorch writes storages little-endian there too"]
    return True, [] if little is True else ["the file does not say which byte order its machine had"]


def _place_storages(source: Source, storages: LegacyStorages, keys: Any, start: int, *, little: bool) -> int:
    """Walk from storage to storage by the declared sizes, checking each number of elements."""
    if type(keys) not in (list, tuple):
        raise MetadataError(f"the storage keys are a {type(keys).__name__}, not a list")
    position = start
    for key in map(key_text, keys):
        ref = storages.refs.get(key)
        if ref is None:
            raise MetadataError(
                f"storage {key!r} at byte {position} is not mentioned in the pickle: its size is unknown",
                offset=position,
            )
        dtype, _ = storage_dtype(ref.kind)
        if dtype is None:
            raise MetadataError(f"storage {key!r} at byte {position} is a {ref.kind.path}: its size is unknown")
        nbytes = declared_bytes(dtype, ref.numel)
        _check_count(source, ref, position, little=little)
        _check_inside(source, ref, position + 8, nbytes)
        storages.add(key, position + 8, nbytes)
        position += 8 + nbytes
    return position


def _check_count(source: Source, ref: StorageRef, position: int, *, little: bool) -> None:
    if position + 8 > source.size:
        raise TruncatedError(
            f"storage {ref.key!r} starts at byte {position}, but the file has {source.size} bytes: it was cut short",
            offset=position,
            limit=position + 8,
            actual=source.size,
        )
    raw = bytes(source.view(position, 8))
    count = int.from_bytes(raw, "little", signed=True)
    if count != ref.numel and (little or int.from_bytes(raw, "big", signed=True) != ref.numel):
        raise MetadataError(
            f"storage {ref.key!r} at byte {position} says it has {count} elements, the pickle says {ref.numel}: the file is "
            "damaged",
            offset=position,
            limit=ref.numel,
            actual=count,
        )


def _check_inside(source: Source, ref: StorageRef, start: int, nbytes: int) -> None:
    if start + nbytes > source.size:
        raise TruncatedError(
            f"storage {ref.key!r} takes bytes {start} to {start + nbytes}, but the file has {source.size}: it was cut short",
            offset=start,
            limit=start + nbytes,
            actual=source.size,
        )
