"""The one atomic writer: a plan of parts goes to disk whole, or not at all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firekeep.blobs import Blob
from firekeep.errors import EntryError, ExistsError, FirekeepError

Progress = Callable[[int], None]
Observer = Callable[[str, memoryview], None]

_COUNTER = itertools.count()
SCRATCH_SUFFIX = ".tmp"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes at a place in the file to be. `tensor` names whose they are; headers have none."""

    offset: int
    blob: Blob
    tensor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """A whole file, decided before a byte of it is drawn.

    Parts are in ascending order and do not overlap; what lies between them is zero. `nbytes` is the file's length.
    """

    nbytes: int
    parts: Sequence[Part] = field(repr=False)


def to_bytes(plan: WritePlan) -> bytes:
    """Make the file in memory."""
    out = bytearray(plan.nbytes)
    for part in plan.parts:
        view = draw(part)
        out[part.offset : part.offset + view.nbytes] = view
        del view  # or two tensors would be alive while the next is drawn
    return bytes(out)


def draw(part: Part) -> memoryview:
    """Draw a part's bytes and check their length; errors name the tensor."""
    try:
        view = part.blob.view()
    except FirekeepError as error:
        raise error.at(tensor=part.tensor)  # noqa: B904 - the same error, with its place
    except OSError as error:
        if part.tensor is not None:
            error.add_note(f"while the bytes of tensor {part.tensor!r} were read")
        raise
    if view.nbytes != part.blob.nbytes:
        raise EntryError(f"{part.blob.nbytes} bytes were declared, {view.nbytes} came", tensor=part.tensor)
    return view


def write_file(
    path: str | os.PathLike[str],
    plan: WritePlan,
    *,
    overwrite: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    observe: Observer | None = None,
    seal: Callable[[], bytes] | None = None,
) -> Path:
    """Write the plan to `path`, replacing what is there in one step, and give the path written.

    A failure at any point leaves the old file as it was and no scratch file. `overwrite=False` raises `ExistsError` before
    a byte is drawn, and cannot race: the file is published by a hard link. `durable=False` skips the fsyncs and nothing else.
    `observe` sees each tensor's bytes as they are written; `seal`, called after the last, gives bytes that replace the
    file's first ones (the same header with digests filled in).
    """
    target = Path(os.path.realpath(os.fsdecode(path)))
    if not overwrite and os.path.lexists(path):
        raise ExistsError("the file exists", path=path, remedy="Pass overwrite=True to replace it.")
    scratch = target.with_name(f"{target.name}.{os.getpid()}-{next(_COUNTER)}{SCRATCH_SUFFIX}")
    fd = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            os.ftruncate(fd, plan.nbytes)
            for part in plan.parts:
                view = draw(part)
                if observe is not None and part.tensor is not None:
                    observe(part.tensor, view)
                done = 0
                while done < view.nbytes:
                    done += os.pwrite(fd, view[done : done + (64 << 20)], part.offset + done)
                if progress is not None:
                    progress(view.nbytes)
            if seal is not None:
                os.pwrite(fd, seal(), 0)
            if durable:
                os.fsync(fd)
            if target.exists():
                os.fchmod(fd, target.stat().st_mode & 0o7777)
        finally:
            os.close(fd)
        if overwrite:
            os.replace(scratch, target)
        else:
            try:
                os.link(scratch, target)
            except FileExistsError:
                raise ExistsError("the file exists", path=path, remedy="Pass overwrite=True to replace it.") from None
            os.unlink(scratch)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return Path(os.fsdecode(path))
