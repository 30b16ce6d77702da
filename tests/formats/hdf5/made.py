"""HDF5 files as h5py writes them by default, byte by byte: superblock 0, groups with symbol tables, contiguous datasets."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry

NOWHERE = (1 << 64) - 1
FLOATS = {"F16": (2, 10, 5, 15), "F32": (4, 23, 8, 127), "F64": (8, 52, 11, 1023), "BF16": (2, 7, 8, 127)}


@dataclass
class Data:
    """A dataset: messages of its type and layout are made unless given."""

    dtype: str
    shape: Sequence[int]
    raw: bytes
    big: bool = False
    type: bytes | None = None
    layout: bytes | None = None
    more: Sequence[tuple[int, bytes]] = ()


@dataclass
class Group:
    members: Mapping[str | bytes, object] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)


class Out:
    """A file that grows; `place` is where the next structure goes."""

    def __init__(self) -> None:
        self.data = bytearray(96)

    def put(self, raw: bytes) -> int:
        self.data += bytes(-len(self.data) % 8)
        place = len(self.data)
        self.data += raw
        return place


def hdf5(root: Group) -> bytes:
    out = Out()
    address = group(out, root)
    out.data[:96] = (
        b"\x89HDF\r\n\x1a\n"
        + bytes([0, 0, 0, 0, 0, 8, 8, 0])
        + struct.pack("<HHI", 4, 16, 0)
        + struct.pack("<4Q", 0, NOWHERE, len(out.data), NOWHERE)
        + struct.pack("<QQII16x", 0, address, 0, 0)
    )
    return bytes(out.data)


def group(out: Out, made: Group) -> int:
    links = [
        (name if isinstance(name, bytes) else name.encode(), link(out, held)) for name, held in made.members.items()
    ]
    heap = bytearray(8)
    places = []
    for name, _ in links:
        places.append(len(heap))
        heap += name + b"\0"
    segment = out.put(bytes(heap) + bytes(-len(heap) % 8))
    names = out.put(b"HEAP" + bytes(4) + struct.pack("<3Q", len(heap), NOWHERE, segment))
    nodes = [
        out.put(
            b"SNOD\1\0"
            + struct.pack("<H", len(part))
            + b"".join(struct.pack("<QQII16x", place, address, 0, 0) for place, address in part)
        )
        for part in (
            [(places[index], links[index][1]) for index in range(first, min(first + 8, len(links)))]
            for first in range(0, len(links), 8)
        )
    ]
    tree = out.put(
        b"TREE"
        + struct.pack("<BBHQQ", 0, 0, len(nodes), NOWHERE, NOWHERE)
        + b"".join(struct.pack("<QQ", 0, node) for node in nodes)
        + bytes(8)
    )
    attributes = [(0x0C, attribute(name, value)) for name, value in made.attributes.items()]
    return header(out, [(0x11, struct.pack("<QQ", tree, names)), *attributes])


def link(out: Out, held: object) -> int:
    if isinstance(held, Group):
        return group(out, held)
    return held if isinstance(held, int) else dataset(out, held)


def dataset(out: Out, made: Data) -> int:
    place = out.put(made.raw) if made.raw else NOWHERE
    layout = made.layout or struct.pack("<BBQQ", 3, 1, place, len(made.raw))
    kind = made.type or datatype(made.dtype, big=made.big)
    return header(out, [(1, space(made.shape)), (3, kind), (8, layout), *made.more])


def header(out: Out, messages: Sequence[tuple[int, bytes]]) -> int:
    body = b"".join(
        struct.pack("<HHB3x", kind, len(data) + -len(data) % 8, 0) + data + bytes(-len(data) % 8)
        for kind, data in messages
    )
    return out.put(struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body)


def space(shape: Sequence[int]) -> bytes:
    return struct.pack(f"<BBB5x{len(shape)}Q", 1, len(shape), 0, *shape)


def datatype(name: str, *, big: bool = False) -> bytes:
    if name == "BOOL":
        return struct.pack("<BBBBI", 0x18, 2, 0, 0, 1) + datatype("I8") + b"FALSE\0\0\0TRUE\0\0\0\0" + b"\0\1"
    if name in FLOATS:
        size, mantissa, exponent, bias = FLOATS[name]
        bits = (size * 8 - 1) << 8 | 0x20 | int(big)
        head = struct.pack("<B", 0x11) + bits.to_bytes(3, "little") + struct.pack("<I", size)
        return head + struct.pack("<HHBBBBI", 0, size * 8, mantissa, exponent, 0, mantissa, bias)
    size = int(name[1:]) // 8
    return struct.pack("<BBBBI", 0x10, (8 if name[0] == "I" else 0) | int(big), 0, 0, size) + struct.pack(
        "<HH", 0, size * 8
    )


def attribute(name: str, value: str) -> bytes:
    raw, text = name.encode() + b"\0", value.encode()
    kind = struct.pack("<BBBBI", 0x13, 0, 0, 0, max(1, len(text)))
    shape = space(())
    pad = lambda data: data + bytes(-len(data) % 8)  # noqa: E731
    return (
        struct.pack("<BxHHH", 1, len(raw), len(kind), len(shape)) + pad(raw) + pad(kind) + pad(shape) + (text or b"\0")
    )


def data_of(entry: TensorEntry, *, big: bool = False) -> Data:
    raw = bytes(entry.read())
    if big and entry.dtype.itemsize > 1:
        width = entry.dtype.itemsize
        raw = b"".join(raw[start : start + width][::-1] for start in range(0, len(raw), width))
    return Data(entry.dtype.name, entry.shape, raw, big=big)
