"""Where bytes are: in memory, in a window of a file, or not drawn yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from firekeep.errors import EntryError
from firekeep.sources import Source, flat
from firekeep.strides import collapse, flat_view, gather, gather_pieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 8 << 20


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
