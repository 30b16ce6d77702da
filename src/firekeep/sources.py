"""Files held open, or bytes in memory as one: random access to what is there."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from firekeep.errors import EntryError, FirekeepError, TruncatedError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Source(Protocol):
    """Random access to the bytes of one file, held open."""

    size: int
    path: str | None

    def view(self, offset: int, length: int) -> memoryview:
        """Give a window without copying; raises `TruncatedError` outside the file."""
        ...

    def fileno(self) -> int | None:
        """Give the open file's descriptor, or None when the bytes are in memory."""
        ...

    def close(self) -> None:
        """Let go of the file. Views handed out stay valid."""
        ...


class MemorySource:
    """Bytes in memory, as a file."""

    def __init__(self, data: bytes | bytearray | memoryview, *, path: str | None = None) -> None:
        self._view = flat(data).toreadonly()
        self.size = self._view.nbytes
        self.path = path

    def view(self, offset: int, length: int) -> memoryview:
        """Give a window of the buffer."""
        check_range(offset, length, self.size)
        return self._view[offset : offset + length]

    def fileno(self) -> int | None:
        """There is no file."""
        return None

    def close(self) -> None:
        """Nothing to let go of."""


class FileSource:
    """A file on disk, opened once and mapped when first looked at.

    The mapping keeps the file's bytes as they were opened: the name may be replaced or unlinked meanwhile. With `private=True`
    views are writable and copy-on-write: what is written to them never reaches the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, private: bool = False) -> None:
        self.path: str | None = os.fspath(path)
        self._private = private
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer
        self._fd: int | None = os.open(self.path, flags)
        self._map: memoryview | None = None
        try:
            status = os.fstat(self._fd)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
            if not stat.S_ISREG(status.st_mode):
                message = "a pipe or a device, of which only files can be read here: write its bytes to a file first"
                raise OSError(errno.EINVAL, message, self.path)
        except OSError:
            self.close()
            raise
        self.size = status.st_size

    def view(self, offset: int, length: int) -> memoryview:
        """Give a window of the mapping; a file that has shrunk since it was opened raises `TruncatedError`."""
        check_range(offset, length, self.size)
        if self._fd is not None and (now := os.fstat(self._fd).st_size) < offset + length:
            raise TruncatedError(
                f"the file had {self.size} bytes when it was opened and has {now} now",
                limit=self.size,
                actual=now,
            )
        if self._map is None:
            self._map = self._open_map()
        return self._map[offset : offset + length]

    def _open_map(self) -> memoryview:
        if self._fd is None:
            raise ValueError("the file is closed: read tensors while it is open")
        if self.size == 0:
            return memoryview(b"")
        try:
            if self._private:
                flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
                return memoryview(mmap.mmap(self._fd, self.size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE))
            return memoryview(mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ))
        except (OSError, ValueError):
            # Some network and FUSE file systems cannot map: read instead.
            return self._read_all(self._fd)

    def _read_all(self, fd: int) -> memoryview:
        data = bytearray(self.size)
        with open(fd, "rb", closefd=False) as file:
            file.seek(0)
            got = file.readinto(data)
        if got != self.size:
            raise TruncatedError(
                f"the file had {self.size} bytes when it was opened and {got} could be read",
                limit=self.size,
                actual=got,
            )
        return memoryview(data) if self._private else memoryview(data).toreadonly()

    def fileno(self) -> int | None:
        """Give the descriptor, or None once closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor and drop the mapping; it lives on while views of it do."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._map = None

    def __del__(self) -> None:
        """Let go of the descriptor of a file that nobody closed: `firekeep.open(path)[name]` in a loop must not run out of them."""
        if getattr(self, "_fd", None) is not None:
            with suppress(OSError):
                self.close()


@contextmanager
def closed_on_failure(source: Source) -> Iterator[None]:
    """Let go of a file where what is read of it fails; errors of ours get its path."""
    try:
        yield
    except FirekeepError as error:
        source.close()
        raise error.at(path=source.path)  # noqa: B904 - the same error, with its place
    except BaseException:
        source.close()
        raise


def check_range(offset: int, length: int, size: int) -> None:
    """Refuse a window that does not lie inside a file of `size` bytes."""
    if offset < 0 or length < 0 or offset + length > size:
        raise TruncatedError(
            f"bytes {offset} to {offset + length} lie outside the file of {size} bytes",
            offset=offset,
            limit=offset + length,
            actual=size,
        )


def remaining(views: list[memoryview], done: int) -> list[memoryview]:
    """Give what is left of buffers that are read or written one after the other, after `done` bytes."""
    for index, view in enumerate(views):
        if done < view.nbytes:
            return [view[done:], *views[index + 1 :]]
        done -= view.nbytes
    return []


def flat(data: object) -> memoryview:
    """See a buffer as bytes; raises `EntryError` for what is no buffer or does not lie in one piece."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise EntryError(f"bytes were expected, {type(data).__name__} came") from None
    if view.nbytes == 0:
        return memoryview(b"")  # a view with a zero among its extents cannot be cast
    if not view.c_contiguous:
        raise EntryError("the bytes do not lie in one piece: they are those of a strided view")
    return view.cast("B")
