"""Header, length, placement and what lies between the tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firekeep.arrays import as_array
from firekeep.dtypes import QuantScheme, qfloat
from firekeep.entry import find_ties
from firekeep.errors import HeaderError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.formats import Finding, OpenOptions
from firekeep.formats.burnpack import open_container
from firekeep.limits import DEFAULT_LIMITS
from firekeep.sources import FileSource, MemorySource, Source
from formats.burnpack.raw import descriptor, open_descriptor, open_raw, open_table, raw_file

Opener = Callable[[bytes], Source]


@pytest.fixture(params=["memory", "file"])
def source_of(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    def write(data: bytes) -> Source:
        path = tmp_path / "x.bpk"
        path.write_bytes(data)
        return FileSource(path)

    return MemorySource if request.param == "memory" else write


def two(**second: object) -> dict[str, object]:
    """A table of "a" at 0 and "b" at 256, eight bytes each."""
    return {"tensors": {"a": descriptor(0, 8), "b": descriptor(256, 264, **second)}}


DATA = bytes(range(1, 9)) + bytes(248) + bytes(range(11, 19))


# Header


@pytest.mark.parametrize("length", range(10))
def test_a_file_shorter_than_its_header_is_truncated(source_of: Opener, length: int) -> None:
    with pytest.raises(TruncatedError, match=rf"header needs 10 bytes, it has {length}") as caught:
        open_container(source_of(raw_file(two(), DATA)[:length]), OpenOptions())
    assert (caught.value.limit, caught.value.actual) == (10, length)


def test_a_table_cut_short_is_truncated(source_of: Opener) -> None:
    raw = raw_file(two(), DATA)
    with pytest.raises(TruncatedError, match="its table needs 98 bytes, it has 50") as caught:
        open_container(source_of(raw[:50]), OpenOptions())
    assert (caught.value.limit, caught.value.actual) == (98, 50)


def test_data_cut_short_is_truncated_with_both_sizes(source_of: Opener) -> None:
    raw = raw_file(two(), DATA)
    assert len(raw) == 520
    for length in (256, 300, 400, 511, 512, 519):
        with pytest.raises(TruncatedError, match=f"needs 520 bytes, it has {length}") as caught:
            open_container(source_of(raw[:length]), OpenOptions())
        assert (caught.value.limit, caught.value.actual) == (520, length)


def test_a_file_without_tensors_still_reaches_to_its_data() -> None:
    raw = raw_file({"tensors": {}})
    assert len(open_raw(raw).entries) == 0
    with pytest.raises(TruncatedError, match="needs 256 bytes, it has 255"):
        open_raw(raw[:255])


def test_another_magic_is_another_format() -> None:
    with pytest.raises(HeaderError, match="begins with b'NRUB', this one with b'BURN'"):
        open_raw(b"BURN" + raw_file(two(), DATA)[4:])


@pytest.mark.parametrize("version", [2, 256, 65535])
def test_a_later_version_is_refused(version: int) -> None:
    with pytest.raises(HeaderError, match=f"burnpack version {version}; version 1 is known"):
        open_raw(raw_file(two(), DATA, version=version))


def test_version_0_is_read_as_burn_reads_it_and_reported() -> None:
    container = open_raw(raw_file(two(), DATA, version=0))
    assert container.notes == ("the file says version 0; it is read as version 1, as Burn does",)
    assert container.details["version"] == 0
    assert bytes(container.entries["b"].read()) == bytes(range(11, 19))


def test_details_say_where_things_are() -> None:
    assert dict(open_raw(raw_file(two(), DATA)).details) == {
        "version": 1,
        "metadata_bytes": 88,
        "data_offset": 256,
        "file_bytes": 520,
    }


# Limits


def test_a_table_beyond_the_limit_is_refused_before_it_is_read() -> None:
    raw = struct.pack("<4sHI", b"NRUB", 1, 104_857_601)
    with pytest.raises(LimitError, match="the table has 104857601 bytes: the limit is 104857600") as caught:
        open_raw(raw)
    assert (caught.value.limit, caught.value.actual) == (104_857_600, 104_857_601)


def test_a_file_beyond_the_limit_is_refused(source_of: Opener) -> None:
    limits = replace(DEFAULT_LIMITS, burnpack_file_bytes=519)
    with pytest.raises(LimitError, match="the file has 520 bytes: the limit is 519"):
        open_container(source_of(raw_file(two(), DATA)), OpenOptions(limits=limits))


def test_a_tensor_beyond_the_limit_is_refused_by_name() -> None:
    ten = 10 << 30
    tensors = {"a": descriptor(), "big": descriptor(256, 256 + ten + 4, shape=[(ten >> 2) + 1])}
    with pytest.raises(LimitError, match=f"{ten + 4} bytes: the limit is {ten}") as caught:
        open_table({"tensors": tensors})
    assert caught.value.tensor == "big"


def test_more_tensors_than_the_limit_are_refused() -> None:
    limits = replace(DEFAULT_LIMITS, burnpack_tensors=1)
    with pytest.raises(LimitError, match="2 tensors: the limit is 1"):
        open_raw(raw_file(two(), DATA), limits)
    odd = {"extra": 0, **two()}
    with pytest.raises(LimitError, match="more than 1 tensors"):
        open_raw(raw_file(odd, DATA), limits)


# Placement


def test_entries_come_in_the_order_of_their_data_and_empty_ones_keep_their_place() -> None:
    empty = {"dtype": "F32", "shape": [0]}
    tensors = {
        "a": {**empty, "data_offsets": [256, 256]},
        "b": descriptor(512, 520),
        "c": descriptor(256, 264),
        "d": {**empty, "data_offsets": [0, 0]},
        "e": descriptor(0, 8),
        "z": {**empty, "data_offsets": [768, 768]},
    }
    container = open_table({"tensors": tensors}, bytes(768))
    assert list(container.entries) == ["d", "e", "a", "c", "b", "z"]


def test_two_names_for_the_same_bytes_are_one_tensor() -> None:
    container = open_table({"tensors": {"a": descriptor(), "b": descriptor(), "c": descriptor(256, 264)}}, DATA)
    assert find_ties(list(container.entries.values())) == {"b": "a"}
    assert bytes(container.entries["a"].read()) == bytes(container.entries["b"].read()) == DATA[:8]


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 8), (4, 12)), ((0, 8), (0, 4)), ((0, 16), (4, 8)), ((256, 264), (260, 268)), ((0, 8), (7, 8))],
)
def test_tensors_that_overlap_are_refused_naming_both(first: tuple[int, int], second: tuple[int, int]) -> None:
    tensors = {
        name: descriptor(start, end, dtype="U8", shape=[end - start])
        for name, (start, end) in {"one": first, "two": second, "zz": (1024, 1032)}.items()
    }
    with pytest.raises(MetadataError, match=r"overlap those of '(one|two)'") as caught:
        open_table({"tensors": tensors}, bytes(2048))
    assert {caught.value.tensor, caught.value.message.split("'")[1]} == {"one", "two"}


def test_a_tensor_hidden_inside_tied_ones_is_refused() -> None:
    tensors = {"a": descriptor(), "b": descriptor(), "c": descriptor(4, 8, shape=[1])}
    with pytest.raises(MetadataError, match="overlap those of 'b'"):
        open_table({"tensors": tensors})


def test_an_empty_tensor_inside_another_takes_nothing_from_it() -> None:
    tensors = {"a": descriptor(0, 512, shape=[128]), "e": descriptor(256, 256, shape=[0])}
    assert set(open_table({"tensors": tensors}, bytes(512)).entries) == {"a", "e"}


def test_bytes_behind_the_last_tensor_are_reported() -> None:
    container = open_raw(raw_file(two(), DATA) + b"xyz")
    assert container.notes == ("3 bytes behind the last tensor belong to none",)
    assert Finding("note", "", "3 bytes lie behind the last tensor") in list(container.check())


def test_a_clean_file_has_no_findings() -> None:
    container = open_raw(raw_file(two(), DATA))
    assert container.notes == ()
    assert list(container.check()) == []


def test_padding_that_is_not_zero_is_found() -> None:
    raw = bytearray(raw_file(two(), DATA))
    raw[200] = raw[300] = 1
    assert list(open_raw(bytes(raw)).check()) == [
        Finding("warning", "", "the padding between table and data is not zero"),
        Finding("warning", "b", "the padding before it is not zero"),
    ]


def test_one_range_under_two_forms_is_found() -> None:
    table = {"tensors": {"a": descriptor(), "b": descriptor(), "c": descriptor(dtype="I64", shape=[1])}}
    expected = [Finding("note", "c", "it has the bytes of 'b' in another form")]
    container = open_table(table)
    assert list(container.check()) == expected
    assert find_ties(list(container.entries.values())) == {"b": "a"}


def test_holes_are_found() -> None:
    table = {"tensors": {"a": descriptor(0, 8), "b": descriptor(1024, 1032)}}
    assert list(open_table(table, bytes(1032)).check()) == [Finding("note", "b", "1016 unused bytes lie before it")]


@pytest.mark.parametrize(("store", "width"), [("Native", 1), ("U8", 1), ("U32", 4)])
def test_booleans_that_are_neither_0_nor_1_are_found(store: str, width: int) -> None:
    spelled = descriptor(0, 4 * width, dtype={"Bool": store}, shape=[4])
    good = b"".join(value.to_bytes(width, "little") for value in (0, 1, 1, 0))
    assert list(open_descriptor(spelled, good).check()) == []
    expected = [Finding("warning", "w", "it is boolean, and has values other than 0 and 1")]
    for position in range(width):
        bad = bytearray(good)
        bad[position] = 2
        assert list(open_descriptor(spelled, bytes(bad)).check()) == expected


def test_a_shape_numpy_cannot_hold_is_refused_only_as_an_array() -> None:
    deep = open_descriptor(descriptor(0, 4, shape=[1] * 70), bytes(4)).entries["w"]
    wide = open_descriptor(descriptor(0, 0, shape=[0, (1 << 63) + 1]), b"").entries["w"]
    assert bytes(deep.read()) == bytes(4)
    for entry in (deep, wide):
        with pytest.raises(UnsupportedError, match="NumPy") as caught:
            as_array(entry)
        assert caught.value.tensor == "w"


def test_a_quantized_tensor_gives_bytes_and_no_array() -> None:
    scheme = {"value": "Q8S", "store": "Native", "mode": "Symmetric", "tensor": None, "block": None}
    data = bytes.fromhex("7f8140000000003f")
    entry = open_descriptor(descriptor(dtype={"QFloat": scheme}, shape=[2, 2]), data).entries["w"]
    assert entry.dtype == qfloat(QuantScheme(value="Q8S"))
    assert bytes(entry.read()) == data
    with pytest.raises(UnsupportedError, match="QFLOAT") as caught:
        as_array(entry)
    assert caught.value.tensor == "w"


def test_arrays_are_read_only_views_of_the_file() -> None:
    array = as_array(open_raw(raw_file(two(), DATA)).entries["a"])
    assert array.dtype == np.float32
    assert not array.flags.writeable
    assert array.tobytes() == DATA[:8]
