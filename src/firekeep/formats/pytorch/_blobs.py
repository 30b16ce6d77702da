"""Blobs that only PyTorch files need: parts of archive members, bools that are not 0 or 1, lazily conjugated views."""

from __future__ import annotations

from collections.abc import Hashable

from firekeep.blobs import Blob, StridedBlob, WindowBlob
from firekeep.formats._zip import InflatedBlob, ZipDirectory, ZipMember
from firekeep.sources import Source


class MemberBlob(Blob):
    """A range of a stored member of a zip archive. Where the member lies is looked up when the range is first wanted."""

    __slots__ = ("_directory", "_member", "_source", "_start")

    def __init__(self, source: Source, directory: ZipDirectory, member: ZipMember, start: int, nbytes: int) -> None:
        self._source = source
        self._directory = directory
        self._member = member
        self._start = start
        super().__init__(nbytes)

    def part(self, start: int, nbytes: int) -> MemberBlob:
        """Give a range of the range."""
        return MemberBlob(self._source, self._directory, self._member, self._start + start, nbytes)

    def view(self) -> memoryview:
        """Give the window of the file without copying; raises `FormatError` where the archive contradicts itself."""
        return self._source.view(self._directory.data_offset(self._member) + self._start, self.nbytes)

    def identity(self) -> Hashable | None:
        """Equal ranges of one member of one open file are one tensor."""
        return (id(self._source), self._member.header_offset, self._start, self.nbytes)

    def window(self) -> tuple[Source, int] | None:
        """Give the file and the offset."""
        return self._source, self._directory.data_offset(self._member) + self._start

    def attest(self) -> bool:
        """Compare the whole member with its checksum."""
        return self._directory.attest(self._member)


def part_of(blob: Blob, start: int, nbytes: int) -> Blob | None:
    """Give a range of a blob that is a window of a file; None for other blobs."""
    if type(blob) is MemberBlob:
        return blob.part(start, nbytes)
    if type(blob) is WindowBlob:
        return WindowBlob(blob.source, blob.offset + start, nbytes)
    return None


def attest(blob: Blob) -> bool:
    """Compare the member of an archive that a tensor is made of with its checksum; False for bytes from elsewhere."""
    while isinstance(blob, StridedBlob | BoolBlob | ResolvedBlob):
        blob = blob.base
    return blob.attest() if isinstance(blob, MemberBlob) else isinstance(blob, InflatedBlob) and blob.is_checked


class BoolBlob(Blob):
    """Bools: bytes other than 0 and 1 are given as 1, since an array of such bools computes nonsense."""

    __slots__ = ("base",)

    def __init__(self, base: Blob) -> None:
        self.base = base
        super().__init__(base.nbytes)

    def view(self) -> memoryview:
        """Give the window itself where all bytes are 0 or 1, else a mended copy."""
        import numpy as np

        view = self.base.view()
        raw = np.frombuffer(view, np.uint8)
        return view if raw.size == 0 or raw.max() <= 1 else (raw != 0).view(np.uint8).data

    def identity(self) -> Hashable | None:
        """Say where the bytes are."""
        return self.base.identity()


class ResolvedBlob(Blob):
    """A view that PyTorch saved with its conjugation or negation still to be done."""

    __slots__ = ("_conjugate", "_negate", "_numpy", "base")

    def __init__(self, base: Blob, *, numpy: str, conjugate: bool, negate: bool) -> None:
        self.base = base
        self._numpy = numpy
        self._conjugate = conjugate
        self._negate = negate
        super().__init__(base.nbytes)

    def view(self) -> memoryview:
        """Compute the values into a fresh buffer."""
        import numpy as np

        array = np.frombuffer(self.base.view(), np.dtype(self._numpy))
        if self._conjugate:
            array = np.conj(array)
        if self._negate:
            array = np.negative(array)
        return np.ascontiguousarray(array).view(np.uint8).data

    def identity(self) -> Hashable | None:
        """Say where the bytes are and what is done to them."""
        below = self.base.identity()
        return None if below is None else (below, self._conjugate, self._negate)
