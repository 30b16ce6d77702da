"""Strided tensors gathered by bytes: the same as NumPy makes of them, whole and in pieces."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firekeep import strides
from firekeep.blobs import DeferredBlob, MemoryBlob, StridedBlob
from firekeep.errors import EntryError
from firekeep.strides import collapse, gather, gather_pieces


@st.composite
def views(draw):
    """A storage of bytes and a view that lies inside it: any strides that are not negative, any offset, zeros among both."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=5)))
    steps = tuple(draw(st.integers(0, 40)) for _ in shape)
    offset = draw(st.integers(0, 9)) * itemsize + draw(st.integers(0, itemsize - 1))
    reach = sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True) if extent) + 1
    slack = draw(st.integers(0, 8))
    return offset, itemsize, shape, steps, offset + reach * itemsize + slack


def storage(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8).tobytes()


def by_numpy(
    data: bytes, offset: int, itemsize: int, shape: tuple[int, ...], steps: tuple[int, ...], swap: int = 0
) -> bytes:
    """Gather the plain way: index by index, item by item."""
    out = bytearray()
    for index in np.ndindex(*shape):
        start = offset + sum(i * step for i, step in zip(index, steps, strict=True)) * itemsize
        item = data[start : start + itemsize]
        unit = swap or itemsize
        for first in range(0, itemsize, unit):
            out += item[first : first + unit][::-1] if swap else item[first : first + unit]
    return bytes(out)


@settings(deadline=None)
@given(views())
def test_a_view_is_gathered_as_its_strides_say(view):
    offset, itemsize, shape, steps, nbytes = view
    data = storage(nbytes)
    blob = StridedBlob(MemoryBlob(data), offset=offset, itemsize=itemsize, shape=shape, strides=steps)
    expected = by_numpy(data, offset, itemsize, shape, steps)
    assert blob.nbytes == len(expected)
    assert bytes(blob.view()) == expected


@settings(deadline=None)
@given(views(), st.integers(1, 200))
def test_pieces_joined_are_the_whole(view, size):
    offset, itemsize, shape, steps, nbytes = view
    blob = StridedBlob(MemoryBlob(storage(nbytes)), offset=offset, itemsize=itemsize, shape=shape, strides=steps)
    pieces = list(blob.chunks(size))
    assert b"".join(pieces) == bytes(blob.view())
    assert all(piece.nbytes <= max(size, itemsize) for piece in pieces)


@settings(deadline=None)
@given(views(), st.data())
def test_big_endian_units_are_turned_round(view, data):
    offset, itemsize, shape, steps, nbytes = view
    swap = data.draw(
        st.sampled_from([unit for unit in (2, 4, 8) if itemsize % unit == 0 and itemsize <= 2 * unit] or [0])
    )
    raw = storage(nbytes)
    blob = StridedBlob(MemoryBlob(raw), offset=offset, itemsize=itemsize, shape=shape, strides=steps, swap=swap)
    expected = by_numpy(raw, offset, itemsize, shape, steps, swap)
    assert bytes(blob.view()) == expected
    assert b"".join(blob.chunks(64)) == expected


def test_big_endian_complex_numbers_keep_their_halves_in_place():
    values = np.array([[1 + 2j, 3 - 4j], [5 + 6j, 7 + 8j]])
    blob = StridedBlob(
        MemoryBlob(values.astype(">c16").tobytes()), offset=0, itemsize=16, shape=(2, 2), strides=(1, 2), swap=8
    )
    assert np.frombuffer(blob.view(), "<c16").reshape(2, 2).tolist() == values.T.tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 20)), max_size=5))
def test_collapsing_axes_keeps_every_element_in_its_turn(axes):
    shape, steps = tuple(extent for extent, _ in axes), tuple(step for _, step in axes)

    def places(shape, steps):
        return [sum(i * step for i, step in zip(index, steps, strict=True)) for index in np.ndindex(*shape)]

    fewer = collapse(shape, steps)
    assert places(*fewer) == places(shape, steps)
    assert len(fewer[0]) <= len(shape)


def test_more_axes_than_numpy_has_are_no_obstacle():
    shape, steps = (1, 2) * 100, (7, 0) * 99 + (7, 1)
    assert collapse(shape[-8:], steps[-8:]) == ((8, 2), (0, 1))
    blob = StridedBlob(
        MemoryBlob(b"abcdef"), offset=1, itemsize=1, shape=(1,) * 200 + (2, 2), strides=(9,) * 200 + (2, 1)
    )
    assert bytes(blob.view()) == b"bcde"


def test_what_lies_in_order_is_not_copied():
    data = bytearray(100)
    blob = StridedBlob(MemoryBlob(data), offset=8, itemsize=4, shape=(1, 3, 4), strides=(99, 4, 1))
    data[8] = 255
    view = blob.view()
    assert (view.nbytes, view[0]) == (48, 255)
    view[1] = 7
    assert data[9] == 7


@pytest.mark.parametrize("steps", [(4, 1), (1, 3)], ids=["in order", "across"])
def test_a_view_past_its_storage_is_refused_with_both_sizes(steps):
    blob = StridedBlob(MemoryBlob(bytes(40)), offset=4, itemsize=4, shape=(3, 4), strides=steps)
    with pytest.raises(EntryError, match="reaches to byte 52 of a storage of 40 bytes"):
        blob.view()
    with pytest.raises(EntryError, match="reaches to byte 52"):
        next(blob.chunks())


def test_an_empty_tensor_has_no_bytes_whatever_its_strides():
    blob = StridedBlob(MemoryBlob(b""), offset=0, itemsize=4, shape=(0, 1 << 40), strides=(1 << 40, 1))
    assert blob.view().nbytes == 0
    assert list(blob.chunks()) == []


def test_the_storage_is_drawn_once_for_all_pieces():
    drawn = []

    def provider():
        drawn.append(1)
        return bytes(range(100))

    blob = StridedBlob(DeferredBlob(100, provider), offset=0, itemsize=1, shape=(10, 10), strides=(1, 10))
    assert len(list(blob.chunks(10))) == 10
    assert len(drawn) == 1


def test_equal_views_of_one_storage_are_one_tensor():
    base = MemoryBlob(bytes(64), identity="storage")
    one, same, other = (
        StridedBlob(base, offset=offset, itemsize=4, shape=(2, 3), strides=(1, 2)) for offset in (0, 0, 4)
    )
    assert one.identity() == same.identity() != other.identity()
    assert StridedBlob(MemoryBlob(bytes(64)), offset=0, itemsize=4, shape=(2,), strides=(2,)).identity() is None


ORDERS = [(1, 0), (0, 2, 1), (2, 1, 0), (2, 0, 1), (1, 2, 0), (1, 0, 2), (3, 2, 1, 0), (0, 3, 1, 2), (3, 0, 2, 1)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("dtype", ["V2", ">u4", "f8"])
def test_every_path_of_the_copy_agrees_with_numpy(order, dtype, monkeypatch):
    monkeypatch.setattr(strides, "_LONG", 4)
    monkeypatch.setattr(strides, "STRIP", 3)
    extents = (11, 10, 13, 12)[: len(order)]
    count = math.prod(extents)
    data = storage(count * np.dtype(dtype).itemsize)
    array = np.frombuffer(data, dtype).reshape(extents).transpose(order)
    target = np.dtype("<u4") if dtype == ">u4" else None
    expected = np.ascontiguousarray(array if target is None else array.astype(target)).tobytes()
    monkeypatch.setattr(strides, "_THREADED", 1 << 40)
    assert gather(array, target).tobytes() == expected
    monkeypatch.setattr(strides, "_THREADED", 0)
    monkeypatch.setattr(strides, "_processors", lambda: 2)
    assert gather(array, target).tobytes() == expected
    assert b"".join(piece.tobytes() for piece in gather_pieces(array, 100, target)) == expected


@pytest.fixture
def tiny(monkeypatch):
    """Every path of the copy, for arrays of a few bytes: tiles of three rows and runs of 16 bytes, two threads, pieces ahead."""
    for name, value in {"_LONG": 2, "STRIP": 2, "_RUN": 16, "_PAD": 8, "_THREADED": 0, "_AHEAD": 64}.items():
        monkeypatch.setattr(strides, name, value)
    monkeypatch.setattr(strides, "_spare", [])
    monkeypatch.setattr(strides, "_processors", lambda: 3)


@pytest.mark.usefixtures("tiny")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from(["V1", "V2", "V4", "V8", "V16", "V3", ">u2", ">u8", "u1", "f4"]),
    st.sampled_from([1, 50, 1 << 20]),
    st.randoms(use_true_random=False),
)
def test_every_path_agrees_with_numpy_whatever_the_shape(extents, dtype, size, random):
    width = np.dtype(dtype).itemsize
    array = np.frombuffer(storage(math.prod(extents) * width), dtype).reshape(extents)
    axes = list(range(array.ndim))
    random.shuffle(axes)
    array = array.transpose(axes)[tuple(slice(random.choice([0, 1]), None, random.choice([1, 2])) for _ in axes)]
    array = array[tuple(slice(None, None, random.choice([1, -1])) for _ in axes)]
    target = np.dtype(dtype.replace(">", "<")) if dtype[0] == ">" else None
    expected = np.ascontiguousarray(array if target is None else array.astype(target)).tobytes()
    assert gather(array, target).tobytes() == expected
    pieces = [piece.tobytes() for piece in gather_pieces(array, size, target)]
    assert b"".join(pieces) == expected
    assert max(map(len, pieces), default=0) <= max(min(size, 64), width)


@pytest.mark.usefixtures("tiny")
def test_pieces_that_are_kept_are_not_written_over():
    array = np.arange(300, dtype=np.int32).reshape(15, 20).T
    assert np.concatenate(list(gather_pieces(array, 60))).tolist() == array.tolist()


@pytest.mark.usefixtures("tiny")
def test_memory_of_pieces_that_are_gone_is_used_again():
    array = np.arange(300, dtype=np.int32).reshape(15, 20).T
    places = [set(map(lambda piece: piece.ctypes.data, gather_pieces(array, 60))) for _ in range(2)]  # noqa: C417
    assert places[0] == places[1] == {memory.ctypes.data for memory in strides._spare}
    assert len(places[0]) == 2


@pytest.mark.usefixtures("tiny")
def test_pieces_that_nobody_asks_for_are_not_made(monkeypatch):
    real, made = strides._fill, []

    def noting(target, array, *, threads):
        made.append(array.shape)
        real(target, array, threads=threads)

    monkeypatch.setattr(strides, "_fill", noting)
    before = set(threading.enumerate())
    pieces = gather_pieces(np.arange(300, dtype=np.int32).reshape(15, 20).T, 60)
    next(pieces)
    pieces.close()
    assert len(made) == 2
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.daemon]


@pytest.mark.usefixtures("tiny")
def test_what_fails_ahead_is_raised_at_the_piece_that_it_was(monkeypatch):
    real, calls = strides._fill, []

    def failing(target, array, *, threads):
        calls.append(array)
        if len(calls) == 3:
            raise MemoryError("no room")
        real(target, array, threads=threads)

    monkeypatch.setattr(strides, "_fill", failing)
    array = np.arange(300, dtype=np.int32).reshape(15, 20).T
    pieces = gather_pieces(array, 60)
    assert [next(pieces).tolist() for _ in range(2)] == [[row.tolist()] for row in array[:2]]
    with pytest.raises(MemoryError, match="no room"):
        next(pieces)


@pytest.mark.parametrize("dtype", ["V1", "V2", "V4", "V8", ">u4"])
@pytest.mark.parametrize("shape", [(1030, 2051), (3, 1025, 700), (2, 700, 3, 530)], ids=str)
def test_large_planes_are_turned_at_their_true_size(shape, dtype):
    array = np.frombuffer(storage(math.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)
    turned = array.swapaxes(-1, 1 if len(shape) > 2 else 0)
    target = np.dtype("<u4") if dtype == ">u4" else None
    expected = np.ascontiguousarray(turned if target is None else turned.astype(target)).tobytes()
    assert gather(turned, target).tobytes() == expected
    assert b"".join(gather_pieces(turned, 1 << 20, target)) == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_arrays_turned_and_reversed_are_gathered(extents, random):
    array = np.arange(math.prod(extents), dtype=np.int32).reshape(extents)
    axes = list(range(array.ndim))
    random.shuffle(axes)
    array = array.transpose(axes)[tuple(slice(None, None, random.choice([1, -1, 2, -3])) for _ in axes)]
    assert gather(array).tolist() == array.tolist()
    assert gather(array).flags.c_contiguous


def test_a_failure_of_the_second_thread_is_not_lost(monkeypatch):
    real = strides._copy
    calls = []

    def failing(target, array):
        calls.append(array)
        if len(calls) == 1:
            raise MemoryError("no room")
        real(target, array)

    monkeypatch.setattr(strides, "_THREADED", 0)
    monkeypatch.setattr(strides, "_copy", failing)
    monkeypatch.setattr(strides, "_processors", lambda: 2)
    with pytest.raises(MemoryError, match="no room"):
        gather(np.arange(10).reshape(2, 5).T)
