"""Tensors made of tensors: what NumPy would give, drawn late, and still tied."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.arrays import as_array, entry_of
from firekeep.blobs import DeferredBlob, MemoryBlob, StridedBlob, WindowBlob
from firekeep.dtypes import BY_NAME, QuantScheme, qfloat
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, UnsupportedError
from firekeep.ids import ParamId
from firekeep.sources import FileSource
from firekeep.views import (
    constant,
    flipped,
    ghost,
    is_ghost,
    joined,
    permuted,
    reshaped,
    scaled_back,
    sliced,
    stacked,
    summed,
)

DTYPES = (np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64, np.complex128, np.int64, np.bool_)
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


def numbered(shape, dtype=np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)) % 251).reshape(shape).astype(dtype)


def drawn(entry: TensorEntry, size: int | None = None) -> np.ndarray:
    """Draw a tensor whole, or in pieces of at most `size` bytes."""
    if size is None:
        return as_array(entry)
    pieces = [bytes(piece) for piece in entry.blob.chunks(size)]
    assert all(0 < len(piece) <= size for piece in pieces)
    return as_array(TensorEntry(entry.name, entry.dtype, entry.shape, MemoryBlob(b"".join(pieces))))


def agree(entry: TensorEntry, expected: np.ndarray) -> None:
    assert entry.shape == expected.shape
    assert entry.nbytes == expected.nbytes
    for size in (None, 16, 48, 1 << 20):
        assert drawn(entry, size).tobytes() == np.ascontiguousarray(expected).tobytes()


@given(st.data(), SHAPES, st.sampled_from(DTYPES))
def test_permuted_is_what_numpy_transposes(data, shape, dtype):
    axes = data.draw(st.permutations(range(len(shape))))
    array = numbered(shape, dtype)
    agree(permuted(entry_of("w", array), axes), array.transpose(axes))


@given(st.data(), SHAPES, st.sampled_from(DTYPES))
def test_flipped_is_what_numpy_flips(data, shape, dtype):
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    array = numbered(shape, dtype)
    agree(flipped(entry_of("w", array), tuple(axes)), np.flip(array, tuple(axes)))


@given(st.data(), SHAPES)
def test_reshaped_views_are_what_numpy_reshapes(data, shape):
    """An axis is split, and two are put together, of what is permuted and flipped."""
    array = numbered(shape)
    axes = data.draw(st.permutations(range(len(shape))))
    turned = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    entry = flipped(permuted(entry_of("w", array), axes), tuple(turned))
    array = np.flip(array.transpose(axes), tuple(turned))
    extents = list(array.shape)
    axis = data.draw(st.integers(0, len(extents) - 1))
    divisors = [n for n in range(1, extents[axis] + 1) if extents[axis] % n == 0] or [1]
    part = data.draw(st.sampled_from(divisors))
    split = (*extents[:axis], part, extents[axis] // part, *extents[axis + 1 :])
    agree(reshaped(entry, split), array.reshape(split))
    agree(permuted(reshaped(entry, split), range(len(split))[::-1]), array.reshape(split).T)
    flat = (array.size,) if axis == 0 else (np.prod(extents[: axis + 1], dtype=int).item(), *extents[axis + 1 :])
    agree(reshaped(entry, flat), array.reshape(flat))
    agree(reshaped(reshaped(entry, split), array.shape), array)


@given(st.data(), SHAPES)
def test_what_is_laid_back_is_the_tensor_it_was(data, shape):
    entry = entry_of("w", numbered(shape))
    axes = data.draw(st.permutations(range(len(shape))))
    turned = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    split = (shape[axes[0]], 1, *(shape[axis] for axis in axes[1:]))
    there = flipped(reshaped(flipped(permuted(entry, axes), turned), split), ())
    back = permuted(flipped(reshaped(there, [shape[axis] for axis in axes]), turned), np.argsort(axes))
    assert back.shape == entry.shape
    assert back.blob.identity() == entry.blob.identity()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.float16])
def test_sums_are_what_numpy_adds_in_the_same_type(dtype):
    first, second = (
        np.linspace(-3, 3, 12).reshape(3, 4).astype(dtype),
        np.linspace(5, 6, 12).reshape(3, 4).astype(dtype),
    )
    entries = entry_of("a", first), entry_of("b", second)
    whole = summed(*entries, name="w")
    agree(whole, first + second)
    agree(
        summed(flipped(entries[0], (0,)), permuted(permuted(entries[1], (1, 0)), (1, 0)), name="w"),
        first[::-1] + second,
    )
    assert whole.blob.identity() == summed(*entries, name="v").blob.identity() is not None
    assert whole.blob.memory() == (*entries[0].blob.memory(), *entries[1].blob.memory())
    with pytest.raises(EntryError, match=r"cannot be added to 'b'"):
        summed(entries[0], permuted(entries[1], (1, 0)), name="w")


def test_a_running_mean_without_the_bias_of_its_beginning():
    mean = entry_of("m", np.full(3, 0.271, np.float32))
    agree(scaled_back(mean, entry_of("n", np.int32(0)), momentum=0.9), np.full(3, 0.271, np.float32))
    np.testing.assert_allclose(as_array(scaled_back(mean, entry_of("n", np.int32(3)), momentum=0.9)), 1, rtol=1e-6)
    agree(scaled_back(mean, entry_of("n", np.int32(3000)), momentum=0.99), np.full(3, 0.271, np.float32))


def test_constants_and_ghosts():
    assert as_array(constant("c", BY_NAME["I32"], (), 2070)) == 2070
    assert as_array(constant("c", BY_NAME["BF16"], (2, 3))).tolist() == [[0] * 3] * 2
    absent = ghost("g", BY_NAME["F32"], (2, 3))
    there = entry_of("t", np.zeros((2, 3), np.float32))
    assert is_ghost(permuted(absent, (1, 0)))
    assert is_ghost(joined([there, absent], name="w"))
    assert is_ghost(summed(there, absent, name="w"))
    assert not is_ghost(summed(there, there, name="w"))


@given(st.data(), SHAPES)
def test_sliced_is_what_numpy_slices(data, shape):
    axis = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, shape[axis]))
    stop = data.draw(st.integers(start, shape[axis]))
    array = numbered(shape)
    agree(sliced(entry_of("w", array), axis=axis, start=start, stop=stop), array.take(range(start, stop), axis))


@given(st.data(), SHAPES, st.lists(st.integers(0, 3), min_size=1, max_size=4), st.sampled_from(DTYPES))
def test_joined_is_what_numpy_concatenates(data, shape, extents, dtype):
    axis = data.draw(st.integers(0, len(shape) - 1))
    arrays = [numbered((*shape[:axis], extent, *shape[axis + 1 :]), dtype) for extent in extents]
    entry = joined([entry_of(f"p{n}", array) for n, array in enumerate(arrays)], axis=axis, name="w")
    assert entry.name == "w"
    agree(entry, np.concatenate(arrays, axis))


@given(st.data(), SHAPES)
def test_views_of_views_are_what_numpy_makes(data, shape):
    array = numbered(shape)
    entry = entry_of("w", array)
    for step in data.draw(st.lists(st.sampled_from(("permute", "slice", "reshape", "stack")), max_size=5)):
        if step == "permute":
            axes = data.draw(st.permutations(range(array.ndim)))
            entry, array = permuted(entry, axes), array.transpose(axes)
        elif step == "slice":
            axis = data.draw(st.integers(0, array.ndim - 1))
            start = data.draw(st.integers(0, array.shape[axis]))
            entry = sliced(entry, axis=axis, start=start, stop=array.shape[axis])
            array = array.take(range(start, array.shape[axis]), axis)
        elif step == "reshape":
            entry, array = reshaped(entry, (array.size, 1)), array.reshape(array.size, 1)
        else:
            axis = data.draw(st.integers(0, array.ndim))
            entry, array = stacked([entry, entry], axis=axis, name="w"), np.stack([array, array], axis)
    agree(entry, array)


def test_a_large_transposed_tensor_comes_in_strips_of_rows_and_is_never_whole():
    array = numbered((3000, 1100))
    pieces = list(permuted(entry_of("w", array), (1, 0)).blob.chunks(1 << 20))
    row = 3000 * 4
    assert max(piece.nbytes for piece in pieces) == (1 << 20) // row * row
    assert b"".join(pieces) == np.ascontiguousarray(array.T).tobytes()


def test_big_endian_and_strided_storages_are_seen_through():
    storage = MemoryBlob(numbered((4, 6), ">f4").tobytes())
    blob = StridedBlob(storage, offset=0, itemsize=4, shape=(6, 4), strides=(1, 6), swap=4)
    entry = TensorEntry("w", BY_NAME["F32"], (6, 4), blob)
    agree(entry, numbered((4, 6)).T)
    agree(permuted(entry, (1, 0)), numbered((4, 6)))
    agree(sliced(permuted(entry, (1, 0)), axis=0, start=1, stop=3), numbered((4, 6))[1:3])


def test_nothing_is_drawn_before_bytes_are_asked_for():
    drawings = []

    def provide() -> bytes:
        drawings.append(1)
        return numbered((2, 3)).tobytes()

    entry = TensorEntry("w", BY_NAME["F32"], (2, 3), DeferredBlob(24, provide))
    view = stacked([sliced(permuted(entry, (1, 0)), axis=0, start=1, stop=3)] * 2, name="v")
    assert not drawings
    agree(view, np.stack([numbered((2, 3)).T[1:3]] * 2))
    assert drawings


def test_what_lies_in_order_in_a_file_is_a_window_of_it(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(numbered((6, 4)).tobytes())
    source = FileSource(path)
    entry = TensorEntry("w", BY_NAME["F32"], (6, 4), WindowBlob(source, 0, 96))
    assert sliced(entry, axis=0, start=2, stop=4).blob.window() == (source, 32)
    assert permuted(reshaped(entry, (24, 1)), (1, 0)).blob.window() == (source, 0)
    turned = permuted(entry, (1, 0))
    assert turned.blob.window() is None
    assert permuted(turned, (1, 0)).blob is entry.blob
    source.close()


def test_equal_views_of_one_tensor_are_tied_and_others_are_not():
    array = numbered((4, 4))
    a, b = entry_of("a", array), entry_of("b", array)
    turned = [permuted(a, (1, 0)), permuted(b, (1, 0)), a]
    assert find_ties(turned) == {"b": "a"}
    halves = [sliced(one, axis=0, start=start, stop=start + 2) for one in (a, b) for start in (0, 2)]
    halves = [one.renamed(f"{n}") for n, one in enumerate(halves)]
    assert find_ties(halves) == {"2": "0", "3": "1"}
    assert find_ties([joined([a, b], name="x"), joined([b, a], name="y"), joined([a, b], axis=1, name="z")]) == {
        "y": "x"
    }
    loose = TensorEntry("c", BY_NAME["F32"], (4, 4), DeferredBlob(64, lambda: b""))
    assert joined([a, loose], name="x").blob.identity() is None
    assert permuted(loose, (1, 0)).blob.identity() is None


def test_a_permuted_tensor_keeps_its_parameter_id_and_a_part_has_none():
    entry = entry_of("w", numbered((2, 3)))
    entry.param_id = ParamId(7)
    assert permuted(entry, (1, 0)).param_id == ParamId(7)
    assert reshaped(entry, (6,)).param_id == ParamId(7)
    assert sliced(entry, axis=1, start=0, stop=1).param_id is None
    assert joined([entry, entry], name="w").param_id is None


@pytest.mark.parametrize(
    "dtype",
    [BY_NAME["F4"], BY_NAME["F6_E2M3"], BY_NAME["QINT8"], qfloat(QuantScheme(value="Q8S"))],
    ids=str,
)
def test_packed_and_quantized_elements_are_refused_by_name(dtype):
    entry = TensorEntry("fc.weight", dtype, (4, 8), MemoryBlob(bytes(dtype.nbytes((4, 8)))))
    for make in (
        lambda: permuted(entry, (1, 0)),
        lambda: sliced(entry, axis=0, start=0, stop=2),
        lambda: joined([entry, entry], name="w"),
    ):
        with pytest.raises(UnsupportedError, match=r"tensor 'fc\.weight': its elements .* packed or quantized"):
            make()
    assert permuted(entry, (0, 1)) is entry


def test_a_tensor_with_a_problem_keeps_it():
    bad = TensorEntry("w", None, (2, 3), MemoryBlob(b""), problem="it is sparse")
    good = entry_of("v", numbered((2, 3)))
    bad_dtype = TensorEntry("w", good.dtype, (2, 3), MemoryBlob(b""), problem="it is sparse")
    for view in (permuted(bad, (1, 0)), sliced(bad, axis=0, start=0, stop=1), joined([good, bad_dtype], name="j")):
        assert view.problem == "it is sparse"
    assert permuted(bad, (1, 0)).shape == (3, 2)
    assert joined([good, bad_dtype], name="j").shape == (4, 3)


def test_what_cannot_be_joined_says_both_sides():
    a = entry_of("a", numbered((2, 3)))
    with pytest.raises(EntryError, match=r"tensor 'b': it is F64 and cannot be joined to 'a', which is F32"):
        joined([a, entry_of("b", numbered((2, 3), np.float64))], name="w")
    with pytest.raises(
        EntryError, match=r"tensor 'b': its shape \[2, 4\] cannot be joined to 'a', \[2, 3\], along axis 0"
    ):
        joined([a, entry_of("b", numbered((2, 4)))], name="w")
    with pytest.raises(EntryError, match="no axis 2"):
        joined([a, a], axis=2, name="w")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda entry: permuted(entry, (0, 0)), r"the axes \[0, 0\] are no order of those of shape \[2, 3\]"),
        (lambda entry: sliced(entry, axis=1, start=2, stop=4), r"2:4 along axis 1 is outside shape \[2, 3\]"),
        (lambda entry: reshaped(entry, (4,)), r"shape \[2, 3\] holds 6 elements and \[4\] 4"),
    ],
)
def test_what_no_view_can_be_is_refused(make, message):
    with pytest.raises(EntryError, match=message):
        make(entry_of("w", numbered((2, 3))))


def test_a_ghost_has_a_shape_and_no_values():
    entry = ghost("w", BY_NAME["BF16"], (2, 3), ParamId(5))
    assert (entry.nbytes, entry.shape, entry.param_id) == (12, (2, 3), ParamId(5))
    view = joined([permuted(entry, (1, 0)), permuted(entry, (1, 0))], name="v")
    assert (view.shape, view.nbytes) == ((6, 2), 24)
    assert find_ties([entry, entry.renamed("v")]) == {}
    for one in (entry, view):
        with pytest.raises(EntryError, match="it has a shape and no values"):
            one.read()
