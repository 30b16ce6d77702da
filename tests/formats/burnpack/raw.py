"""Burnpack files put together by hand, so that every spelling can be tried."""

from __future__ import annotations

import struct
from typing import Any

import cbor2

from firekeep.formats import Container, OpenOptions
from firekeep.formats.burnpack import open_container
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sources import MemorySource


class Raw(bytes):
    """Bytes that are already CBOR."""


def cbor(value: Any) -> bytes:
    """Spell a value; `Raw` stands for itself, lists of pairs are maps with their order (and repetitions) kept."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, Pairs):
        return map_head(len(value)) + b"".join(cbor(key) + cbor(one) for key, one in value)
    if isinstance(value, dict):
        return cbor(Pairs(value.items()))
    if isinstance(value, list):
        head = bytes([0x80 + len(value)]) if len(value) < 24 else b"\x9a" + struct.pack(">I", len(value))
        return head + b"".join(map(cbor, value))
    return bytes(cbor2.dumps(value))


class Pairs(list[Any]):
    """The pairs of a map."""


def map_head(count: int) -> bytes:
    return bytes([0xA0 + count]) if count < 24 else b"\xba" + struct.pack(">I", count)


def raw_file(table: Any, data: bytes = b"", *, version: int = 1, aligned: bool = True) -> bytes:
    """Put header, table and data together."""
    spelled = cbor(table)
    head = struct.pack("<4sHI", b"NRUB", version, len(spelled)) + spelled
    return head + bytes(-len(head) % 256 if aligned else 0) + data


def descriptor(start: int = 0, end: int = 8, **fields: Any) -> dict[str, Any]:
    """Describe an F32 tensor of shape [2]; fields given replace or follow."""
    return {"dtype": "F32", "shape": [2], "data_offsets": [start, end], **fields}


def open_raw(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Container:
    return open_container(MemorySource(data), OpenOptions(limits=limits))


def open_table(table: Any, data: bytes = bytes(8), **how: Any) -> Container:
    return open_raw(raw_file(table, data, **how))


def open_descriptor(spelled: Any, data: bytes = bytes(8)) -> Container:
    return open_table({"tensors": {"w": spelled}}, data)
