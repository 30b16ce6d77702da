"""Datasets in chunks: the tree that says where each one is, the filters that packed it, and how they are put together."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from firekeep.blobs import Blob
from firekeep.errors import DigestError, FormatError, LimitError, MetadataError
from firekeep.formats.hdf5._file import Fields, Hdf5
from firekeep.formats.hdf5._headers import Message
from firekeep.strides import flat_view

_DEFLATE, _SHUFFLE, _CHECKSUM = 1, 2, 3
_NAMES = {
    4: "szip",
    5: "nbit",
    6: "scale-offset",
    32000: "LZF",
    32001: "Blosc",
    32004: "LZ4",
    32008: "bitshuffle",
    32015: "Zstandard",
}
_DEEPEST_TREE = 16


class Step(NamedTuple):
    """A filter of the pipeline."""

    code: int
    width: int


class Chunk(NamedTuple):
    """A chunk: where it begins in the dataset, where it is in the file, and which filters were left out of it."""

    corner: tuple[int, ...]
    address: int
    stored: int
    skipped: int


def read_filters(file: Hdf5, message: Message) -> tuple[Step, ...] | str:
    """Read the pipeline of filters; a text names one that is not known here."""
    fields = Fields(file, message.data)
    version, number = fields.number(1), fields.number(1)
    if version not in (1, 2):
        return f"its filters are of version {version}, which is not read"
    if version == 1:
        fields.skip(6)
    steps = []
    for _ in range(number):
        code = fields.number(2)
        name = fields.number(2) if version == 1 or code >= 256 else 0
        flags, values = fields.number(2), fields.number(2)
        fields.skip(name if version == 2 else -(-name // 8) * 8)
        given = [fields.number(4) for _ in range(values)]
        if version == 1 and values % 2:
            fields.skip(4)
        if code not in (_DEFLATE, _SHUFFLE, _CHECKSUM):
            packer = _NAMES.get(code, f"filter {code}")
            return f"it is packed with {packer}, which is not read (flags {flags}): write it with h5py and compression='gzip', or none"
        steps.append(Step(code, given[0] if given else 0))
    return tuple(steps)


class Chunks:
    """The chunks of one dataset. `first` is the lowest address that data lie at."""

    def __init__(self, file: Hdf5, tree: int, extents: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.file = file
        self.tree = tree
        self.extents = extents
        self.shape = shape
        self.found: tuple[Chunk, ...] = ()
        self.first: int | None = None

    def read(self) -> int:
        """Read the tree, and give how many bytes the chunks have in the file. Chunks that lie outside or are there twice are refused."""
        if self.file.is_nowhere(self.tree):
            return 0
        chunks: dict[tuple[int, ...], Chunk] = {}
        for chunk in self._walk(self.tree, _DEEPEST_TREE, set()):
            if chunk.corner in chunks:
                raise MetadataError(f"the chunk at {list(chunk.corner)} is there twice")
            if any(at % step for at, step in zip(chunk.corner, self.extents, strict=True)):
                raise MetadataError(f"a chunk begins at {list(chunk.corner)}, within another")
            self.file.view(chunk.address, chunk.stored)
            chunks[chunk.corner] = chunk
            if len(chunks) > self.file.limits.archive_members:
                raise LimitError(
                    "the file has too many chunks", limit=self.file.limits.archive_members, actual=len(chunks)
                )
        self.found = tuple(chunks.values())
        self.first = min((chunk.address for chunk in self.found), default=None)
        return sum(chunk.stored for chunk in self.found)

    def _walk(self, address: int, depth: int, seen: set[int]) -> Iterator[Chunk]:
        if address in seen or depth == 0:
            raise MetadataError(f"the tree of a dataset goes round in a circle at {address}", offset=address)
        seen.add(address)
        head = self.file.expect(address, b"TREE", 8)
        kind, level, used = head[4], head[5], int.from_bytes(head[6:8], "little")
        if kind != 1:
            raise MetadataError(f"the tree at {address} is of kind {kind}, and no dataset's", offset=address)
        rank = len(self.extents)
        width = 8 + 8 * (rank + 1) + self.file.address_bytes
        fields = Fields(self.file, self.file.view(address + 8 + 2 * self.file.address_bytes, used * width))
        for _ in range(used):
            stored, skipped = fields.number(4), fields.number(4)
            corner = tuple(fields.number(8) for _ in range(rank))
            fields.skip(8)
            child = fields.address()
            if level:
                yield from self._walk(child, depth - 1, seen)
            else:
                yield Chunk(corner, child, stored, skipped)


class ChunkedBlob(Blob):
    """The elements of a dataset in chunks, put together row by row each time they are drawn."""

    __slots__ = ("_chunks", "_itemsize", "_pattern", "_steps")

    def __init__(self, chunks: Chunks, steps: tuple[Step, ...], itemsize: int, pattern: bytes) -> None:
        self._chunks = chunks
        self._steps = steps
        self._itemsize = itemsize
        self._pattern = pattern
        super().__init__(math.prod(chunks.shape) * itemsize)

    def view(self) -> memoryview:
        """Unpack all chunks into a fresh buffer; elements of chunks that are not there have the value the dataset is filled with."""
        import numpy as np

        if self.nbytes == 0:
            return memoryview(b"")
        shape, extents = self._chunks.shape, self._chunks.extents
        whole: Any = np.empty(shape, f"V{self._itemsize}")
        if len(self._chunks.found) < math.prod(-(-n // step) for n, step in zip(shape, extents, strict=True)):
            whole[...] = np.frombuffer(self._pattern, whole.dtype)[0]
        for chunk in self._chunks.found:
            if any(at >= extent for at, extent in zip(chunk.corner, shape, strict=True)):
                continue  # left over from before the dataset was made smaller
            part = np.frombuffer(self._unpack(chunk), whole.dtype).reshape(extents)
            place = tuple(slice(at, at + step) for at, step in zip(chunk.corner, extents, strict=True))
            target = whole[place]
            target[...] = part[tuple(slice(extent) for extent in target.shape)]
        return flat_view(whole).toreadonly()

    def identity(self) -> Hashable | None:
        """One dataset of one open file is one tensor."""
        return (id(self._chunks.file.source), self._chunks.tree, "chunks") if self._chunks.found else None

    def _unpack(self, chunk: Chunk) -> bytes | memoryview:
        """Undo the filters of one chunk, last one first."""
        size = math.prod(self._chunks.extents) * self._itemsize
        data: bytes | memoryview = self._chunks.file.view(chunk.address, chunk.stored)
        for index, step in reversed(list(enumerate(self._steps))):
            if not chunk.skipped >> index & 1:
                data = _undo(step, data, size, self._itemsize)
        if len(data) != size:
            raise FormatError(f"the chunk at {list(chunk.corner)} has {len(data)} bytes, {size} are needed")
        return data


def _undo(step: Step, data: bytes | memoryview, size: int, itemsize: int) -> bytes | memoryview:
    if step.code == _DEFLATE:
        return _inflate(data, size + 4)  # a checksum may stand behind
    if step.code == _SHUFFLE:
        return _unshuffle(data, step.width or itemsize)
    return _checked(data)


def _inflate(data: bytes | memoryview, most: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most)
    except zlib.error as error:
        raise FormatError(f"a chunk has damaged compressed data: {error}") from None
    if not stream.eof and (stream.unconsumed_tail or len(found) >= most):
        raise FormatError(f"a chunk inflates to more than the {most} bytes it may have")
    if not stream.eof:
        raise FormatError("the compressed data of a chunk are cut short")
    return found


def _unshuffle(data: bytes | memoryview, width: int) -> bytes | memoryview:
    """Put the bytes of each element together again, where all first ones, then all second ones were kept; a rest stays as it is."""
    import numpy as np

    number = len(data) // width if width else 0
    if number < 2 or width < 2:
        return data
    raw = np.frombuffer(data, np.uint8)
    body = raw[: number * width].reshape(width, number).T
    return np.concatenate((body.reshape(-1), raw[number * width :])).data


def _checked(data: bytes | memoryview) -> bytes | memoryview:
    """Compare a chunk with the checksum behind it."""
    if len(data) < 4:
        raise FormatError("a chunk has no room for its checksum")
    body, kept = data[:-4], int.from_bytes(data[-4:], "little")
    found = _fletcher32(body)
    if (
        found != kept and (found & 0xFF00FF) << 8 | (found >> 8) & 0xFF00FF != kept
    ):  # old writers had it in another byte order
        raise DigestError(f"a chunk is damaged: its checksum is {found:08x}, the file says {kept:08x}")
    return body


def _fletcher32(data: bytes | memoryview) -> int:
    """Compute HDF5's checksum: two sums of 16-bit words, of which the first byte is the high one; an odd byte is one."""
    import numpy as np

    if len(data) % 2:
        data = bytes(data) + b"\0"
    words = np.frombuffer(data, ">u2").astype(np.uint64)
    first = second = 0
    for start in range(0, words.size, 1 << 14):
        piece = words[start : start + (1 << 14)]
        second += int((np.cumsum(piece)).sum()) + first * piece.size
        first += int(piece.sum())
    return (_fold(second) << 16) | _fold(first)


def _fold(total: int) -> int:
    """Reduce a sum modulo 65,535, where only a sum of nothing is 0."""
    return 0 if total == 0 else (total - 1) % 0xFFFF + 1
