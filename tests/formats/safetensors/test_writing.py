from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from firekeep.arrays import as_array, entry_of
from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.disk import to_bytes
from firekeep.dtypes import BY_NAME, DType, QuantScheme, qfloat
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, LimitError, MetadataError, UnsupportedError
from firekeep.formats import Contents
from firekeep.formats.safetensors import plan
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.scalars import Scalar
from formats.safetensors.made import open_bytes, raw, row, u8


def written(*entries: TensorEntry, metadata: Mapping[Any, Any] | None = None, **options: Any) -> bytes:
    return to_bytes(plan(Contents(entries=entries, metadata=metadata or {}), DEFAULT_LIMITS, **options))


def header_of(data: bytes) -> str:
    length = struct.unpack("<Q", data[:8])[0]
    return data[8 : 8 + length].decode()


def test_the_header_is_compact_json_padded_with_spaces_to_eight() -> None:
    data = written(u8("b", 3), u8("a"), metadata={"k": "v"})
    assert header_of(data) == (
        '{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        '"b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}'
    ).ljust(136)


def test_data_lie_by_falling_element_size_then_by_name() -> None:
    small = BY_NAME["BOOL"]
    wide = BY_NAME["U64"]
    data = written(
        TensorEntry("a", small, (3,), MemoryBlob(b"\1\0\1")),
        TensorEntry("z", wide, (1,), MemoryBlob(bytes(8))),
        TensorEntry("b", wide, (1,), MemoryBlob(bytes(8))),
        entry_of("m", np.ones(3, np.float16)),
    )
    container = open_bytes(data)
    assert list(container.entries) == ["b", "z", "m", "a"]
    for entry in container.entries.values():
        window = entry.blob.window()
        assert window is not None
        assert entry.dtype is not None
        assert window[1] % entry.dtype.itemsize == 0


@pytest.mark.parametrize(
    "name", ["", "é", "層/重", '"quoted"', "back\\slash", "\0\x01\x1f\x7f\u2028", "\t\n\r\b\f", "🔥", "{]"]
)
def test_any_name_comes_back(name: str) -> None:
    assert list(open_bytes(written(u8(name))).entries) == [name]


def test_text_beyond_ascii_is_written_as_it_is() -> None:
    assert '"é\u2028\\u0000"' in header_of(written(u8("é\u2028\0")))


def test_a_tensor_cannot_be_called_metadata() -> None:
    with pytest.raises(MetadataError, match=r"tensor '__metadata__': no tensor can be called __metadata__.*Rename it"):
        written(u8("__metadata__"))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"step": 3}, "the value of 'step' is int"),
        ({"step": None}, "the value of 'step' is NoneType"),
        ({3: "x"}, "the key 3 is int"),
        ({"step": b"x"}, "the value of 'step' is bytes"),
    ],
)
def test_metadata_that_is_not_text_is_named_with_a_remedy(metadata: dict[Any, Any], message: str) -> None:
    with pytest.raises(MetadataError, match=rf"{message}. Give str"):
        written(u8("a"), metadata=metadata)


def test_metadata_that_is_not_unicode_is_refused() -> None:
    for metadata in ({"\ud800": "x"}, {"x": "\ud800"}):
        with pytest.raises(MetadataError, match="half of a surrogate pair"):
            written(u8("a"), metadata=metadata)


def test_metadata_is_absent_present_or_empty_as_asked() -> None:
    assert open_bytes(written(u8("a"))).details["metadata"] == "absent"
    assert open_bytes(written(u8("a"), metadata={"k": "v"})).details["metadata"] == "present"
    for entries in ([], [u8("a")]):
        data = written(*entries, empty_metadata=True)
        assert header_of(data).startswith('{"__metadata__":{}')
        assert open_bytes(data).details["metadata"] == "empty"


def test_scalars_are_refused_by_name() -> None:
    contents = Contents(entries=[u8("a")], scalars={"step": Scalar("int", 3)})
    with pytest.raises(UnsupportedError, match=r"no scalars, and there are 1 \(step\). Write .bpk"):
        plan(contents, DEFAULT_LIMITS)


def test_flex32_is_written_as_f32() -> None:
    values = struct.pack("<2f", 1.5, -2.0)
    entry = open_bytes(written(TensorEntry("w", BY_NAME["FLEX32"], (2,), MemoryBlob(values)))).entries["w"]
    assert entry.dtype is BY_NAME["F32"]
    assert bytes(entry.read()) == values


@pytest.mark.parametrize(
    ("name", "stored"), [("BOOL_U8", b"\0\1\2\xff"), ("BOOL_U32", struct.pack("<4I", 0, 1, 1 << 31, 256))]
)
def test_wide_booleans_are_written_as_booleans(name: str, stored: bytes) -> None:
    entry = open_bytes(written(TensorEntry("flags", BY_NAME[name], (2, 2), MemoryBlob(stored)))).entries["flags"]
    assert entry.dtype is BY_NAME["BOOL"]
    assert bytes(entry.read()) == b"\0\1\1\1"


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        (BY_NAME["C128"], "give it as complex64"),
        (BY_NAME["QINT8"], "give it dequantized"),
        (qfloat(QuantScheme(value="Q8S")), "Write .bpk, which holds it"),
    ],
)
def test_a_dtype_without_a_name_is_refused(dtype: DType, remedy: str) -> None:
    entry = TensorEntry("odd", dtype, (2,), MemoryBlob(bytes(dtype.nbytes((2,)))))
    with pytest.raises(UnsupportedError, match=f"tensor 'odd': safetensors has no dtype for {dtype.name}.*{remedy}"):
        written(u8("fine"), entry)


def test_a_sub_byte_tensor_that_does_not_fill_its_bytes_is_refused() -> None:
    with pytest.raises(MetadataError, match="tensor 'half': 3 elements of F4"):
        written(TensorEntry("half", BY_NAME["F4"], (3,), MemoryBlob(b"xx")))


def test_too_many_tensors_for_a_header_are_refused_at_once_with_the_numbers() -> None:
    drawn = []

    def provide() -> bytes:
        drawn.append(1)
        return b"x"

    entries = [TensorEntry(f"t{number}", BY_NAME["U8"], (1,), DeferredBlob(1, provide)) for number in range(200_000)]
    with pytest.raises(
        LimitError, match=r"header of 200000 tensors has \d+ bytes, more than the limit of 1000000.*shards"
    ) as caught:
        plan(Contents(entries=entries), Limits(safetensors_header_bytes=1_000_000))
    assert (caught.value.limit, drawn) == (1_000_000, [])
    assert caught.value.actual is not None
    assert caught.value.actual > 10_000_000


def test_a_provider_that_fails_is_named() -> None:
    def provide() -> bytes:
        raise EntryError("the device is gone")

    entry = TensorEntry("w", BY_NAME["F32"], (2,), DeferredBlob(8, provide))
    with pytest.raises(EntryError, match="tensor 'w': the device is gone"):
        written(entry)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.arange(24, dtype=np.int16)[::2],
        np.arange(6, dtype=np.int64)[::-1],
        np.broadcast_to(np.array([1, 2], np.uint8), (4, 2)),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(24, dtype=">i8").reshape(2, 3, 4).transpose(2, 0, 1)[::-1],
        np.array(2.5),
        np.empty((0, 2**40), np.float32),
        np.array([True, False, True])[::2],
        np.arange(4, dtype=np.complex64).reshape(2, 2).T,
    ],
)
def test_an_array_of_any_layout_is_written_as_its_values(array: np.ndarray[Any, Any]) -> None:
    back = as_array(open_bytes(written(entry_of("w", array))).entries["w"])
    np.testing.assert_array_equal(back, array)
    assert (back.shape, back.dtype) == (array.shape, array.dtype.newbyteorder("<"))


def test_a_foreign_file_keeps_its_metadata_and_values_when_rewritten() -> None:
    table = {"b": row("U8", [1], 0, 1), "a": row("F32", [1], 1, 5), "__metadata__": {"z": "1", "a": "2"}}
    container = open_bytes(raw(json.dumps(table, indent=1), b"x" + struct.pack("<f", 7.0)))
    again = written(*container.entries.values(), metadata=container.metadata)
    assert header_of(again).rstrip() == (
        '{"__metadata__":{"a":"2","z":"1"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        '"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}'
    )
    assert again.endswith(struct.pack("<f", 7.0) + b"x")
    assert len(header_of(again)) % 8 == 0
