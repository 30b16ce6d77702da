"""Zip archives written byte by byte, so that every field can be wrong."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

STORED, DEFLATED = 0, 8


@dataclass(kw_only=True)
class Part:
    """One member. Fields left at None are computed; `local` overrides what the member's own header says."""

    name: str | bytes = "a"
    data: bytes = b"0123456789"
    method: int = STORED
    flags: int = 0
    crc: int | None = None
    size: int | None = None
    compressed: int | None = None
    packed: bytes | None = None
    offset: int | None = None
    disk: int = 0
    local: dict[str, int | str] = field(default_factory=dict)
    local_extra: bytes = b""
    extra: bytes = b""
    after: bytes = b""

    def resolve(self) -> None:
        if self.packed is None:
            self.packed = self.data if self.method != DEFLATED else deflate(self.data)
        self.crc = zlib.crc32(self.data) if self.crc is None else self.crc
        self.size = len(self.data) if self.size is None else self.size
        self.compressed = len(self.packed) if self.compressed is None else self.compressed


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def build(
    parts: Iterable[Part],
    *,
    prefix: bytes = b"",
    adjusted: bool = False,
    comment: bytes = b"",
    zip64: bool = False,
    suffix: bytes = b"",
    **end: int,
) -> bytes:
    """Write an archive. `end` overrides fields of the end record: count, here, size, offset, disk, comment_length."""
    base = len(prefix) if adjusted else 0
    body = bytearray()
    central = bytearray()
    count = 0
    for part in parts:
        part.resolve()
        count += 1
        name = part.name.encode() if isinstance(part.name, str) else part.name
        at = base + len(body) if part.offset is None else part.offset
        if part.packed != b"SHARED":
            body += _local(part, name) + part.packed + part.after
        central += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20, 20, part.flags, part.method, 0, 33, part.crc, part.compressed, part.size,
            len(name), len(part.extra), 0, part.disk, 0, 0, at,
        ) + name + part.extra  # fmt: skip
    offset = base + len(body)
    out = bytearray(prefix + body + central)
    if zip64:
        place = base + len(body) + len(central)
        out += struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(central), offset)
        out += struct.pack("<4sLQL", b"PK\6\7", 0, place, 1)
    disk = end.get("disk", 0)
    out += struct.pack(
        "<4s4H2LH", b"PK\5\6", disk, disk, end.get("here", end.get("count", count)), end.get("count", count),
        end.get("size", len(central)), end.get("offset", offset), end.get("comment_length", len(comment)),
    )  # fmt: skip
    return bytes(out) + comment + suffix


def _local(part: Part, name: bytes) -> bytes:
    shown = part.local.get("name")
    local_name = shown.encode() if isinstance(shown, str) else name
    get = part.local.get
    return (
        struct.pack(
            "<4s5H3L2H", b"PK\3\4", 20, get("flags", part.flags), get("method", part.method), 0, 33,
            get("crc", part.crc), get("compressed", min(part.compressed, 0xFFFFFFFF)),
            get("size", min(part.size, 0xFFFFFFFF)), len(local_name), len(part.local_extra),
        )
        + local_name
        + part.local_extra
    )  # fmt: skip


def widen(*values: int) -> bytes:
    """Write the zip64 extra field with these 64-bit values."""
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)
