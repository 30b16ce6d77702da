"""Every call that a save makes of the system, counted, and made to fail or to be the last."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.disk import Part, WritePlan, write_file
from firekeep.disk import _stream as stream
from firekeep.disk import _system as system

OF_OS = (
    *("open", "close", "pwrite", "fsync", "fstat", "stat", "lstat", "statvfs", "pathconf", "posix_fadvise"),
    *("fchmod", "fchown", "rename", "link", "unlink", "getcwd", "readlink"),
)
OF_SYSTEM = ("fallocate", "rename_exclusive")

OLD = b"old weights" * 1000


def plan() -> WritePlan:
    """A file of all kinds of parts, large enough that space is set aside and several batches go out."""
    blobs = [
        MemoryBlob(b"head"),
        DeferredBlob(700_000, lambda: b"a" * 700_000),
        MemoryBlob(b"b" * 50),
        DeferredBlob(60, lambda: b"c" * 60),
        MemoryBlob(b"d" * 500_000),
    ]
    parts, offset = [], 0
    for index, blob in enumerate(blobs):
        parts.append(Part(offset, blob, f"t{index}" if index else None))
        offset += blob.nbytes + 13
    return WritePlan(nbytes=offset, parts=parts)


def save(path: Path, *, overwrite: bool, durable: bool = True) -> None:
    """Save the plan in batches of 200,000 bytes, sealing the header."""
    with mock.patch.object(stream, "CHUNK", 200_000):
        write_file(path, plan(), overwrite=overwrite, durable=durable, seal=lambda: b"HEAD")


@contextmanager
def each_call(act: Callable[[int, str, Callable[[], Any]], Any]) -> Iterator[None]:
    """Have `act(number, name, call)` stand for each call inside the block; it makes the real one by `call()`."""
    count = iter(range(1 << 30))

    def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: act(next(count), name, lambda: real(*args, **kwargs))

    patches = [mock.patch.object(os, name, stand_in(name, getattr(os, name))) for name in OF_OS]
    patches += [mock.patch.object(system, name, stand_in(name, getattr(system, name))) for name in OF_SYSTEM]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def main(path: str, overwrite: str, last: str) -> None:
    """Save, and be killed before the call of this number; prints the calls when none is."""
    names = []

    def act(number: int, name: str, call: Callable[[], Any]) -> Any:
        if number == int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        names.append(name)
        return call()

    with each_call(act):
        save(Path(path), overwrite=overwrite == "overwrite")
    print(" ".join(names))


if __name__ == "__main__":
    main(*sys.argv[1:])
