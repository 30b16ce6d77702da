"""Tables made to take memory or time: refused before they do."""

from __future__ import annotations

import struct

import pytest

from firekeep.errors import LimitError, MetadataError
from firekeep.formats.burnpack._decode import guard_memory
from firekeep.limits import DEFAULT_LIMITS
from formats.burnpack.raw import Raw, cbor, descriptor, open_raw, open_table, raw_file


def hostile(unit: bytes, count: int) -> Raw:
    return Raw(b"\xa2\x61x\x9a" + struct.pack(">I", count) + unit * count + cbor("tensors") + b"\xa0")


@pytest.mark.parametrize("unit", [b"\x80", b"\xa0", b"\x81\x80", b"\x81\x81\x81\x81\x80", b"\xa1\x60\xa0"])
def test_a_table_that_would_swell_in_memory_is_refused(unit: bytes) -> None:
    limit = DEFAULT_LIMITS.burnpack_decoded_bytes
    with pytest.raises(LimitError, match=f"more than {limit} bytes of memory") as caught:
        open_table(hostile(unit, 20_000_000 // len(unit)))
    assert caught.value.limit == limit


def test_many_ordinary_descriptors_are_in_proportion() -> None:
    count = 60_000
    dtypes = ["F32", "Flex32", {"Bool": "Native"}, {"Bool": "U32"}]
    tensors = {
        f"model.layers.{index:06}.weight": descriptor(0, 0, dtype=dtypes[index % 4], shape=[0, 4], param_id=index << 40)
        for index in range(count)
    }
    table = cbor({"tensors": tensors})
    assert len(table) > 5_000_000
    guard_memory(table, DEFAULT_LIMITS)
    assert len(open_raw(raw_file(Raw(table))).entries) == count


def test_what_only_looks_like_descriptors_is_counted_in_full() -> None:
    # The text of the dtype is longer than it looks, so that what follows is not what it looks like.
    unit = b"\xa1\x65dtype\x63F32" + b"\xa3\x65dtype\x78\x14F32" + b"." * 17 + b"\x60\x80\x61a" + b"\x81" * 40 + b"\x80"
    with pytest.raises(LimitError, match="bytes of memory"):
        open_table(hostile(unit, 5_000_000 // len(unit)))


@pytest.mark.parametrize(
    "table",
    [
        b"\xa1\x67tensors\xba\xff\xff\xff\xff",
        b"\xa1\x67tensors\xa1\x7b" + b"\xff" * 8,
        b"\xa1\x67tensors\xa1\x61w\xa1\x65shape\x9b" + b"\xff" * 8,
        b"\xa1\x67tensors\xa1\x61w\xa1\x65shape\x5b" + b"\x7f" * 8,
        b"\x9f" * 100_000,
        b"\xbf\x61x" + b"\x81" * 100_000,
        b"\xc1" * 100_000,
        b"\xbf\x61x" + b"\xc1" * 100_000,
        b"\xbf\x7f" + b"\x60" * 100_000,
    ],
)
def test_promises_and_depths_are_refused(table: bytes) -> None:
    with pytest.raises((MetadataError, LimitError)):
        open_table(Raw(table))


def test_an_odd_table_of_too_many_items_is_refused() -> None:
    table = Raw(b"\xbf\x61x\x9f" + b"\x00" * 400_000)
    with pytest.raises(LimitError, match="more than 300000 items beside its tensors"):
        open_table(table)
