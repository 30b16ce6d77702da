"""Plans of files for tests of the writer."""

from __future__ import annotations

import stat
from pathlib import Path

from firekeep.blobs import Blob, DeferredBlob, MemoryBlob
from firekeep.disk import Part, WritePlan


def plan_of(*values: bytes, gap: int = 0) -> WritePlan:
    """A header of four bytes, then tensors t0, t1 ... with `gap` zeros before each."""
    parts, offset = [Part(0, MemoryBlob(b"head"))], 4
    for index, value in enumerate(values):
        parts.append(Part(offset + gap, MemoryBlob(value), f"t{index}"))
        offset += gap + len(value)
    return WritePlan(nbytes=offset, parts=parts)


def plan_with(*blobs: Blob, nbytes: int | None = None) -> WritePlan:
    parts, offset = [], 0
    for index, blob in enumerate(blobs):
        parts.append(Part(offset, blob, f"t{index}"))
        offset += blob.nbytes
    return WritePlan(nbytes=offset if nbytes is None else nbytes, parts=parts)


def failing(error: BaseException) -> DeferredBlob:
    def provider():
        raise error

    return DeferredBlob(4, provider)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
