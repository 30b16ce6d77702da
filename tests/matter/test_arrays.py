"""Tensors as NumPy arrays and back: every dtype, every layout, no copy where none is needed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.arrays import as_array, dtype_of, entry_of, numpy_dtype
from firekeep.blobs import DeferredBlob, MemoryBlob, WindowBlob
from firekeep.dtypes import TABLE, dtype
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, UnsupportedError
from firekeep.sources import FileSource

WHOLE = [row for row in TABLE if row.numpy is not None and row.bits >= 8]


@pytest.mark.parametrize("row", WHOLE, ids=str)
def test_bytes_become_an_array_and_the_same_bytes_again(row):
    raw = bytes(range(6 * row.itemsize)) if row.kind != "bool" else bytes([1, 0] * 3 * row.itemsize)
    array = as_array(TensorEntry("x", row, (2, 3), MemoryBlob(raw)))
    assert array.shape == (2, 3)
    assert array.dtype == numpy_dtype(row)
    back = entry_of("x", array)
    assert back.shape == (2, 3)
    assert back.dtype is not None
    assert numpy_dtype(back.dtype) == numpy_dtype(row)
    assert back.read() == raw


@pytest.mark.parametrize("row", [row for row in TABLE if row.numpy is None], ids=str)
def test_a_dtype_that_numpy_lacks_is_refused_by_its_name(row):
    with pytest.raises(UnsupportedError, match=f"tensor 'x': NumPy has no type for {row.name}"):
        as_array(TensorEntry("x", row, (8,), MemoryBlob(bytes(row.nbytes((8,))))))


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.zeros(2, np.float32), "F32"),
        (np.zeros(2, ">f8"), "F64"),
        (np.zeros(2, np.bool_), "BOOL"),
        (np.zeros(2, np.uint8), "U8"),
        (np.zeros(2, ml_dtypes.bfloat16), "BF16"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), "F8_E4M3"),
        (np.zeros(2, ml_dtypes.float4_e2m1fn), "F4"),
        (np.zeros(2, np.complex64), "C64"),
        (np.zeros(2, np.longlong), "I64"),
    ],
)
def test_each_array_has_its_row(array, name):
    assert dtype_of(array) is dtype(name)


@pytest.mark.parametrize(
    "value",
    [
        np.array(["text"]),
        np.array([None]),
        np.array([1], "M8[s]"),
        np.zeros(2, "V3"),
        np.zeros(1, [("a", "f4")]),
        "text",
    ],
)
def test_what_is_no_tensor_is_refused_by_name(value):
    with pytest.raises(UnsupportedError, match=r"tensor 'x': NumPy's .* is not a tensor dtype"):
        entry_of("x", value)


LAYOUTS = {
    "in order": lambda a: a,
    "by columns": np.asfortranarray,
    "every second": lambda a: a[::2, ::2],
    "reversed": lambda a: a[::-1, ::-1],
    "transposed": lambda a: a.T,
    "one column": lambda a: a[:, 1],
    "broadcast": lambda a: np.broadcast_to(a[0], (4, a.shape[1])),
    "no axes": lambda a: a[1, 2],
    "empty": lambda a: a[:0],
    "empty inside": lambda a: a[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<c16", ">c16", "u1", ml_dtypes.bfloat16], ids=str)
def test_every_layout_is_written_in_the_order_of_its_elements(layout, kind):
    # safetensors#825, mlx#369: memory order and broadcast rows must not reach the file
    array = np.asarray(LAYOUTS[layout](np.arange(24).reshape(4, 6).astype(kind)))
    entry = entry_of("x", array)
    assert entry.shape == array.shape
    assert entry.read() == np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()


@settings(deadline=None)
@given(st.data())
def test_any_slicing_comes_back_as_it_was(data):
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    array = np.arange(int(np.prod(shape)), dtype=data.draw(st.sampled_from(["<i2", ">i2", "<f8", ">f8"]))).reshape(
        shape
    )
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    steps = data.draw(st.lists(st.sampled_from([1, -1, 2, -2]), min_size=array.ndim, max_size=array.ndim))
    array = array[tuple(slice(None, None, step) for step in steps)]
    back = as_array(entry_of("x", array))
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


def test_describing_an_array_copies_nothing():
    array = np.arange(6, dtype=np.float32)
    entry = entry_of("x", array)
    array[0] = 99
    assert np.frombuffer(entry.read(), np.float32)[0] == 99


def test_an_array_of_a_file_is_a_view_of_it(tmp_path):
    place = tmp_path / "data"
    place.write_bytes(np.arange(10, dtype="<f4").tobytes())
    source = FileSource(place, private=True)
    entry = TensorEntry("x", dtype("F32"), (4,), WindowBlob(source, 8, 16))
    array = as_array(entry)
    array[0] = 100
    source.view(12, 4)[:] = np.float32(200).tobytes()
    assert array.tolist() == [100, 200, 4, 5]
    assert as_array(entry)[0] == 100
    source.close()
    assert array.tolist() == [100, 200, 4, 5]


def test_halves_of_bytes_are_unpacked_low_half_first_and_packed_again():
    entry = TensorEntry("x", dtype("F4"), (2, 2), MemoryBlob(b"\x21\x43"))
    array = as_array(entry)
    assert array.dtype == ml_dtypes.float4_e2m1fn
    assert array.view(np.uint8).tolist() == [[1, 2], [3, 4]]
    assert entry_of("x", array).read() == b"\x21\x43"
    assert entry_of("x", array.T).read() == b"\x31\x42"


def test_values_and_lists_are_arrays_too():
    assert entry_of("x", 1.5).read() == np.float64(1.5).tobytes()
    assert entry_of("x", [1, 2]).shape == (2,)


def test_another_librarys_array_is_taken_by_dlpack():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert entry_of("x", Foreign(np.arange(3, dtype=np.int16))).read() == np.arange(3, dtype="<i2").tobytes()


def test_one_array_under_two_names_is_tied_and_a_copy_is_not():
    array = np.arange(6.0).reshape(2, 3)
    entries = [
        entry_of(name, value)
        for name, value in {
            "a": array,
            "same": array,
            "view": array[:],
            "copy": array.copy(),
            "turned": array.T,
            "row": array[0],
            "other row": array[1],
            "row again": array[0],
        }.items()
    ]
    assert find_ties(entries) == {"same": "a", "view": "a", "row again": "row"}


def test_empty_shapes_keep_their_extents():
    array = as_array(TensorEntry("x", dtype("F32"), (3, 0, 5), MemoryBlob(b"")))
    assert array.shape == (3, 0, 5)


@pytest.mark.parametrize("shape", [(1,) * 100, (0, 1 << 62, 1 << 62)], ids=["axes", "extents"])
def test_a_shape_that_numpy_cannot_hold_is_refused_by_name(shape):
    blob = MemoryBlob(bytes(4 * (0 not in shape)))
    with pytest.raises(UnsupportedError, match="tensor 'x': NumPy cannot hold a shape of"):
        as_array(TensorEntry("x", dtype("F32"), shape, blob))


def test_a_failing_provider_names_the_tensor():
    with pytest.raises(EntryError, match="tensor 'x': 12 bytes were declared, 3 came"):
        as_array(TensorEntry("x", dtype("F32"), (3,), DeferredBlob(12, lambda: b"abc")))
