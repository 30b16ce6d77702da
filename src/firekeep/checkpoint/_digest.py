"""The digest of a file, made while it is written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from firekeep.blobs import CHUNK, Blob, MemoryBlob
from firekeep.digests import new_digest
from firekeep.disk import Part, WritePlan

if TYPE_CHECKING:
    import xxhash


class _Heard(Blob):
    """A blob whose bytes are digested as they are drawn, with the zeros before them."""

    __slots__ = ("_base", "_digest", "_gap")
    comes_late = True

    def __init__(self, base: Blob, digest: xxhash.xxh3_128, gap: int) -> None:
        self._base = base
        self._digest = digest
        self._gap = gap
        super().__init__(base.nbytes)

    def view(self) -> memoryview:
        view = self._base.view()
        self._digest.update(bytes(self._gap))
        self._digest.update(view)
        return view

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        self._digest.update(bytes(self._gap))
        for piece in self._base.chunks(size):
            self._digest.update(piece)
            yield piece

    def identity(self) -> Hashable | None:
        return self._base.identity()

    def expect(self) -> None:
        self._base.expect()


def digested(plan: WritePlan) -> tuple[WritePlan, xxhash.xxh3_128]:
    """Give a plan whose bytes are digested while they are written, once, in their order; the digest is whole when they are."""
    digest = new_digest()
    parts, position = [], 0
    for part in plan.parts:
        parts.append(Part(part.offset, _Heard(part.blob, digest, part.offset - position), part.tensor))
        position = part.offset + part.blob.nbytes
    if position < plan.nbytes:  # zeros after the last part
        parts.append(Part(plan.nbytes, _Heard(MemoryBlob(b""), digest, plan.nbytes - position)))
    return WritePlan(nbytes=plan.nbytes, parts=parts), digest


def digest_of(fd: int, *, heard: Callable[[int], None] | None = None) -> str:
    """Read an open file and give its digest; `heard` is told of the bytes of each piece."""
    digest = new_digest()
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        while piece := file.read(CHUNK):
            digest.update(piece)
            if heard is not None:
                heard(len(piece))
    return digest.hexdigest()
