"""Whole burnpack files, byte for byte: seven that Burn's own writer was seen to make, and the sizes of an eighth."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest

from firekeep.blobs import MemoryBlob
from firekeep.disk import to_bytes
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.formats import Contents, OpenOptions
from firekeep.formats.burnpack import open_container, plan
from firekeep.ids import ParamId
from firekeep.limits import DEFAULT_LIMITS
from firekeep.scalars import Scalar
from firekeep.sources import MemorySource


def entry(name: str, dtype: str, shape: tuple[int, ...], data: bytes, param_id: int | None = None) -> TensorEntry:
    identity = None if param_id is None else ParamId(param_id)
    return TensorEntry(name, BY_NAME[dtype], shape, MemoryBlob(data), identity)


@dataclass(frozen=True)
class Example:
    head: str
    """The header and the table."""
    data: dict[int, str]
    """Offset in the file -> bytes; everything else behind the table is zero."""
    nbytes: int
    entries: list[TensorEntry] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)

    def file(self) -> bytes:
        raw = bytearray(self.nbytes)
        head = bytes.fromhex(self.head)
        raw[: len(head)] = head
        for offset, text in self.data.items():
            piece = bytes.fromhex(text)
            raw[offset : offset + len(piece)] = piece
        return bytes(raw)


EXAMPLES = {
    "one tensor with an id": Example(
        "4e525542010040000000"
        "a16774656e736f7273a166776569676874a4656474797065634633326573686170658202026c"
        "646174615f6f66667365747382001068706172616d5f6964182a",
        {256: "0000803f000000400000404000008040"},
        272,
        entries=[entry("weight", "F32", (2, 2), struct.pack("<4f", 1, 2, 3, 4), 42)],
    ),
    "scalars only": Example(
        "4e52554201007d000000"
        "a26774656e736f7273a0677363616c617273a56e302e63757272656e745f69746572a16455496e74"
        "1bffffffffffffffff66312e68616c66a165466c6f6174f938006d312e70726576696f75735f6c72"
        "a165466c6f6174fb3f847ae147ae147b6a322e697465725f696478a163496e742064666c6167a164"
        "426f6f6cf5",
        {},
        256,
        scalars={
            "flag": Scalar("bool", True),
            "2.iter_idx": Scalar("int", -1),
            "1.previous_lr": Scalar("float", 0.01),
            "1.half": Scalar("float", 0.5),
            "0.current_iter": Scalar("uint", 2**64 - 1),
        },
    ),
    "order of writing, zero size, rank 0, metadata": Example(
        "4e5255420100be000000"
        "a26774656e736f7273a36161a46564747970656346333265736861706581006c646174615f6f66"
        "66736574738219010019010068706172616d5f6964076162a36564747970656346333265736861"
        "7065806c646174615f6f6666736574738200046163a46564747970656346333265736861706581"
        "016c646174615f6f6666736574738219010019010468706172616d5f696419012c686d65746164"
        "617461a266666f726d6174686275726e7061636b6870726f6475636572646275726e",
        {256: "0000003f", 512: "0000803f"},
        516,
        entries=[
            entry("b", "F32", (), struct.pack("<f", 0.5)),
            entry("a", "F32", (0,), b"", 7),
            entry("c", "F32", (1,), struct.pack("<f", 1.0), 300),
        ],
        metadata={"producer": "burn", "format": "burnpack"},
    ),
    "an optimizer record": Example(
        "4e5255420100db000000"
        "a36774656e736f7273a27434322e6d6f6d656e74756d2e6d6f6d656e745f31a465647479706563"
        "46333265736861706581026c646174615f6f66667365747382000868706172616d5f6964182a74"
        "34322e6d6f6d656e74756d2e6d6f6d656e745f32a4656474797065634633326573686170658102"
        "6c646174615f6f66667365747382190100190108"
        "68706172616d5f6964182a686d657461646174"
        "61a16234326766632e62696173677363616c617273a26934322e5f5f72616e6ba16455496e7401"
        "7034322e6d6f6d656e74756d2e74696d65a16455496e7401",
        {256: "d0cccc3dd0cc4c3e", 512: "0012833a0012833b"},
        520,
        entries=[
            entry("42.momentum.moment_1", "F32", (2,), bytes.fromhex("d0cccc3dd0cc4c3e"), 42),
            entry("42.momentum.moment_2", "F32", (2,), bytes.fromhex("0012833a0012833b"), 42),
        ],
        metadata={"42": "fc.bias"},
        scalars={"42.momentum.time": Scalar("uint", 1), "42.__rank": Scalar("uint", 1)},
    ),
    "an empty container": Example("4e52554201000a000000a16774656e736f7273a0", {}, 256),
    "a cosine scheduler after its first step": Example(
        "4e525542010029000000a26774656e736f7273a0677363616c617273a16e302e63757272656e745f69746572a16455496e7400",
        {},
        256,
        scalars={"0.current_iter": Scalar("uint", 0)},
    ),
    "a boolean tensor": Example(
        "4e525542010045000000a16774656e736f7273a1646d61736ba4656474797065a164426f6f6c"
        "664e617469766565736861706581036c646174615f6f66667365747382000368706172616d5f696409",
        {256: "010001"},
        259,
        entries=[entry("mask", "BOOL", (3,), b"\1\0\1", 9)],
    ),
}

cases = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


def write(example: Example) -> bytes:
    contents = Contents(entries=example.entries, metadata=example.metadata, scalars=example.scalars)
    return to_bytes(plan(contents, DEFAULT_LIMITS))


@cases
def test_the_file_is_written_to_the_byte(example: Example) -> None:
    assert write(example).hex() == example.file().hex()


@cases
def test_the_file_is_read_as_it_was_meant(example: Example) -> None:
    container = open_container(MemorySource(example.file()), OpenOptions())
    read = [(one.name, one.dtype, one.shape, one.param_id, bytes(one.read())) for one in container.entries.values()]
    assert read == [(one.name, one.dtype, one.shape, one.param_id, bytes(one.read())) for one in example.entries]
    assert dict(container.metadata) == example.metadata
    assert dict(container.scalars) == example.scalars
    assert container.notes == ()
    assert list(container.check()) == []


@cases
def test_the_file_survives_reading_and_writing(example: Example) -> None:
    container = open_container(MemorySource(example.file()), OpenOptions())
    contents = Contents(entries=container.entries.values(), metadata=container.metadata, scalars=container.scalars)
    assert to_bytes(plan(contents, DEFAULT_LIMITS)).hex() == example.file().hex()


TINY_NET = [
    ("fc.weight", (4, 3), "avq43klip2pc6", 14101554053607715927),
    ("fc.bias", (3,), "edntuk51pn2co", 14755144371902836595),
    ("head.weight", (3, 2), "22h48qbgpqs2o", 3222552515581354512),
]


def test_a_small_net_takes_792_bytes_of_which_210_are_the_table() -> None:
    entries = [
        entry(name, "F32", shape, struct.pack(f"<{(size := shape[0] * (*shape, 1)[1])}f", *range(size)), number)
        for name, shape, _, number in TINY_NET
    ]
    raw = to_bytes(plan(Contents(entries=entries), DEFAULT_LIMITS))
    assert len(raw) == 792
    container = open_container(MemorySource(raw), OpenOptions())
    assert dict(container.details) == {"version": 1, "metadata_bytes": 210, "data_offset": 256, "file_bytes": 792}
    assert list(container.entries) == ["fc.weight", "fc.bias", "head.weight"]
    places = [one.blob.window() for one in container.entries.values()]
    assert [place[1] for place in places if place is not None] == [256, 512, 768]
    assert [str(one.param_id) for one in container.entries.values()] == [text for _, _, text, _ in TINY_NET]


def test_the_ids_of_the_small_net_are_plain_integers_in_the_file() -> None:
    for _, _, text, number in TINY_NET:
        assert ParamId.parse(text) == number
        written = to_bytes(plan(Contents(entries=[entry("w", "F32", (0,), b"", number)]), DEFAULT_LIMITS))
        assert b"\x68param_id\x1b" + number.to_bytes(8, "big") in written
        assert text.encode() not in written
