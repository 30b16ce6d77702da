"""Tiny safetensors files, right and wrong, made by hand."""

from __future__ import annotations

import json
import struct
from typing import Any

from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.formats import Container, OpenOptions
from firekeep.formats.safetensors import open_container
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sources import MemorySource


def raw(header: bytes | str | dict[str, Any], data: bytes = b"") -> bytes:
    """Make a file of any header: bytes and text as they stand, a dict as compact JSON."""
    if isinstance(header, dict):
        header = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text)) + text + data


def row(dtype: str, shape: list[Any], *offsets: Any) -> dict[str, Any]:
    """Make a tensor's row."""
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def u8(name: str, size: int = 1, fill: int = 0) -> TensorEntry:
    """Make a small tensor of bytes."""
    return TensorEntry(name, BY_NAME["U8"], (size,), MemoryBlob(bytes([fill]) * size))


def open_bytes(data: bytes, *, allow_trailing: bool = False, limits: Limits = DEFAULT_LIMITS) -> Container:
    """Open bytes as safetensors."""
    return open_container(MemorySource(data), OpenOptions(allow_trailing=allow_trailing, limits=limits))
