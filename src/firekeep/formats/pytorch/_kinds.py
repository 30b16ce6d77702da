"""Which of PyTorch's four containers a file is, from its first bytes."""

from __future__ import annotations

from typing import Literal

from firekeep.formats.pytorch._legacy import MAGIC
from firekeep.sources import Source

Kind = Literal["zip", "legacy", "tar", "pickle", "none"]

_HEAD = 512
_END_SIZE = 22
_MAGIC_SEARCHED = 64
_MAGIC_BYTES = MAGIC.to_bytes(10, "little")
_MAGIC_TEXT = str(MAGIC).encode()
_TEXT_STARTS = frozenset(b"(}])cNKJMIFSVUXGL.T\x80\x88\x89\x8a\x8c\x8f")
"""Opcodes that a pickle starts with: PROTO, or those of values in protocols 0 and 1."""


def tell_kind(source: Source) -> Kind:
    """Tell the container; "none" for what cannot be a pickle."""
    head = bytes(source.view(0, min(_HEAD, source.size)))
    if head[:2] == b"PK":
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    start = head[:_MAGIC_SEARCHED]
    if start and start[0] in _TEXT_STARTS:
        return "legacy" if _MAGIC_BYTES in start or _MAGIC_TEXT in start else "pickle"
    return "zip" if ends_as_zip(source) else "none"


def ends_as_zip(source: Source) -> bool:
    """Tell an archive that was written behind other bytes."""
    return source.size >= _END_SIZE and bytes(source.view(source.size - _END_SIZE, 4)) == b"PK\x05\x06"
