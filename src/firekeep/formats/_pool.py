"""Files of large sets: opened when they are looked at, a few at a time, since a process may hold only so many open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from weakref import WeakSet

from firekeep.errors import FormatError
from firekeep.sources import FileSource, check_range

MOST_OPEN = 64
"""Shards held open at once. Systems begin at 256 descriptors for a process, and an open mapped file takes two."""
_FEWEST_MAPPED = 64


class Pool:
    """The files that are open just now, the one looked at last at the end; and the mappings that views keep alive."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._open: OrderedDict[PooledSource, FileSource] = OrderedDict()
        self._mapped: WeakSet[object] = WeakSet()
        self._most_mapped = _most_mapped()

    def file(self, source: PooledSource) -> FileSource:
        """Give a source's file, open; another may be closed for it."""
        found = self._open.get(source)
        if found is None:
            while len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            found = self._open[source] = source.reopen()
        self._open.move_to_end(source)
        return found

    def drop(self, source: PooledSource) -> None:
        """Close a source's file, if it is open."""
        found = self._open.pop(source, None)
        if found is not None:
            found.close()

    def view(self, source: PooledSource, offset: int, length: int) -> memoryview:
        """Map a window; read it instead once views keep as many mappings as the process can have: each holds a descriptor."""
        file = self.file(source)
        if len(self._mapped) >= self._most_mapped:
            return _read(file, offset, length, private=source.private)
        view = file.view(offset, length)
        if view.nbytes:
            self._mapped.add(view.obj)
        return view


class PooledSource:
    """A file on disk, opened anew whenever it is needed and was closed for others meanwhile.

    A file that was replaced or changed in between raises `FormatError`, naming it: views made before stay valid.
    """

    def __init__(self, path: str | os.PathLike[str], pool: Pool, *, private: bool) -> None:
        self.path: str | None = os.fspath(path)
        self.private = private
        self._name = os.fspath(path)
        self._pool = pool
        self._closed = False
        self._seen: tuple[int, ...] | None = None
        with pool.lock:
            self.size = pool.file(self).size

    def reopen(self) -> FileSource:
        """Open the file; for the pool."""
        if self._closed:
            raise ValueError("the file is closed: read tensors while it is open")
        file = FileSource(self._name, private=self.private)
        status = os.fstat(file.fileno() or -1)
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen is not None and seen != self._seen:
            file.close()
            raise FormatError(
                "the file was replaced or changed since the set was opened", path=self.path, remedy="Open it again."
            )
        self._seen = seen
        return file

    def view(self, offset: int, length: int) -> memoryview:
        """Give a window, without copying where there are descriptors enough."""
        check_range(offset, length, self.size)
        with self._pool.lock:
            return self._pool.view(self, offset, length)

    def fileno(self) -> int | None:
        """The descriptor may be closed any time: there is none to give."""
        return None

    def close(self) -> None:
        """Let go of the file for good. Views handed out stay valid."""
        self._closed = True
        with self._pool.lock:
            self._pool.drop(self)


def _read(file: FileSource, offset: int, length: int, *, private: bool) -> memoryview:
    data = bytearray(length)
    done = 0
    descriptor = file.fileno()
    while done < length and descriptor is not None:
        got = os.preadv(descriptor, [memoryview(data)[done:]], offset + done)
        if got == 0:
            raise FormatError(f"the file ends at byte {offset + done} now", path=file.path)
        done += got
    return memoryview(data) if private else memoryview(data).toreadonly()


def _most_mapped() -> int:
    """Say how many mappings may live: half of the descriptors that the process may have."""
    try:
        import resource
    except ImportError:  # Windows maps without descriptors
        return 1 << 30
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_FEWEST_MAPPED, soft // 2 if soft > 0 else 1 << 30)
