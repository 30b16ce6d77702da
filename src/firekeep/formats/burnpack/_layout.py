"""The fixed part of a burnpack file: ten bytes, a table, zeros up to a multiple of 256, data."""

from __future__ import annotations

import struct

MAGIC = b"NRUB"  # the little-endian 32-bit number 0x4255524E
VERSION = 1
ALIGNMENT = 256
HEADER = struct.Struct("<4sHI")
"""Magic, version, length of the table."""

KNOWN_KEYS = ("tensors", "metadata", "scalars")


def align(offset: int) -> int:
    """Round up to the next multiple of 256."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def header(table_bytes: int) -> bytes:
    """Give the ten bytes in front of a table."""
    return HEADER.pack(MAGIC, VERSION, table_bytes)


def data_start(table_bytes: int) -> int:
    """Say where the data begins; files do not state it."""
    return align(HEADER.size + table_bytes)
