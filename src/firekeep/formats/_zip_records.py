"""The records of a zip archive: end record, central directory, local headers. APPNOTE.TXT 6.3, sections 4.3 and 4.4.

Nothing here is believed before it agrees with something else: counts with the records found, offsets with where the records lie.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from firekeep.errors import HeaderError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.sources import Source

LOCAL = Struct("<4s2xHH4xLLLHH")
"""Signature, flags, method, checksum, compressed size, size, name length, extra length."""
_CENTRAL = Struct("<4s4xHH4xLLLHHHH6xL")
_END = Struct("<4x4H2LH")
_END64 = Struct("<4xQ4x2L4Q")
_LOCATOR = Struct("<4xLQL")

LOCAL_MAGIC = b"PK\x03\x04"
END_MAGIC = b"PK\x05\x06"
CENTRAL_MAGIC = b"PK\x01\x02"
_END64_MAGIC = b"PK\x06\x06"
_LOCATOR_MAGIC = b"PK\x06\x07"

LOCAL_SIZE = 30
_CENTRAL_SIZE = 46
_END_SIZE = 22
_END64_SIZE = 56
_LOCATOR_SIZE = 20
_LONGEST_COMMENT = 0xFFFF
_FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_EXTRA = 1
_ODD_NAME = re.compile(r"^/|^[A-Za-z]:|\\|(^|/)\.\.(/|$)|[\x00-\x1f]|^$")

FLAG_ENCRYPTED = 1
FLAG_DESCRIPTOR = 8
FLAG_PATCH = 0x20
FLAG_STRONG = 0x40 | 0x2000
STORED, DEFLATED = 0, 8


class ZipMember(NamedTuple):
    """One member as the central directory declares it; `header_offset` counts from the start of the file."""

    name: str
    size: int
    compressed: int
    crc: int
    method: int
    flags: int
    header_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """Where an archive and its directory lie in the file, and how many members it declares.

    `start` is the first byte of the archive: more than 0 where other bytes stand before it and the offsets were not adjusted.
    """

    count: int
    directory: int
    directory_size: int
    start: int
    stop: int
    comment: int
    position: int


def find_end(source: Source, *, stop: int) -> EndRecord | None:
    """Find the archive that ends last before `stop`; None without an end record.

    Raises a `FormatError` for an end record that contradicts the file.
    """
    position = _find_end_record(source, stop)
    return None if position is None else _read_end(source, position)


def _find_end_record(source: Source, stop: int) -> int | None:
    """Prefer the end record whose comment ends the file; else take the last one that other bytes follow."""
    base = max(0, stop - _END_SIZE - _LONGEST_COMMENT)
    tail = bytes(source.view(base, stop - base))
    fits: list[int] = []
    followed: list[int] = []
    cut: list[tuple[int, int]] = []
    at = len(tail) - _END_SIZE + 1
    while at > 0 and (at := tail.rfind(END_MAGIC, 0, at + len(END_MAGIC) - 1)) >= 0:
        over = len(tail) - at - _END_SIZE - int.from_bytes(tail[at + 20 : at + 22], "little")
        if over < 0:
            cut.append((base + at, -over))
        else:
            (followed if over else fits).append(base + at)
    if len(fits) > 1:
        raise MetadataError(
            f"the zip archive has two end records that both fit, at {fits[1]} and {fits[0]}: readers would disagree about it",
            offset=fits[0],
        )
    if cut and not fits and not followed:
        position, missing = cut[0]
        raise TruncatedError(
            f"the zip archive's comment is cut: its end record at {position} declares {missing} more bytes than the file has",
            offset=position,
            limit=stop + missing,
            actual=stop,
            remedy=COPY_AGAIN,
        )
    return next(iter(fits or followed), None)


def _read_end(source: Source, position: int) -> EndRecord:
    disk, first_disk, here, count, size, offset, comment = _END.unpack(source.view(position, _END_SIZE))
    tail = position
    wide = _read_end64(source, position)
    if wide is not None:
        tail, (disk64, first64, here64, count64, size64, offset64) = wide
        narrow = (disk, first_disk, here, count, size, offset)
        for small, large, full in zip(narrow, wide[1], (_FULL16,) * 4 + (FULL32,) * 2, strict=True):
            if small not in (large, full):
                raise MetadataError(
                    f"the zip archive's two end records disagree: {small} at {position}, {large} at {tail}",
                    offset=position,
                )
        disk, first_disk, here, count, size, offset = disk64, first64, here64, count64, size64, offset64
    if disk or first_disk or here != count:
        raise UnsupportedError(
            f"the zip archive is one part of several: disk {disk}, {here} of {count} members here",
            offset=position,
            remedy="Join the parts first: `zip -s 0 FIRST.zip --out WHOLE.zip`.",
        )
    directory = tail - size
    _check_directory_place(source, offset=offset, size=size, count=count, tail=tail)
    return EndRecord(
        count=count,
        directory=directory,
        directory_size=size,
        start=directory - offset,
        stop=position + _END_SIZE + comment,
        comment=comment,
        position=position,
    )


def _read_end64(source: Source, position: int) -> tuple[int, tuple[int, ...]] | None:
    """Read the zip64 end record that stands before the end record, if a locator says that there is one."""
    locator = position - _LOCATOR_SIZE
    if locator < 0 or bytes(source.view(locator, 4)) != _LOCATOR_MAGIC:
        return None
    disk, declared, disks = _LOCATOR.unpack(source.view(locator, _LOCATOR_SIZE))
    if disk or disks > 1:
        raise UnsupportedError(f"the zip archive is one part of {disks}", offset=locator)
    # The usual record ends at the locator. The declared place is only a second guess: bytes before the archive shift it.
    for place in (locator - _END64_SIZE, declared):
        if 0 <= place <= locator - _END64_SIZE and bytes(source.view(place, 4)) == _END64_MAGIC:
            length, *fields = _END64.unpack(source.view(place, _END64_SIZE))
            if place + 12 + length == locator:
                return place, tuple(fields)
    raise HeaderError(
        f"the zip64 end record is missing: the locator at {locator} points to {declared}, where none ends at the locator",
        offset=locator,
    )


def _check_directory_place(source: Source, *, offset: int, size: int, count: int, tail: int) -> None:
    if offset + size > tail:
        raise MetadataError(
            f"the zip directory of {size} bytes at {offset} does not fit before its end record at {tail}",
            offset=offset,
            limit=tail,
            actual=offset + size,
        )
    found = bytes(source.view(tail - size, 4)) if size >= _CENTRAL_SIZE else b""
    if (count and found != CENTRAL_MAGIC) or (not count and size):
        raise MetadataError(
            f"no zip directory of {count} members and {size} bytes ends at {tail}; its declared place is {offset}",
            offset=tail - size,
        )


def refuse_two_readings(source: Source, end: EndRecord) -> None:
    """Refuse an archive with bytes before it in which another reader would find another archive."""
    if bytes(source.view(0, 4)) == LOCAL_MAGIC:
        raise MetadataError(
            f"the file starts with one zip archive whose end is missing, and ends with another at bytes {end.start} to {end.stop}",
            offset=end.start,
        )
    declared = end.directory - end.start
    if end.count and bytes(source.view(declared, 4)) == CENTRAL_MAGIC:
        raise MetadataError(
            f"the zip archive has two directories, at its declared place {declared} and at {end.directory}: readers would disagree",
            offset=declared,
        )


def read_members(source: Source, end: EndRecord, limits: Limits) -> dict[str, ZipMember]:
    """Read the central directory; raises `MetadataError` where it contradicts itself, `LimitError` for too many members."""
    if end.count > limits.archive_members:
        raise LimitError(
            f"the zip archive declares {end.count} members; at most {limits.archive_members} are allowed",
            limit=limits.archive_members,
            actual=end.count,
        )
    members: dict[str, ZipMember] = {}
    reach, ordered = end.start, True
    with collector_paused():
        for member in _iter_central(source.view(end.directory, end.directory_size), end):
            name, offset = member[0], member[6]
            if name in members:
                raise MetadataError(f"the zip archive has two members named {quote(name)}", offset=offset)
            members[name] = member
            ordered = ordered and offset >= reach
            reach = offset + LOCAL_SIZE + len(name) + member[2]
    if len(members) != end.count:
        raise MetadataError(
            f"the zip archive declares {end.count} members, its directory lists {len(members)}",
            limit=end.count,
            actual=len(members),
        )
    if reach > end.directory or not ordered:
        _check_extents(sorted(members.values(), key=lambda member: member.header_offset), end)
    return members


def least_extent(member: ZipMember) -> int:
    """Count the bytes that a member takes at the least: header, name and data."""
    return LOCAL_SIZE + len(member.name) + member.compressed


def _check_extents(ordered: list[ZipMember], end: EndRecord) -> None:
    following = [*ordered[1:], None]
    for member, after in zip(ordered, following, strict=True):
        bound = end.directory if after is None else after.header_offset
        if member.header_offset < end.start or member.header_offset + least_extent(member) > bound:
            what = "the archive's directory" if after is None else f"member {quote(after.name)}"
            raise MetadataError(
                f"zip member {quote(member.name)} of {member.compressed} bytes at {member.header_offset} runs into {what} at {bound}",
                offset=member.header_offset,
                limit=bound,
                actual=member.header_offset + least_extent(member),
            )


def _iter_central(view: memoryview, end: EndRecord) -> Iterator[ZipMember]:
    unpack, total, start, new = _CENTRAL.unpack_from, len(view), end.start, tuple.__new__
    at = 0
    while at < total:
        if at + _CENTRAL_SIZE > total:
            raise MetadataError(f"the zip directory ends inside a record at {end.directory + at}")
        magic, flags, method, crc, compressed, size, n, x, c, disk, offset = unpack(view, at)
        names = at + _CENTRAL_SIZE
        following = names + n + x + c
        if magic != CENTRAL_MAGIC or following > total:
            raise MetadataError(
                f"the zip directory is damaged at {end.directory + at}: no whole record stands there",
                offset=end.directory + at,
            )
        name = decode_name(bytes(view[names : names + n]))
        if size == FULL32 or compressed == FULL32 or offset == FULL32:
            extra = bytes(view[names + n : names + n + x])
            size, compressed, offset = _widen(name, extra, size, compressed, offset)
        if disk and disk != _FULL16:
            raise UnsupportedError(f"zip member {quote(name)} lies on disk {disk}, in another file")
        if method == STORED and size != compressed and not flags & FLAG_ENCRYPTED:
            raise MetadataError(f"zip member {quote(name)} is stored as it is, yet {compressed} bytes stand for {size}")
        yield new(ZipMember, (name, size, compressed, crc, method, flags, start + offset))
        at = following


def _widen(name: str, extra: bytes, *fields: int) -> Iterator[int]:
    """Replace the full 32-bit fields by those of the zip64 extra field, in their order: size, compressed, offset."""
    values = _zip64_values(extra)
    for field, what in zip(fields, ("size", "compressed size", "header offset"), strict=True):
        if field != FULL32:
            yield field
        elif len(values) < 8:
            raise MetadataError(f"zip member {quote(name)} leaves its {what} to a zip64 field that does not hold it")
        else:
            yield int.from_bytes(values[:8], "little")
            values = values[8:]


def _zip64_values(extra: bytes) -> bytes:
    while len(extra) >= 4:
        kind, length = int.from_bytes(extra[:2], "little"), int.from_bytes(extra[2:4], "little")
        if kind == _ZIP64_EXTRA:
            return extra[4 : 4 + length]
        extra = extra[4 + length :]
    return b""


def decode_name(raw: bytes) -> str:
    """Read a member's name as UTF-8, whatever its flag says, and as code page 437 where it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp437")


def quote(name: str) -> str:
    """Show a name in a message: escaped, and cut where it is long."""
    return repr(name) if len(name) <= 120 else f"{name[:120]!r}..."


def find_odd_names(members: dict[str, ZipMember]) -> list[str]:
    """List the names that would lead out of a folder, or that some systems read as other names."""
    joined = f"/{'/'.join(members)}/"
    if joined.isprintable() and not any(sign in joined for sign in ("//", "..", "\\", ":")):
        return []  # the usual case, without a search in each name
    return [name for name in members if _ODD_NAME.search(name)]
