"""Saying where a cut zip archive stops, and by how much it is too short where the file still tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firekeep.dtypes import BY_STORAGE
from firekeep.errors import TruncatedError
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.formats._zip_records import (
    CENTRAL_MAGIC,
    FLAG_DESCRIPTOR,
    FULL32,
    LOCAL,
    LOCAL_MAGIC,
    LOCAL_SIZE,
    STORED,
    decode_name,
    quote,
)
from firekeep.sources import Source

_SEARCHED = 64 << 20
_PICKLE_READ = 16 << 20
_INSTRUCTIONS_READ = 300_000
_MEMBERS_WALKED = 100_000
_SMALL_MEMBER = 1 << 16
_DESCRIPTOR_MAGIC = b"PK\x07\x08"


class _Local(NamedTuple):
    """A member's own header. `compressed` is None where only the lost directory says it."""

    name: str
    data: int
    compressed: int | None
    method: int
    deferred: bool


class _Stop(NamedTuple):
    """Where an archive stops: its last member, or its directory, and how many bytes of how many storages are missing."""

    last: str | None
    directory: int | None
    lacking: int = 0
    storages: int = 0


def describe_cut(source: Source) -> TruncatedError:
    """Say where an archive without an end record stops: in which member, and how many bytes it lacks if that is known."""
    message = "the zip archive is cut: its end, with the directory, is missing"
    limit = None
    stop = _walk_torch(source)
    if stop is None:
        stop, limit, detail = _search_tail(source)
    else:
        detail = ""
        if stop.lacking:
            limit = source.size + stop.lacking
            detail = f", and lacks {stop.lacking} bytes or more of the data of {stop.storages} storage{'s' * (stop.storages > 1)}"
    if stop.directory is not None:
        message += f"; it stops inside the archive's directory at {stop.directory}, and all members are there"
    elif stop.last is not None:
        message += f"; it stops after {source.size} bytes, in or after member {quote(stop.last)}{detail}"
    return TruncatedError(message, limit=limit, actual=source.size, remedy=COPY_AGAIN)


def _search_tail(source: Source) -> tuple[_Stop, int | None, str]:
    """Find the last member that begins in the last megabytes; its header may tell its size."""
    base = max(0, source.size - _SEARCHED)
    tail = source.view(base, source.size - base)
    at, directory = _rfind(tail, LOCAL_MAGIC), _rfind(tail, CENTRAL_MAGIC)
    if directory > max(at, 0):
        return _Stop(None, base + directory), None, ""
    last = _read_local(source, base + at) if at >= 0 else None
    if last is None:
        return _Stop(None, None), None, ""
    if last.compressed is None or last.data + last.compressed <= source.size:
        return _Stop(last.name, None), None, ""
    end = last.data + last.compressed
    return _Stop(last.name, None), end, f", which lacks {end - source.size} of its {last.compressed} bytes"


def _rfind(view: memoryview, magic: bytes) -> int:
    step = 1 << 20
    for stop in range(len(view), 0, -step):
        start = max(0, stop - step)
        found = bytes(view[start : stop + len(magic) - 1]).rfind(magic)
        if found >= 0:
            return start + found
    return -1


def _read_local(source: Source, at: int) -> _Local | None:
    if at + LOCAL_SIZE > source.size:
        return None
    magic, flags, method, _, compressed, _, n, x = LOCAL.unpack(source.view(at, LOCAL_SIZE))
    if magic != LOCAL_MAGIC or at + LOCAL_SIZE + n > source.size:
        return None
    name = decode_name(bytes(source.view(at + LOCAL_SIZE, n)))
    deferred = bool(flags & FLAG_DESCRIPTOR)
    told = compressed != FULL32 and not (deferred and compressed == 0)
    return _Local(name, at + LOCAL_SIZE + n + x, compressed if told else None, method, deferred)


def _walk_torch(source: Source) -> _Stop | None:
    """Walk the members of a PyTorch file from its start: its pickle says how large each storage is.

    Gives None where the file is laid out otherwise.
    """
    first = _read_local(source, 0)
    if first is None or not first.name.endswith("data.pkl") or first.method != STORED or first.data > source.size:
        return None
    root = first.name.removesuffix("data.pkl")
    sizes, length = _read_storages(bytes(source.view(first.data, min(_PICKLE_READ, source.size - first.data))))
    known = {f"{root}data/{key}": size for key, size in sizes.items()}
    at, last, rest = 0, first.name, 0
    for _ in range(_MEMBERS_WALKED):
        local = _read_local(source, at)
        if local is None:
            break
        last = local.name
        size = length if at == 0 else known.pop(local.name, None)
        end = _find_data_end(source, local, size)
        if end is None or end > source.size:
            rest = 0 if end is None or at == 0 else end - source.size
            break
        at = _skip_descriptor(source, local, end)
    magic = bytes(source.view(at, min(4, max(0, source.size - at))))
    if magic == CENTRAL_MAGIC:
        return _Stop(None, at)
    if len(magic) == 4 and magic != LOCAL_MAGIC:
        return None
    return _Stop(last, None, rest + sum(known.values()), len(known) + bool(rest))


def _find_data_end(source: Source, local: _Local, size: int | None) -> int | None:
    if local.compressed is not None:
        return local.data + local.compressed
    if size is not None and local.method == STORED:
        return local.data + size
    window = bytes(source.view(local.data, min(_SMALL_MEMBER, max(0, source.size - local.data))))
    found = window.find(_DESCRIPTOR_MAGIC)
    return local.data + found if found >= 0 else None


def _skip_descriptor(source: Source, local: _Local, end: int) -> int:
    """Step over the checksum and sizes behind the data: 16 bytes, or 24 with 64-bit sizes."""
    if not local.deferred:
        return end
    behind = bytes(source.view(end, min(28, source.size - end)))
    if not behind.startswith(_DESCRIPTOR_MAGIC):
        return end
    return end + (24 if behind[24:28] in (LOCAL_MAGIC, CENTRAL_MAGIC) else 16)


def _read_storages(pickle: bytes) -> tuple[dict[str, int], int | None]:
    """Read the keys and byte sizes of the storages that a pickle refers to, and the pickle's length.

    Only its instructions are looked at; nothing runs.
    """
    sizes: dict[str, int] = {}
    length = None
    for items, end in _iter_persistent(pickle):
        if items is None:
            length = end
        elif len(items) == 5 and items[0] == "storage":
            _, kind, key, _, count = items
            size = 1 if kind == "UntypedStorage" else None
            if isinstance(kind, str) and kind in BY_STORAGE:
                size = BY_STORAGE[kind].bits // 8
            if size is not None and isinstance(key, str) and isinstance(count, int) and 0 <= count < 1 << 60:
                sizes[key] = size * count
    return sizes, length


def _iter_persistent(pickle: bytes) -> Iterator[tuple[list[object] | None, int]]:
    """Give what stands between the last mark and each reference out of the pickle: texts, numbers and names of classes.

    The last one given has None, and where the pickle ends.
    """
    import pickletools

    memo: dict[object, object] = {}
    items: list[object] = []
    try:
        for done, (operation, argument, at) in enumerate(pickletools.genops(pickle)):
            name = operation.name
            if done > _INSTRUCTIONS_READ:
                return
            if name == "MARK":
                items = []
            elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[argument] = items[-1] if items else None
            elif name == "MEMOIZE":
                memo[len(memo)] = items[-1] if items else None
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                items.append(memo.get(argument))
            elif name == "GLOBAL":
                items.append(str(argument).rpartition(" ")[2])
            elif name == "STACK_GLOBAL":
                items[-2:] = items[-1:]
            elif name == "BINPERSID":
                yield items, at or 0
            elif name == "STOP":
                yield None, (at or 0) + 1
            elif isinstance(argument, str | int):
                items.append(argument)
    except Exception:  # noqa: BLE001 - the disassembler of the standard library raises whatever it meets; what was read counts
        return
