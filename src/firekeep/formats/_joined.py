"""Bytes that lie in several places of a file, one after the other in a tensor."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from firekeep.blobs import CHUNK, Blob


class JoinedBlob(Blob):
    """Blobs one after the other."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Blob]) -> None:
        self._parts = tuple(parts)
        super().__init__(sum(part.nbytes for part in self._parts))

    def view(self) -> memoryview:
        """Copy the parts into a fresh buffer."""
        data, at = bytearray(self.nbytes), 0
        for part in self._parts:
            data[at : at + part.nbytes] = part.view()
            at += part.nbytes
        return memoryview(data).toreadonly()

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the parts' own pieces."""
        for part in self._parts:
            yield from part.chunks(size)

    def identity(self) -> Hashable | None:
        """Equal parts in equal order are one tensor."""
        return tuple(part.identity() for part in self._parts)
