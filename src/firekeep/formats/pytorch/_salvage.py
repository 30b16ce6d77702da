"""Members of zip archives whose directory cannot be trusted, by their own headers. For looking, never for loading."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

from firekeep.sources import Source

_LOCAL = Struct("<4s2xHH8xLLHH")
_MAGIC = b"PK\x03\x04"
_SEARCHED = 64 << 20
_MOST_MEMBERS = 10_000
_MEMBER_BYTES = 16 << 20
_ALL_BYTES = 64 << 20


def salvage_members(source: Source, *, most: int = _ALL_BYTES) -> Iterator[tuple[str, bytes]]:
    """Give what each local header leads to: its name, and its bytes as far as they can be unpacked, `most` in all."""
    data = source.view(0, min(source.size, _SEARCHED)).tobytes()
    at, left = data.find(_MAGIC), most
    for _ in range(_MOST_MEMBERS):
        if at < 0 or at + _LOCAL.size > len(data) or left <= 0:
            return
        _, _, method, packed, _, name_length, extra = _LOCAL.unpack_from(data, at)
        start = at + _LOCAL.size + name_length
        name = data[at + _LOCAL.size : start].decode("utf-8", "replace")
        start += extra
        end = start + packed
        if packed == 0 or end > len(data):
            following = data.find(b"PK", start)
            end = following if following > 0 else len(data)
        unpacked = _unpack(data[start : min(end, start + _MEMBER_BYTES)], method, min(left, _MEMBER_BYTES))
        left -= min(end - start, _MEMBER_BYTES) + len(unpacked)
        yield name, unpacked
        at = data.find(_MAGIC, start)


def _unpack(raw: bytes, method: int, most: int) -> bytes:
    if method != 8:
        return raw[:most]
    try:
        return zlib.decompressobj(-15).decompress(raw, most)
    except zlib.error:
        return b""
