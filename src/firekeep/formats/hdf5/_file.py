"""The bytes of an HDF5 file, by address: superblock, numbers of the file's own widths, heaps."""

from __future__ import annotations

from collections.abc import Iterator

from firekeep.blobs import WindowBlob
from firekeep.errors import HeaderError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.limits import Limits
from firekeep.sources import Source

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = tuple(512 << power for power in range(12))
_LONGEST_HEAP = 64 << 20


def find_signature(source: Source, start: int, size: int) -> int | None:
    """Find where the superblock is: at the start, or behind a user block of 512 bytes, 1024, and so on."""
    for place in (0, *_USER_BLOCKS):
        if place + len(SIGNATURE) > size:
            return None
        if bytes(source.view(start + place, len(SIGNATURE))) == SIGNATURE:
            return place
    return None


class Hdf5:
    """An HDF5 file that lies at `start` of a source. Addresses count from the file's own base."""

    def __init__(self, source: Source, start: int, size: int, limits: Limits) -> None:
        self.source = source
        self.limits = limits
        self.size = size
        self.address_bytes = self.length_bytes = 8
        found = find_signature(source, start, size)
        if found is None:
            raise HeaderError("there is no HDF5 file: its signature stands in no place where it may", offset=start)
        self._origin = start
        self._data = source.view(start, size)
        self._heaps: dict[int, dict[int, memoryview]] = {}
        self.version = self._byte(found + 8)
        place = self._read_widths(found)
        base = self._number(place, self.address_bytes)
        self.end = self._number(place + 2 * self.address_bytes, self.address_bytes)
        self.root = self._find_root(place)
        self._origin, self.size = start + base, size - base
        self._data = self._data[base:]
        self.trailing = size - self.end
        if self.trailing < 0:
            raise TruncatedError(
                f"the HDF5 file is cut short: by its superblock it has {self.end} bytes, and there are {size}",
                limit=self.end,
                actual=size,
            )

    def _read_widths(self, place: int) -> int:
        """Read how wide addresses and lengths are, and give the place of the addresses in the superblock."""
        if self.version > 3:
            raise UnsupportedError(f"the HDF5 superblock is of version {self.version}; 0 to 3 are known")
        widths = place + 13 if self.version < 2 else place + 9
        self.address_bytes, self.length_bytes = self._byte(widths), self._byte(widths + 1)
        if not {self.address_bytes, self.length_bytes} <= {2, 4, 8}:
            raise HeaderError(
                f"the HDF5 superblock says addresses of {self.address_bytes} bytes and lengths of {self.length_bytes}"
            )
        return place + (24, 28, 12, 12)[self.version]

    def _find_root(self, place: int) -> int:
        """Find the address of the root group's header: in its symbol table entry in old files, by itself in new ones."""
        return self._number(place + (5 if self.version < 2 else 3) * self.address_bytes, self.address_bytes)

    def _byte(self, place: int) -> int:
        return self.view(place, 1)[0]

    def _number(self, place: int, width: int) -> int:
        return int.from_bytes(self.view(place, width), "little")

    def view(self, address: int, length: int) -> memoryview:
        """Give the bytes at an address; raises `TruncatedError` outside the file."""
        if address + length > self.size:
            raise TruncatedError(
                f"an address of the HDF5 file, {address} to {address + length}, lies behind its end at {self.size}",
                offset=address,
                limit=address + length,
                actual=self.size,
            )
        return self._data[address : address + length]

    def window(self, address: int, length: int) -> WindowBlob:
        """Give a range of the file that is known to lie in it."""
        self.view(address, length)
        return WindowBlob(self.source, self._origin + address, length)

    def is_nowhere(self, address: int) -> bool:
        """Tell the address that stands for none."""
        return address == (1 << (8 * self.address_bytes)) - 1

    def expect(self, address: int, magic: bytes, length: int) -> memoryview:
        """Give the bytes of a structure; raises `MetadataError` where it does not begin as it has to."""
        view = self.view(address, length)
        if bytes(view[: len(magic)]) != magic:
            raise MetadataError(f"the HDF5 structure at {address} does not begin with {magic!r}", offset=address)
        return view

    def local_heap(self, address: int) -> bytes:
        """Give the texts of a group: names end with a zero."""
        widths = self.length_bytes
        head = Fields(self, self.expect(address, b"HEAP", 8 + 2 * widths + self.address_bytes))
        head.skip(8)
        length = head.length()
        head.length()
        if length > _LONGEST_HEAP:
            raise LimitError(f"the names of a group have {length} bytes", limit=_LONGEST_HEAP, actual=length)
        return bytes(self.view(head.address(), length))

    def global_heap(self, address: int, index: int) -> memoryview:
        """Give a value of variable length."""
        if address not in self._heaps:
            self._heaps[address] = dict(self._read_heap(address))
        found = self._heaps[address].get(index)
        if found is None:
            raise MetadataError(f"the heap at {address} has no value {index}", offset=address)
        return found

    def _read_heap(self, address: int) -> Iterator[tuple[int, memoryview]]:
        head = Fields(self, self.expect(address, b"GCOL", 8 + self.length_bytes))
        head.skip(8)
        size = head.length()
        if size > _LONGEST_HEAP:
            raise LimitError(f"a heap has {size} bytes", limit=_LONGEST_HEAP, actual=size)
        fields = Fields(self, self.view(address, size))
        fields.skip(8 + self.length_bytes)
        while fields.left >= 8 + self.length_bytes and (index := fields.number(2)):
            fields.skip(6)
            yield index, fields.padded(fields.length())


class Fields:
    """Reads the fields of one structure, one after the other; raises `MetadataError` at its end."""

    __slots__ = ("_at", "_data", "_file")

    def __init__(self, file: Hdf5, data: memoryview) -> None:
        self._file = file
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._at

    def take(self, length: int) -> memoryview:
        """Give the next bytes."""
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise MetadataError(f"a structure of HDF5 of {len(self._data)} bytes ends within a field at {start}")
        return self._data[start : self._at]

    def skip(self, length: int) -> None:
        """Pass over bytes."""
        self.take(length)

    def number(self, width: int) -> int:
        """Read an unsigned number."""
        return int.from_bytes(self.take(width), "little")

    def address(self) -> int:
        """Read an address."""
        return self.number(self._file.address_bytes)

    def length(self) -> int:
        """Read a length."""
        return self.number(self._file.length_bytes)

    def padded(self, length: int) -> memoryview:
        """Give the next bytes, and pass over what fills them up to a multiple of eight."""
        taken = self.take(length)
        self.skip(min(-length % 8, self.left))
        return taken
