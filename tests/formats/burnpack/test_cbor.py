"""Numbers and texts in the bytes Burn writes for them."""

from __future__ import annotations

import math
import struct

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.errors import MetadataError
from firekeep.formats.burnpack._cbor import encode, real
from firekeep.formats.burnpack._items import ItemReader


def bits(number: float) -> str:
    return struct.pack(">d", number).hex()


def number(pattern: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(pattern))[0]
    return value


def read_back(spelled: bytes) -> float:
    return ItemReader(spelled, max_depth=8).real()


FLOATS = {
    0.0: "f90000",
    1.0: "f93c00",
    0.5: "f93800",
    65504.0: "f97bff",
    65505.0: "fa477fe100",
    2.0**-24: "f90001",
    2.0**-25: "fa33000000",
    math.inf: "f97c00",
    -math.inf: "f9fc00",
    struct.unpack("<f", struct.pack("<f", 0.1))[0]: "fa3dcccccd",
    0.1: "fb3fb999999999999a",
    0.001: "fb3f50624dd2f1a9fc",
    0.01: "fb3f847ae147ae147b",
    1e300: "fb7e37e43c8800759c",
    5e-324: "fb0000000000000001",
}


@pytest.mark.parametrize(("value", "spelled"), FLOATS.items(), ids=map(repr, FLOATS))
def test_a_float_takes_the_fewest_bytes_that_keep_it(value: float, spelled: str) -> None:
    assert real(value).hex() == spelled
    assert read_back(bytes.fromhex(spelled)) == value


def test_a_negative_zero_keeps_its_sign() -> None:
    assert real(-0.0).hex() == "f98000"
    assert math.copysign(1, read_back(real(-0.0))) == -1


NANS = {
    "7ff8000000000000": "f97e00",
    "fff8000000000000": "f9fe00",
    "7ff8040000000000": "f97e01",
    "fffffc0000000000": "f9ffff",
    "7ff8020000000000": "fa7fc01000",
    "7ff8000020000000": "fa7fc00001",
    "ffffffffe0000000": "faffffffff",
    "7ff8000010000000": "fb7ff8000010000000",
    "7ff8000000000001": "fb7ff8000000000001",
    "7ff4000000000000": "fb7ff4000000000000",
    "7ff0000000000001": "fb7ff0000000000001",
    "fff7fffffffffffc": "fbfff7fffffffffffc",
}


@pytest.mark.parametrize(("pattern", "spelled"), NANS.items())
def test_a_nan_keeps_its_payload_and_a_signalling_one_its_width(pattern: str, spelled: str) -> None:
    assert real(number(pattern)).hex() == spelled
    assert bits(read_back(bytes.fromhex(spelled))) == pattern


@given(st.integers(0, (1 << 64) - 1))
def test_every_float_comes_back_bit_by_bit(pattern: int) -> None:
    value = number(f"{pattern:016x}")
    spelled = real(value)
    assert bits(read_back(spelled)) == f"{pattern:016x}"
    if not math.isnan(value):
        assert cbor2.loads(spelled) == value


@given(st.floats(width=32))
def test_single_precision_never_takes_more_than_five_bytes(value: float) -> None:
    assert len(real(value)) <= 5


INTEGERS = {
    0: "00", 23: "17", 24: "1818", 255: "18ff", 256: "190100", 65535: "19ffff", 65536: "1a00010000",
    (1 << 32) - 1: "1affffffff", 1 << 32: "1b0000000100000000", (1 << 64) - 1: "1bffffffffffffffff",
    -1: "20", -24: "37", -25: "3818", -256: "38ff", -257: "390100", -(1 << 63): "3b7fffffffffffffff",
}  # fmt: skip


@pytest.mark.parametrize(("value", "spelled"), INTEGERS.items())
def test_an_integer_takes_the_fewest_bytes(value: int, spelled: str) -> None:
    assert encode(value).hex() == spelled
    assert ItemReader(bytes.fromhex(spelled), max_depth=8).integer() == value


LEAVES = st.none() | st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.text(max_size=30)
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=30), inner))
SMALL_TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(TREES)
def test_everything_but_floats_is_spelled_as_cbor2_spells_it(tree: object) -> None:
    assert encode(tree) == cbor2.dumps(tree)


@settings(deadline=None)
@given(TREES, st.binary(max_size=3))
def test_skipping_ends_where_the_item_ends(tree: object, behind: bytes) -> None:
    spelled = cbor2.dumps(tree)
    items = ItemReader(spelled + behind, max_depth=1000)
    items.skip()
    assert items.pos == len(spelled)


@settings(deadline=None)
@given(SMALL_TREES)
def test_an_item_cut_short_is_refused(tree: object) -> None:
    spelled = cbor2.dumps(tree)
    for length in range(len(spelled)):
        with pytest.raises(MetadataError):
            ItemReader(spelled[:length], max_depth=1000).skip()
