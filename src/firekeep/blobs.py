"""Where bytes are: in memory, in a window of a file, or not drawn yet."""

from __future__ import annotations

import errno
import math
import mmap
import os
import stat
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from firekeep.errors import EntryError, TruncatedError
from firekeep.strides import collapse, flat_view, gather, gather_pieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 8 << 20
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


class Blob:
    """Bytes of a known length, drawn when asked for."""

    __slots__ = ("nbytes",)
    comes_late: ClassVar[bool] = False
    """Whether `expect` may do anything."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """Give all bytes as one flat buffer."""
        raise NotImplementedError

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the bytes in pieces of at most `size`."""
        whole = self.view()
        for start in range(0, whole.nbytes, size):
            yield whole[start : start + size]

    def identity(self) -> Hashable | None:
        """Say where the bytes are, so that two names of one tensor compare equal; None when nobody else has them."""
        return None

    def window(self) -> tuple[Source, int] | None:
        """Give the file and offset where the bytes lie as they are, or None."""
        return None

    def memory(self) -> tuple[range, ...] | None:
        """Give the addresses that the bytes are drawn from, none where they lie in a file; None where that is not known."""
        return None if self.window() is None else ()

    def expect(self) -> None:
        """Have the bytes begin to come, where that takes a while: they will be drawn next."""

    def lasting(self) -> memoryview | None:
        """Give the bytes where they are, if no program ever changes them there; None where only a copy is safe."""
        return None


AHEAD = 256 << 20
"""Bytes that may have come before they are drawn."""


def expecting(blobs: Sequence[Blob]) -> Iterator[Blob]:
    """Give blobs in their order, and tell those after each, up to `AHEAD` bytes of them, that they will be drawn next."""
    told = ahead = 0 if any(blob.comes_late for blob in blobs) else len(blobs)
    for number, blob in enumerate(blobs):
        if told > number:
            ahead -= blob.nbytes
        else:
            told, ahead = number + 1, 0  # too large to be told before its turn
        while told < len(blobs) and ahead + blobs[told].nbytes <= AHEAD:
            blobs[told].expect()
            ahead += blobs[told].nbytes
            told += 1
        yield blob


class MemoryBlob(Blob):
    """Bytes in memory. `identity` is equal for two names of one tensor."""

    __slots__ = ("_identity", "_view")

    def __init__(self, data: bytes | bytearray | memoryview, *, identity: Hashable | None = None) -> None:
        self._view = flat(data)
        self._identity = identity
        super().__init__(self._view.nbytes)

    def view(self) -> memoryview:
        """Give the buffer itself."""
        return self._view

    def identity(self) -> Hashable | None:
        """Give the identity the maker knew, if any."""
        return self._identity


class WindowBlob(Blob):
    """A range of an open file."""

    __slots__ = ("offset", "source")

    def __init__(self, source: Source, offset: int, nbytes: int) -> None:
        self.source = source
        self.offset = offset
        self.nbytes = nbytes  # said here, not by way of Blob: tens of thousands are made at once

    def view(self) -> memoryview:
        """Give the window without copying."""
        return self.source.view(self.offset, self.nbytes)

    def identity(self) -> Hashable | None:
        """Equal ranges of one open file are one tensor."""
        return (id(self.source), self.offset, self.nbytes)

    def window(self) -> tuple[Source, int] | None:
        """Give the file and the offset."""
        return self.source, self.offset


class DeferredBlob(Blob):
    """Bytes that a function makes when asked, of a length declared beforehand.

    Nothing is kept: each `view` calls the function once more.
    """

    __slots__ = ("_identity", "_memory", "_provider")

    def __init__(
        self,
        nbytes: int,
        provider: Callable[[], bytes | bytearray | memoryview],
        *,
        identity: Hashable | None = None,
        memory: tuple[range, ...] | None = None,
    ) -> None:
        self._provider = provider
        self._memory = memory
        self._identity = identity
        super().__init__(nbytes)

    def view(self) -> memoryview:
        """Call the provider; raises `EntryError` when it gives another length than declared."""
        view = flat(self._provider())
        if view.nbytes != self.nbytes:
            raise EntryError(
                f"{self.nbytes} bytes were declared, {view.nbytes} came",
                limit=self.nbytes,
                actual=view.nbytes,
            )
        return view

    def memory(self) -> tuple[range, ...] | None:
        """Give the memory the maker knew, if any."""
        return self._memory

    def identity(self) -> Hashable | None:
        """Give the identity the maker knew, if any."""
        return self._identity


class UnsharedBlob(Blob):
    """The bytes of another blob, owned by nobody else: it has no identity."""

    __slots__ = ("_base",)
    comes_late = True

    def __init__(self, base: Blob) -> None:
        self._base = base
        super().__init__(base.nbytes)

    def view(self) -> memoryview:
        """Give the other blob's bytes."""
        return self._base.view()

    def memory(self) -> tuple[range, ...] | None:
        """Give the other blob's memory."""
        return self._base.memory()

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the other blob's pieces."""
        return self._base.chunks(size)

    def window(self) -> tuple[Source, int] | None:
        """Give the other blob's window."""
        return self._base.window()

    def expect(self) -> None:
        """Have the other blob's bytes begin to come."""
        self._base.expect()


class StridedBlob(Blob):
    """A tensor view over a storage: gathered into row-major, little-endian order when drawn.

    `offset` is in bytes, `strides` in elements of `itemsize` bytes, negative along axes that run backwards. `swap` is the
    width of the units whose bytes are reversed (big-endian files; for complex numbers half the item), 0 for none. The caller
    has checked that the view lies inside the storage `base`.
    """

    __slots__ = ("base", "itemsize", "offset", "shape", "strides", "swap")

    def __init__(
        self,
        base: Blob,
        *,
        offset: int,
        itemsize: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        swap: int = 0,
    ) -> None:
        self.base = base
        self.offset = offset
        self.itemsize = itemsize
        self.shape = shape
        self.strides = strides
        self.swap = swap
        super().__init__(math.prod(shape) * itemsize)

    def view(self) -> memoryview:
        """Gather the elements into a fresh buffer; where they lie in order, give the part of the storage itself."""
        laid = self._lay_out()
        return laid if isinstance(laid, memoryview) else flat_view(gather(laid, self._little))

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Gather the elements in pieces of at most `size`, along the first axes: the whole is never in memory."""
        laid = self._lay_out()
        if isinstance(laid, memoryview):
            for start in range(0, laid.nbytes, size):
                yield laid[start : start + size]
            return
        yield from map(
            flat_view, gather_pieces(laid, size, self._little)
        )  # which holds no piece while the next is made

    @property
    def _little(self) -> np.dtype[Any] | None:
        import numpy as np

        return np.dtype(f"<u{self.swap}") if self.swap > 1 else None

    def _lay_out(self) -> memoryview | NDArray[Any]:
        """Give the elements where they are: as bytes if they lie in order, else as an array of units."""
        if self.nbytes == 0:
            return memoryview(b"")
        base = self.base.view()
        shape, strides = collapse(self.shape, self.strides)
        ahead = sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if step > 0)
        end = self.offset + (ahead + 1) * self.itemsize
        if end > base.nbytes:
            raise EntryError(
                f"the tensor reaches to byte {end} of a storage of {base.nbytes} bytes", limit=base.nbytes, actual=end
            )
        if self.swap < 2 and strides in ((), (1,)):
            return base[self.offset : end]
        import numpy as np

        width = self.swap if self.swap > 1 else self.itemsize
        units = self.itemsize // width
        return np.ndarray(
            shape if units == 1 else (*shape, units),
            dtype=f">u{width}" if self.swap > 1 else f"V{width}",
            buffer=base,
            offset=self.offset,
            strides=[step * self.itemsize for step in strides] + ([] if units == 1 else [width]),
        )

    def memory(self) -> tuple[range, ...] | None:
        """Give the memory of the storage."""
        return self.base.memory()

    def identity(self) -> Hashable | None:
        """Equal views of one storage are one tensor."""
        below = self.base.identity()
        return None if below is None else (below, self.offset, self.shape, self.strides)
