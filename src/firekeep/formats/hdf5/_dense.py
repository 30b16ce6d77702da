"""Groups with many names in newer files: a tree of records leads to the links, which lie in a heap of blocks that double in size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firekeep.errors import MetadataError, UnsupportedError
from firekeep.formats.hdf5._file import Fields, Hdf5

_BY_NAME = 5
"""The kind of tree whose records are a hash of the name, and the link's place in the heap."""
_HASH = 4
_NODE_EXTRA = 10
_DEEPEST_TREE = 16
_MOST_ROWS = 64


def list_dense(file: Hdf5, heap_address: int, tree_address: int) -> Iterator[memoryview]:
    """Give the link messages of a group."""
    heap = _read_heap(file, heap_address)
    for record in _records(file, tree_address):
        yield heap.find(record[_HASH : _HASH + heap.id_bytes])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heap:
    """A heap: blocks in rows of `width`, those of the first two rows of `start` bytes, and of each row after them twice as large."""

    file: Hdf5
    id_bytes: int
    width: int
    start: int
    largest: int
    offset_bytes: int
    length_bytes: int
    root: int
    rows: int

    def find(self, identity: memoryview) -> memoryview:
        """Give an object by its place in the heap."""
        fields = Fields(self.file, identity)
        if fields.number(1) & 0xF0:
            raise UnsupportedError("a name of a group is kept outside the blocks of its heap, which is not read")
        offset, length = fields.number(self.offset_bytes), fields.number(self.length_bytes)
        address, within, size = self._block(offset)
        if within + length > size:
            raise MetadataError(f"a name of a group reaches over the end of its block at {address}", offset=address)
        return self.file.view(address + within, length)

    def _block(self, offset: int) -> tuple[int, int, int]:
        """Find the block that an offset lies in: its address, the place within it, and its size."""
        if self.rows == 0:
            return self.root, offset, self.start
        row, first, size = 0, 0, self.start
        while offset >= first + self.width * size:
            first, row = first + self.width * size, row + 1
            size = self.start << max(0, row - 1)
        if row >= self.rows or size > self.largest:
            raise UnsupportedError("the names of a group have a heap of several levels, which is not read")
        column, within = divmod(offset - first, size)
        entry = self.root + 5 + self.file.address_bytes + self.offset_bytes
        self.file.expect(self.root, b"FHIB", 4)
        place = entry + (row * self.width + column) * self.file.address_bytes
        return int.from_bytes(self.file.view(place, self.file.address_bytes), "little"), within, size


def _read_heap(file: Hdf5, address: int) -> _Heap:
    length = 26 + 12 * file.length_bytes + 3 * file.address_bytes
    fields = Fields(file, file.expect(address, b"FRHP", length))
    fields.skip(5)
    id_bytes, filtered = fields.number(2), fields.number(2)
    fields.skip(1)
    most = fields.number(4)
    fields.skip(10 * file.length_bytes + 2 * file.address_bytes)
    width, start, largest = fields.number(2), fields.length(), fields.length()
    bits, _, root, rows = fields.number(2), fields.number(2), fields.address(), fields.number(2)
    if filtered:
        raise UnsupportedError("the names of a group are packed with a filter, which is not read")
    if not (width > 0 and 0 < start <= largest and 0 < bits <= 64 and rows <= _MOST_ROWS):
        raise MetadataError(f"the heap at {address} has no sizes that fit one another", offset=address)
    return _Heap(
        file=file,
        id_bytes=id_bytes,
        width=width,
        start=start,
        largest=largest,
        offset_bytes=-(-bits // 8),
        length_bytes=_bytes_for(min(largest, most)),
        root=root,
        rows=rows,
    )


def _records(file: Hdf5, address: int) -> Iterator[memoryview]:
    fields = Fields(file, file.expect(address, b"BTHD", 18 + file.address_bytes + file.length_bytes))
    fields.skip(5)
    kind, node, record, depth = fields.number(1), fields.number(4), fields.number(2), fields.number(2)
    fields.skip(2)
    root, number = fields.address(), fields.number(2)
    if kind != _BY_NAME or record < _HASH or node < _NODE_EXTRA + record or depth > _DEEPEST_TREE:
        raise MetadataError(f"the tree at {address} is no group's", offset=address)
    tree = _Tree(file, node, record, set())
    yield from tree.walk(root, number, depth)


@dataclass(frozen=True, slots=True)
class _Tree:
    """A tree over the names of one group: the sizes of its nodes and records, and the nodes that were met."""

    file: Hdf5
    node: int
    record: int
    seen: set[int]

    def walk(self, address: int, number: int, depth: int) -> Iterator[memoryview]:
        """Give the records below a node. Those within inner nodes are records too."""
        if address in self.seen:
            raise MetadataError(f"the tree of a group goes round in a circle at {address}", offset=address)
        self.seen.add(address)
        fields = Fields(self.file, self.file.expect(address, b"BTIN" if depth else b"BTLF", self.node))
        fields.skip(6)
        yield from [fields.take(self.record) for _ in range(number)]
        if depth:
            counted, total = self._widths(depth)
            children = []
            for _ in range(number + 1):
                children.append((fields.address(), fields.number(counted)))
                fields.skip(total)
            for child, held in children:
                yield from self.walk(child, held, depth - 1)

    def _widths(self, depth: int) -> tuple[int, int]:
        """Say how wide the two counts beside a child's address are; the second is there from the second level on."""
        most = below = (self.node - _NODE_EXTRA) // self.record
        counted, total = _bytes_for(most), 0
        for _ in range(1, depth):
            pointer = self.file.address_bytes + counted + total
            most = (self.node - _NODE_EXTRA - pointer) // (self.record + pointer)
            below = (most + 1) * below + most
            total = _bytes_for(below)
        return counted, total


def _bytes_for(number: int) -> int:
    return max(1, -(-number.bit_length() // 8))
