"""The one atomic writer: a plan of parts goes to disk whole, or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

from firekeep.disk._plan import Part, WritePlan, draw
from firekeep.disk._scratch import SCRATCH_SUFFIX, Scratch, is_scratch, remove_stale, sync_folder
from firekeep.disk._stream import Observer, Progress, write_parts
from firekeep.disk._target import NO_FOLDER, check_space, find_target

__all__ = [
    "NO_FOLDER",
    "SCRATCH_SUFFIX",
    "Observer",
    "Part",
    "Progress",
    "WritePlan",
    "draw",
    "is_scratch",
    "remove_stale",
    "to_bytes",
    "write_file",
]

Seal = Callable[[], bytes]


def to_bytes(plan: WritePlan, *, observe: Observer | None = None, seal: Seal | None = None) -> bytes:
    """Make the file in memory; `observe` and `seal` are those of `write_file`."""
    out = io.BytesIO()
    if plan.nbytes:
        out.seek(plan.nbytes - 1)  # all of it at once: zeros, and no growing
        out.write(b"\0")
    for part in plan.parts:
        view = draw(part)
        if observe is not None and part.tensor is not None:
            observe(part.tensor, view)
        out.seek(part.offset)
        out.write(view)
        del view
    if seal is not None:
        out.seek(0)
        out.write(_sealed(plan, seal))
    return out.getvalue()


def write_file(
    path: str | os.PathLike[str],
    plan: WritePlan,
    *,
    overwrite: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    observe: Observer | None = None,
    seal: Seal | None = None,
) -> Path:
    """Write the plan to `path`, replacing what is there in one step, and give the path written.

    A failure at any point leaves the old file as it was and no scratch file; only where the process is killed does one stay behind,
    under a name that `is_scratch` knows, until a later save to the same path removes it. A symbolic link is written through, the mode
    of a replaced file is kept (and its owner, where permitted), hard links and extended attributes are not. What was read lazily
    from the file replaced stays readable.

    `overwrite=False` raises `ExistsError` before a byte is drawn, and cannot race: the file is published by a hard link, or by an
    exclusive rename. `durable=False` skips the fsyncs and nothing else. `progress` is told how many bytes were just written.
    `observe` sees each tensor's bytes in the file's order just before they are written, those of large tensors in several pieces;
    `seal`, called after the last, gives bytes that replace the file's first part (the same header with digests filled in).

    Raises `DiskFullError` before a byte is drawn when the file will not fit, `EntryError` naming the tensor whose bytes do not come as
    declared, and OSError: one that says "the file was saved" means that only the fsync of its folder failed.
    """
    target = find_target(path, overwrite=overwrite)
    remove_stale(target.folder, target.final.name)
    check_space(target, plan.nbytes)
    with Scratch(target, plan.nbytes) as scratch:
        scratch.reserve()
        write_parts(scratch, plan, write_behind=durable, progress=progress, observe=observe)
        if seal is not None:
            scratch.write(memoryview(_sealed(plan, seal)), 0)
        scratch.finish(durable=durable)
        scratch.publish(overwrite=overwrite)
    if durable:
        sync_folder(target)
    return Path(target.path)


def _sealed(plan: WritePlan, seal: Seal) -> bytes:
    header = seal()
    first = plan.parts[0] if plan.parts else None
    expected = first.blob.nbytes if first is not None and first.offset == 0 else 0
    if len(header) != expected:
        raise ValueError(f"the sealed header has {len(header)} bytes, and {expected} are kept for it")
    return header
