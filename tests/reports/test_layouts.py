"""Strides, byte order, sharing, dtypes and odd shapes: values that came out wrong without a word."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import firekeep
import pickles
from firekeep import MetadataError, UnsupportedError
from reports.files import FOUR, described, raw_safetensors

SUFFIXES = (".safetensors", ".bpk")

TWELVE = np.arange(12, dtype=np.float32).reshape(3, 4)


# burn#5383: strides were dropped, and weights came out scrambled.
@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4, 3), (1, 4), 0),
        ((3, 2, 2), (4, 1, 2), 0),
        ((2, 3), (1, 2), 3),
        ((2, 2), (0, 1), 5),
        ((3,), (0,), 11),
        ((6,), (2,), 1),
        ((1, 12), (99, 1), 0),
        ((), (), 7),
    ],
)
@pytest.mark.parametrize("layout", ["zip", "legacy"])
def test_a_strided_view_is_gathered_element_by_element(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, layout: str
):
    body = pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 12, shape=shape, strides=strides, offset=offset)})
    raw = TWELVE.tobytes()
    file = (
        pickles.zip_file(pickles.pickled(body), {"0": raw})
        if layout == "zip"
        else pickles.legacy_file(body, {"0": (12, raw)})
    )
    expected = np.empty(shape, np.float32)
    for index in np.ndindex(shape):
        expected[index] = offset + sum(place * stride for place, stride in zip(index, strides, strict=True))
    with firekeep.open(file) as opened:
        np.testing.assert_array_equal(opened["w"], expected)
        assert opened["w"].flags.c_contiguous


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((13,), (1,), 0),
        ((4, 4), (4, 1), 0),
        ((2,), (12,), 0),
        ((1,), (1,), 12),
        ((2,), (-1,), 3),
        ((3,), (1 << 62,), 0),
    ],
)
def test_a_view_beyond_its_storage_is_refused_by_name(shape: tuple[int, ...], strides: tuple[int, ...], offset: int):
    body = pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 12, shape=shape, strides=strides, offset=offset)})
    with pytest.raises(firekeep.FormatError, match="'w'"):
        firekeep.open(pickles.zip_file(pickles.pickled(body), {"0": TWELVE.tobytes()}))


# safetensors#825: arrays in Fortran order were written in memory order. mlx#369: broadcast arrays got rows of garbage.
ARRAYS = {
    "Fortran order": np.asfortranarray(TWELVE),
    "transposed": TWELVE.T,
    "every second row": TWELVE[::2],
    "every second column": TWELVE[:, ::2],
    "reversed": TWELVE[::-1],
    "reversed both ways": TWELVE[::-1, ::-1],
    "permuted axes": np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
    "broadcast rows": np.broadcast_to(np.array([1, 2], np.int32), (4, 2)),
    "broadcast scalar": np.broadcast_to(np.float64(3), (2, 3)),
    "big-endian floats": TWELVE.astype(">f4"),
    "big-endian integers": np.arange(5, dtype=">i8"),
    "big-endian transposed": TWELVE.astype(">f8").T,
    "unaligned": np.frombuffer(b"x" + TWELVE.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4),
    "a field of records": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])["b"],
    "a subclass": TWELVE.view(np.matrix) if hasattr(np, "matrix") else TWELVE,
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_of_any_layout_keeps_its_values(array: np.ndarray, suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file({"w": array}, path)
    loaded = firekeep.load_file(path)["w"]
    assert loaded.shape == array.shape
    assert loaded.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(loaded, np.asarray(array))


# safetensors#307, #321, #448, pytorch#101688, pytorch#65300: a big-endian host or file, and silently wrong values.
BIG = {
    "FloatStorage": (">4f", (1, 2, 3, 4)),
    "DoubleStorage": (">2d", (1.5, -2)),
    "HalfStorage": (">4e", (1, 2, 3, 4)),
    "LongStorage": (">2q", (1, -(1 << 40))),
    "IntStorage": (">4i", (1, -2, 3, 1 << 30)),
    "ShortStorage": (">4h", (1, -2, 300, 4)),
    "ByteStorage": (">4B", (1, 2, 3, 255)),
    "BoolStorage": (">2B", (1, 0)),
}


@pytest.mark.parametrize("kind", BIG)
def test_the_byte_order_a_file_states_is_honoured(kind: str):
    code, values = BIG[kind]
    body = pickles.pickled(pickles.ordered({"w": pickles.tensor(kind, "0", len(values))}))
    for order, raw in (("big", struct.pack(code, *values)), ("little", struct.pack(code.replace(">", "<"), *values))):
        with firekeep.open(pickles.zip_file(body, {"0": raw}, byteorder=order.encode())) as file:
            assert file["w"].tolist() == list(values)
    with firekeep.open(
        pickles.zip_file(body, {"0": struct.pack(code.replace(">", "<"), *values)}, byteorder=None)
    ) as file:
        assert file["w"].tolist() == list(values)
        assert "not said" in file.details["byte_order"]


def test_halves_of_complex_numbers_are_swapped_each_by_itself():
    body = pickles.pickled(pickles.ordered({"w": pickles.tensor("ComplexFloatStorage", "0", 2)}))
    with firekeep.open(pickles.zip_file(body, {"0": struct.pack(">4f", 1, 2, 3, -4)}, byteorder=b"big")) as file:
        assert file["w"].tolist() == [1 + 2j, 3 - 4j]


def test_a_byte_order_that_is_none_is_refused():
    body = pickles.pickled(pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 4)}))
    with pytest.raises(MetadataError, match="'middle', neither little nor big"):
        firekeep.open(pickles.zip_file(body, {"0": FOUR}, byteorder=b"middle"))


# pytorch#1995, #33101, #40157, #95278: a saved slice carries the whole storage with it.
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_slice_is_written_without_the_rest_of_its_storage(suffix: str, tmp_path: Path):
    body = pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 1000, shape=(10,), offset=20)})
    source = tmp_path / "slice.pt"
    source.write_bytes(pickles.zip_file(pickles.pickled(body), {"0": np.arange(1000, dtype=np.float32).tobytes()}))
    with firekeep.open(source) as file:
        assert any("3,960 bytes belong to no tensor" in note for note in file.notes)
    firekeep.convert(source, tmp_path / f"slice{suffix}")
    assert (tmp_path / f"slice{suffix}").stat().st_size < 600
    assert firekeep.load_file(tmp_path / f"slice{suffix}")["w"].tolist() == list(range(20, 30))
    whole = np.arange(1000, dtype=np.float32)
    firekeep.save_file({"w": whole[20:30]}, tmp_path / f"array{suffix}")
    assert (tmp_path / f"array{suffix}").stat().st_size < 600


# safetensors#98, #202, #304, #493, exllamav2#320: "Some tensors share memory".
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_array_under_two_names_is_stored_once_and_loads_under_both(suffix: str, tmp_path: Path):
    table = np.arange(4096, dtype=np.float32)
    path = tmp_path / f"tied{suffix}"
    firekeep.save_file({"embed": table, "lm_head": table, "other": TWELVE}, path)
    assert path.stat().st_size < 1.2 * table.nbytes
    loaded = firekeep.load_file(path)
    assert sorted(loaded) == ["embed", "lm_head", "other"]
    np.testing.assert_array_equal(loaded["embed"], table)
    np.testing.assert_array_equal(loaded["lm_head"], table)
    with firekeep.open(path) as file:
        assert file.ties == {"lm_head": "embed"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_tie_can_be_written_out(suffix: str, tmp_path: Path):
    table = np.arange(4096, dtype=np.float32)
    firekeep.save_file({"embed": table, "lm_head": table}, tmp_path / f"two{suffix}", ties="expand")
    assert (tmp_path / f"two{suffix}").stat().st_size > 2 * table.nbytes
    with firekeep.open(tmp_path / f"two{suffix}") as file:
        assert file.keys() == ["embed", "lm_head"]
        assert file.ties == {}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_views_that_only_overlap_are_written_in_full(suffix: str, tmp_path: Path):
    base = np.arange(10, dtype=np.float32)
    views = {"head": base[:6], "tail": base[4:], "same bytes, other shape": base[:6].reshape(2, 3), "all": base}
    firekeep.save_file(views, tmp_path / f"views{suffix}")
    loaded = firekeep.load_file(tmp_path / f"views{suffix}")
    assert sorted(loaded) == sorted(views)
    for name, view in views.items():
        np.testing.assert_array_equal(loaded[name], view)


# NeMo-Automodel#2511: lm_head dropped although it was not the same; vllm#6758, llm-compressor#2798: a copy written twice.
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_equal_copies_are_no_tie_and_neither_is_left_out(suffix: str, tmp_path: Path):
    table = np.arange(64, dtype=np.float32)
    path = tmp_path / f"copies{suffix}"
    firekeep.save_file({"embed": table, "lm_head": table.copy(), "odd": table + 1}, path)
    with firekeep.open(path) as file:
        assert sorted(file) == ["embed", "lm_head", "odd"]
        assert file.ties == {}
        assert file["odd"][0] == 1


def test_a_tie_recorded_in_metadata_fills_the_name_that_the_file_lacks():
    header = {"__metadata__": {"lm_head.weight": "embed.weight"}, "embed.weight": described("F32", [4], 0, 16)}
    file = raw_safetensors(header, FOUR)
    with firekeep.open(file) as opened:
        assert opened.ties == {"lm_head.weight": "embed.weight"}
    assert firekeep.load_file(file)["lm_head.weight"].tolist() == [1, 2, 3, 4]


# safetensors PR#586: two names with one byte range in the header.
@pytest.mark.parametrize(("start", "end"), [(0, 16), (8, 24), (4, 20)])
def test_overlapping_ranges_are_refused_and_both_names_shown(start: int, end: int):
    header = {"a": described("F32", [4], 0, 16), "b": described("F32", [4], start, end)}
    with pytest.raises(MetadataError, match="'a' and 'b'"):
        firekeep.open(raw_safetensors(header, bytes(max(16, end))))


# safetensors#598, big_vision#107, keras PR#19091: bfloat16 became a TypeError or numpy void.
# safetensors#839: one code path knew the small floats, another did not. safetensors#450, #489: complex numbers.
@pytest.mark.parametrize(
    ("code", "dtype", "raw"),
    [
        ("BF16", ml_dtypes.bfloat16, b"\x80\x3f\x00\xc0"),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn, b"\x38\xc0"),
        ("F8_E5M2", ml_dtypes.float8_e5m2, b"\x3c\xc0"),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu, b"\x7f\x80"),
        ("F16", np.float16, b"\x00\x3c\x00\xc0"),
        ("C64", np.complex64, struct.pack("<4f", 1, 2, -3, 4)),
        ("BOOL", np.bool_, b"\x01\x00"),
        ("U16", np.uint16, b"\x01\x00\xff\xff"),
        ("U64", np.uint64, struct.pack("<2Q", 1, (1 << 64) - 1)),
    ],
)
def test_a_dtype_goes_through_every_door_alike(code: str, dtype: type, raw: bytes, tmp_path: Path):
    file = raw_safetensors({"w": described(code, [2], 0, len(raw))}, raw)
    with firekeep.open(file) as opened:
        array = opened["w"]
        assert array.dtype == np.dtype(dtype)
        assert array.tobytes() == raw
    assert firekeep.load_file(file)["w"].dtype == np.dtype(dtype)
    firekeep.save_file({"w": array}, tmp_path / "again.safetensors")
    written = (tmp_path / "again.safetensors").read_bytes()
    assert f'"dtype":"{code}"'.encode() in written
    assert written.endswith(raw)
    assert firekeep.verify(file).ok


def test_four_bit_floats_count_elements_and_take_half_a_byte_each():
    raw = bytes([0x21, 0x43, 0x65, 0x07, 0x98, 0xBA, 0xDC, 0xFE])
    file = raw_safetensors({"w": described("F4", [2, 8], 0, 8)}, raw)
    with firekeep.open(file) as opened:
        array = opened["w"]
        assert (array.shape, array.dtype) == ((2, 8), np.dtype(ml_dtypes.float4_e2m1fn))
        assert array.astype(float).tolist()[0] == [0.5, 1, 1.5, 2, 3, 4, 6, 0]
        assert firekeep.save_bytes({"w": array}, format="safetensors").endswith(raw)
    with pytest.raises(firekeep.FormatError, match="'w'"):
        firekeep.open(raw_safetensors({"w": described("F4", [2, 8], 0, 16)}, bytes(16)))


def test_a_dtype_that_no_format_here_has_is_refused_by_name_and_others_are_read():
    header = {"new": described("F3_E1M1", [2], 0, 8), "w": described("F32", [4], 8, 24)}
    with firekeep.open(raw_safetensors(header, bytes(8) + FOUR)) as file:
        assert file["w"].tolist() == [1, 2, 3, 4]
        with pytest.raises(UnsupportedError, match=r"tensor 'new'.*F3_E1M1"):
            file.array("new")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.complex128),
        np.array(["text"]),
        np.array([{}], object),
        np.array(["2026-01-01"], "M8[D]"),
        np.zeros(1, "V8"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_that_is_no_tensor_is_refused_by_name_before_a_byte_is_written(
    array: np.ndarray, suffix: str, tmp_path: Path
):
    path = tmp_path / f"model{suffix}"
    with pytest.raises(UnsupportedError, match="'odd'"):
        firekeep.save_file({"fine": TWELVE, "odd": array}, path)
    assert list(tmp_path.iterdir()) == []


# tensorflow#33419 and the safetensors README: tensors without elements and without axes.
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shape", [(), (0,), (0, 1 << 40), (3, 0, 2), (1,), (1, 1, 1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
def test_shapes_without_elements_or_axes_come_back_exactly(
    shape: tuple[int, ...], dtype: str, suffix: str, tmp_path: Path
):
    array = np.zeros(shape, dtype) if 0 in shape else np.ones(shape, dtype)
    path = tmp_path / f"model{suffix}"
    firekeep.save_file({"odd": array, "w": TWELVE}, path)
    loaded = firekeep.load_file(path)
    assert (loaded["odd"].shape, loaded["odd"].dtype) == (shape, array.dtype)
    assert loaded["odd"].tobytes() == array.tobytes()
    np.testing.assert_array_equal(loaded["w"], TWELVE)


@pytest.mark.parametrize("shape", [[1 << 62, 4], [1 << 64], [-1], [1 << 32, 1 << 32, 2]])
def test_a_shape_that_overflows_is_refused_by_name(shape: list[int]):
    with pytest.raises(MetadataError, match=r"'w'|negative|shape"):
        firekeep.open(raw_safetensors({"w": described("F32", shape, 0, 16)}, FOUR))


# InvokeAI#9564, ComfyUI-GGUF#63: a GGUF file has its dimensions reversed.
def test_the_dimensions_of_a_gguf_file_are_turned_round():
    table = b"\x01" + bytes(7) + b"w" + struct.pack("<I2QIQ", 2, 3, 2, 0, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + table
    with firekeep.open(data + bytes(-len(data) % 32) + struct.pack("<6f", *range(6))) as file:
        assert file["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_largest_extent_that_a_tensor_without_elements_may_have_survives():
    header = {"w": described("F32", [0, (1 << 63) - 1], 0, 0)}
    with firekeep.open(raw_safetensors(header)) as file:
        assert file.entry("w").shape == (0, (1 << 63) - 1)
        assert math.prod(file.entry("w").shape) == 0
