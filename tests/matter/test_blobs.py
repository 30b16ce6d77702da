"""Where bytes are: sources that hold a file, and blobs that give its windows."""

from __future__ import annotations

import errno
import gc
import mmap
import os

import numpy as np
import pytest

from descriptors import open_below
from firekeep.blobs import Blob, DeferredBlob, MemoryBlob, StridedBlob, UnsharedBlob, WindowBlob
from firekeep.errors import EntryError, TruncatedError
from firekeep.sources import FileSource, MemorySource, remaining

DATA = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "weights"
    place.write_bytes(DATA)
    return place


@pytest.fixture(params=["file", "private file", "memory"])
def source(request, path):
    made = MemorySource(DATA) if request.param == "memory" else FileSource(path, private=request.param != "file")
    yield made
    made.close()


def test_a_source_gives_windows_of_its_bytes(source):
    assert source.size == len(DATA)
    assert source.view(0, len(DATA)) == DATA
    assert source.view(300, 7) == DATA[300:307]
    assert source.view(len(DATA), 0).nbytes == 0


@pytest.mark.parametrize(("offset", "length"), [(0, len(DATA) + 1), (len(DATA) + 1, 0), (-1, 1), (4, -1), (1 << 70, 1)])
def test_a_window_outside_is_refused_with_its_place_and_the_size(source, offset, length):
    with pytest.raises(
        TruncatedError, match=f"bytes {offset} to {offset + length} lie outside the file of {len(DATA)}"
    ):
        source.view(offset, length)


def test_views_of_a_file_are_read_only(path):
    source = FileSource(path)
    view = source.view(0, 10)
    assert view.readonly
    source.close()


def test_views_of_a_private_file_can_be_written_and_the_file_stays(path):
    source = FileSource(path, private=True)
    view = source.view(5, 10)
    view[:] = bytes(10)
    assert source.view(5, 10) == bytes(10)
    source.close()
    assert view == bytes(10)
    assert path.read_bytes() == DATA


def test_views_stay_valid_after_close_and_after_the_file_is_replaced(path):
    source = FileSource(path)
    view = source.view(100, 50)
    other = path.with_name("other")
    other.write_bytes(bytes(len(DATA)))
    other.replace(path)
    assert source.view(100, 50) == DATA[100:150]
    source.close()
    assert view == DATA[100:150]


def test_a_closed_source_says_so(path):
    source = FileSource(path)
    source.close()
    source.close()
    assert source.fileno() is None
    with pytest.raises(ValueError, match="the file is closed"):
        source.view(0, 1)


def test_closing_gives_the_descriptor_and_the_mapping_back(path):
    before = open_below(path)
    for _ in range(20):
        source = FileSource(path)
        source.view(0, 10)
        source.close()
    gc.collect()
    assert open_below(path) == before


def test_a_file_that_became_shorter_is_refused_before_it_is_touched(path):
    source = FileSource(path)
    source.view(0, 1)
    os.truncate(path, 100)
    with pytest.raises(TruncatedError, match=f"had {len(DATA)} bytes when it was opened and has 100 now"):
        source.view(90, 20)
    assert source.view(0, 100) == DATA[:100]
    source.close()


def test_an_empty_file_has_an_empty_view(tmp_path):
    place = tmp_path / "empty"
    place.touch()
    source = FileSource(place)
    assert source.view(0, 0).nbytes == 0
    with pytest.raises(TruncatedError, match="outside the file of 0 bytes"):
        source.view(0, 1)
    source.close()


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("private", [False, True])
def test_a_file_that_cannot_be_mapped_is_read(path, monkeypatch, number, private):
    # safetensors#528, #693: some network and FUSE file systems refuse mmap
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(mmap, "mmap", refuse)
    source = FileSource(path, private=private)
    view = source.view(3, 500)
    assert view == DATA[3:503]
    assert view.readonly is not private
    source.close()


def test_a_file_that_is_read_and_became_shorter_meanwhile_is_not_filled_with_zeros(path, monkeypatch):
    def cut_and_refuse(*args, **kwargs):
        os.truncate(path, 10)
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", cut_and_refuse)
    source = FileSource(path)
    with pytest.raises(TruncatedError, match=f"had {len(DATA)} bytes when it was opened and 10 could be read"):
        source.view(0, 5)
    source.close()


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        FileSource(tmp_path)


def test_a_pipe_is_refused_at_once_and_with_the_way_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="write its bytes to a file first"):
        FileSource(tmp_path / "pipe")


def test_a_refused_file_leaves_no_descriptor_behind(tmp_path):
    with pytest.raises(IsADirectoryError):
        FileSource(tmp_path)
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("data", [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), np.frombuffer(b"bytes", "u1")])
def test_any_buffer_is_bytes_in_memory(data):
    assert MemoryBlob(data).view() == b"bytes"
    assert MemorySource(data).view(0, 5) == b"bytes"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 2)])
def test_an_empty_buffer_of_any_shape_is_no_bytes(shape):
    empty = memoryview(np.empty(shape, np.float32))
    assert MemoryBlob(empty).nbytes == 0
    assert DeferredBlob(0, lambda: empty).view().nbytes == 0


def test_what_is_no_buffer_is_refused_by_its_type():
    with pytest.raises(EntryError, match="bytes were expected, NoneType came"):
        DeferredBlob(4, lambda: None).view()
    with pytest.raises(EntryError, match="bytes were expected, str came"):
        MemoryBlob("text")


def test_a_strided_buffer_is_refused_not_scrambled():
    # safetensors#825: memory order is not element order
    with pytest.raises(EntryError, match="do not lie in one piece"):
        DeferredBlob(12, lambda: memoryview(np.arange(6, dtype=np.uint8)[::2])).view()
    with pytest.raises(EntryError, match="do not lie in one piece"):
        MemoryBlob(memoryview(np.asfortranarray(np.ones((2, 3)))))


@pytest.mark.parametrize("came", [b"", b"123", b"12345"])
def test_a_provider_that_gives_another_length_is_refused_with_both(came):
    with pytest.raises(EntryError, match=f"4 bytes were declared, {len(came)} came"):
        DeferredBlob(4, lambda: came).view()


def test_a_provider_is_called_anew_each_time_and_nothing_is_kept():
    calls = []

    def provider():
        calls.append(1)
        return b"abcd"

    blob = DeferredBlob(4, provider)
    assert calls == []
    assert blob.view() == blob.view() == b"abcd"
    assert len(calls) == 2


def blobs_of(data: bytes) -> list[Blob]:
    source = MemorySource(b"??" + data)
    return [
        MemoryBlob(data),
        WindowBlob(source, 2, len(data)),
        DeferredBlob(len(data), lambda: data),
        UnsharedBlob(WindowBlob(source, 2, len(data))),
        StridedBlob(MemoryBlob(data), offset=0, itemsize=1, shape=(len(data),), strides=(1,)),
    ]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("size", [1, 3, 10, 100])
def test_chunks_of_every_kind_are_the_bytes_in_order(kind, size):
    blob = blobs_of(b"0123456789")[kind]
    chunks = list(blob.chunks(size))
    assert b"".join(chunks) == blob.view() == b"0123456789"
    assert all(chunk.nbytes <= size for chunk in chunks)
    assert len(chunks) == -(-10 // size)


def test_equal_windows_of_one_source_are_one_tensor_and_of_two_are_not():
    one, two = MemorySource(DATA), MemorySource(DATA)
    assert WindowBlob(one, 8, 16).identity() == WindowBlob(one, 8, 16).identity()
    assert WindowBlob(one, 8, 16).identity() != WindowBlob(one, 8, 17).identity()
    assert WindowBlob(one, 8, 16).identity() != WindowBlob(two, 8, 16).identity()


def test_an_unshared_blob_is_nobody_elses_and_keeps_its_window():
    source = MemorySource(DATA)
    base = WindowBlob(source, 8, 16)
    blob = UnsharedBlob(base)
    assert blob.identity() is None
    assert blob.window() == (source, 8)
    assert blob.view() == DATA[8:24]


def test_bytes_in_memory_have_no_identity_unless_given_one():
    assert MemoryBlob(b"x").identity() is None
    assert MemoryBlob(b"x", identity=("storage", 1)).identity() == ("storage", 1)
    assert DeferredBlob(1, lambda: b"x", identity=7).identity() == 7


@pytest.mark.parametrize("done", range(11))
def test_what_remains_of_buffers_is_everything_after_what_is_done(done):
    views = [memoryview(b"012"), memoryview(b""), memoryview(b"3456"), memoryview(b"789")]
    assert b"".join(remaining(views, done)) == b"0123456789"[done:]
