"""The reader of Flax's MessagePack keeps the contract of the formats, with arrays whole and in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from contracts.format_contract import ReadContract
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.scalars import Scalar
from formats.flax.packed import array, array_of, pack

DTYPES = [
    *("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"),
    *("C64", "C128"),
]


class TestWhole(ReadContract):
    format: ClassVar[str] = "flax"
    dtypes: ClassVar[Sequence[DType]] = [BY_NAME[name] for name in DTYPES]
    reserved_names: ClassVar[frozenset[str]] = frozenset({"__msgpack_chunked_array__"})
    read_limits: ClassVar[Mapping[str, int]] = {
        "pickle_nodes": 10,
        "pickle_depth": 0,
        "text_bytes": 1,
        "tensor_bytes": 32,
    }

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return pack({entry.name: array_of(entry) for entry in entries})


class TestInPieces(TestWhole):
    reserved_names: ClassVar[frozenset[str]] = frozenset({"__msgpack_chunked_array__"})

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return pack({entry.name: in_pieces(entry) for entry in entries})

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        data = bytearray(self.make(self.three()))
        container = self.open(data)
        before = {name: bytes(entry.read()) for name, entry in container.entries.items()}
        place = data.find(before["b"][-8:])
        data[place : place + 8] = b"new data"
        assert bytes(container.entries["b"].read()) == before["b"][:-8] + b"new data"


def in_pieces(entry: TensorEntry) -> dict[str, object]:
    width = entry.dtype.itemsize
    data = bytes(entry.read())
    middle = len(data) // width // 2 * width
    dtype = entry.dtype.numpy.rpartition(".")[2]
    return {
        "__msgpack_chunked_array__": True,
        "shape": {str(axis): extent for axis, extent in enumerate(entry.shape)},
        "chunks": {
            str(index): array(dtype, (len(part) // width,), part)
            for index, part in enumerate((data[:middle], data[middle:]))
        },
    }
