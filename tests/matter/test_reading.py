"""Windows read into own memory: the right bytes, in the right order, and no more memory than the files hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep import reading
from firekeep.errors import LimitError, TruncatedError
from firekeep.reading import read_into, read_windows
from firekeep.sources import FileSource, MemorySource

DATA = bytes(np.random.default_rng(7).integers(0, 256, 70_000, dtype=np.uint8))


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("reading") / "data"
    place.write_bytes(DATA)
    return place


@pytest.fixture
def small_steps(monkeypatch):
    """Arenas, jobs and vectors so small that every seam between them is met."""
    monkeypatch.setattr(reading, "ARENA", 4096)
    monkeypatch.setattr(reading, "JOB", 1000)
    monkeypatch.setattr(reading, "GAP", 100)
    monkeypatch.setattr(reading, "_VECTORS", 4)


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


windows_of_data = st.lists(
    st.tuples(st.integers(0, len(DATA)), st.integers(0, 9000)).map(lambda w: (w[0], min(w[1], len(DATA) - w[0]))),
    max_size=40,
)


@settings(deadline=None)
@given(windows_of_data)
def test_any_windows_of_a_file_come_as_they_are(path, windows):
    source = FileSource(path)
    views = read_windows([(source, offset, length) for offset, length in windows])
    source.close()
    assert [bytes(view) for view in views] == [DATA[offset : offset + length] for offset, length in windows]


@settings(deadline=None)
@given(windows=windows_of_data, pieces=st.lists(st.integers(1, 900), min_size=1, max_size=5))
def test_seams_of_memory_and_short_reads_lose_nothing(path, windows, pieces):
    real, turn = os.preadv, iter(pieces * 100_000)

    def short(fd, buffers, offset):
        return real(fd, [buffers[0][: next(turn)]], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", short)
        for name, value in {"ARENA": 4096, "JOB": 1000, "GAP": 100, "_VECTORS": 4}.items():
            patch.setattr(reading, name, value)
        source = FileSource(path)
        views = read_windows([(source, offset, length) for offset, length in windows])
        source.close()
    assert [bytes(view) for view in views] == [DATA[offset : offset + length] for offset, length in windows]


@settings(deadline=None)
@given(windows_of_data)
def test_a_source_in_memory_is_read_alike(windows):
    source = MemorySource(DATA)
    views = read_windows([(source, offset, length) for offset, length in windows])
    assert [bytes(view) for view in views] == [DATA[offset : offset + length] for offset, length in windows]


def test_windows_of_several_sources_are_told_apart(path, tmp_path, small_steps):
    other = tmp_path / "other"
    other.write_bytes(DATA[::-1])
    one, two, three = FileSource(path), FileSource(other), MemorySource(DATA[5:])
    views = read_windows([(two, 10, 5000), (one, 10, 5000), (three, 10, 5000), (two, 5010, 10), (one, 5010, 10)])
    one.close()
    two.close()
    backwards = DATA[::-1]
    expected = [backwards[10:5010], DATA[10:5010], DATA[15:5015], backwards[5010:5020], DATA[5010:5020]]
    assert [bytes(view) for view in views] == expected


def test_what_is_read_can_be_written_to_and_the_file_does_not_change(path):
    source = FileSource(path)
    (view,) = read_windows([(source, 100, 50_000)])
    view[:] = bytes(50_000)
    source.close()
    assert path.read_bytes() == DATA


def test_views_outlive_the_source(path):
    source = FileSource(path)
    (view,) = read_windows([(source, 1, 3)])
    source.close()
    assert bytes(view) == DATA[1:4]


@settings(deadline=None)
@given(windows_of_data)
def test_windows_that_are_not_tied_come_alike_and_share_nothing(path, windows):
    source = FileSource(path)
    views = read_windows([(source, offset, length) for offset, length in windows], tied=False)
    source.close()
    expected = [DATA[offset : offset + length] for offset, length in windows]
    assert [bytes(view) for view in views] == expected
    for place, view in enumerate(views):
        view[:] = bytes([place]) * view.nbytes
    assert [bytes(view) for view in views] == [bytes([place]) * len(data) for place, data in enumerate(expected)]


def test_equal_windows_share_memory_and_so_do_overlapping_ones(path):
    source = FileSource(path)
    whole, same, part = read_windows([(source, 512, 4096), (source, 512, 4096), (source, 1024, 16)])
    source.close()
    assert address(same) == address(whole)
    assert address(part) == address(whole) + 512


def test_many_windows_over_the_same_bytes_take_the_memory_once(path, monkeypatch):
    taken = []
    real = reading._Arena.__init__
    monkeypatch.setattr(
        reading._Arena, "__init__", lambda arena, nbytes: (taken.append(nbytes), real(arena, nbytes))[1]
    )
    source = FileSource(path)
    views = read_windows([(source, offset, 60_000) for offset in range(10_000)])
    source.close()
    assert sum(taken) <= len(DATA) + 64
    assert bytes(views[9_999]) == DATA[9_999:69_999]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_elements_are_aligned_wherever_they_lie_in_the_file(path, itemsize):
    source = FileSource(path)
    starts = [3, 3 + 5 * itemsize, 1000, 20_001, 20_001 + 8 * itemsize + 1, 50_007]
    views = read_windows([(source, start, 3 * itemsize) for start in starts])
    source.close()
    assert [address(view) % itemsize for view in views] == [0] * len(starts)


def test_nothing_asked_is_nothing_given():
    assert read_windows([]) == []


def test_an_empty_window_is_an_empty_view(path):
    source = FileSource(path)
    empty, _ = read_windows([(source, len(DATA), 0), (source, 0, 1)])
    source.close()
    assert empty.nbytes == 0


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, len(DATA) + 1), (len(DATA), 1), (5, -1)])
def test_a_window_outside_the_file_is_refused(path, offset, length):
    source = FileSource(path)
    with pytest.raises(TruncatedError, match=f"outside the file of {len(DATA)} bytes"):
        read_windows([(source, 0, 10), (source, offset, length)])
    source.close()


def test_a_file_that_became_shorter_is_told(tmp_path):
    place = tmp_path / "shrinks"
    place.write_bytes(DATA)
    source = FileSource(place)
    os.truncate(place, 40_000)
    with pytest.raises(TruncatedError, match="ends at 40000 now") as caught:
        read_windows([(source, 0, 30_000), (source, 30_000, 30_000)])
    source.close()
    assert (caught.value.limit, caught.value.actual) == (len(DATA), 40_000)
    assert str(place) in str(caught.value)


def test_a_failure_of_the_helping_thread_reaches_the_caller(path, small_steps, monkeypatch):
    real, calls = os.preadv, iter(range(1000))

    def failing(fd, buffers, offset):
        if next(calls) == 20:
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    source = FileSource(path)
    with pytest.raises(OSError, match="Input/output error"):
        read_windows([(source, 0, len(DATA))])
    source.close()


def test_more_memory_than_there_is_is_refused_by_its_size():
    class Claimed:
        size = 1 << 60
        path = None

        def fileno(self):
            return None

    with pytest.raises(LimitError, match=f"{1 << 60} bytes of memory are needed"):
        read_windows([(Claimed(), 0, 1 << 60)])


@pytest.mark.parametrize("slow", [-1.0, 1e9], ids=["small pages", "huge pages"])
def test_either_kind_of_page_holds_the_same(tmp_path, monkeypatch, slow):
    monkeypatch.setattr(reading, "_SLOW", slow)
    monkeypatch.setattr(reading, "JOB", 3 << 20)
    data = np.random.default_rng(1).integers(0, 256, 9 << 20, dtype=np.uint8).tobytes()
    place = tmp_path / "large"
    place.write_bytes(data)
    source = FileSource(place)
    first, second = read_windows([(source, 1, 5 << 20), (source, (5 << 20) + 1, 4_000_000)])
    source.close()
    assert first == data[1 : (5 << 20) + 1]
    assert second == data[(5 << 20) + 1 : (5 << 20) + 4_000_001]


def test_a_system_without_advice_reads_as_well(path, monkeypatch):
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    source = FileSource(path)
    (view,) = read_windows([(source, 0, len(DATA))])
    source.close()
    assert view == DATA


@settings(deadline=None)
@given(windows_of_data)
def test_windows_are_read_into_memory_that_is_there(path, windows):
    source = FileSource(path)
    targets = [memoryview(bytearray(b"\xee" * length)) for _, length in windows]
    finished: list[int] = []
    read_into([(source, offset, length) for offset, length in windows], targets, finished)
    source.close()
    assert [bytes(view) for view in targets] == [DATA[offset : offset + length] for offset, length in windows]
    assert sorted(finished) == list(range(len(windows)))


@settings(deadline=None)
@given(windows=windows_of_data, in_memory=st.booleans())
def test_seams_between_jobs_lose_nothing(path, windows, in_memory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "JOB", 1000)
        patch.setattr(reading, "GAP", 100)
        patch.setattr(reading, "_VECTORS", 4)
        source = MemorySource(DATA) if in_memory else FileSource(path)
        targets = [memoryview(bytearray(length)) for _, length in windows]
        finished: list[int] = []
        read_into([(source, offset, length) for offset, length in windows], targets, finished)
        source.close()
    assert [bytes(view) for view in targets] == [DATA[offset : offset + length] for offset, length in windows]
    assert sorted(finished) == list(range(len(windows)))


def test_a_failed_read_tells_which_windows_came(path, monkeypatch):
    monkeypatch.setattr(reading, "JOB", 1000)
    monkeypatch.setattr(reading, "THREADS", 1)
    source = FileSource(path)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: 0 if offset == 3500 else real(fd, views, offset))
    targets = [memoryview(bytearray(2500)) for _ in range(3)]
    finished: list[int] = []
    with pytest.raises(TruncatedError, match="ends at 3500 now"):
        read_into([(source, start, 2500) for start in (0, 2500, 5000)], targets, finished)
    source.close()
    assert finished == [0]
    assert bytes(targets[0]) == DATA[:2500]


def test_memory_of_another_length_is_refused(path):
    source = FileSource(path)
    with pytest.raises(ValueError, match="10 bytes does not fit a target of 9"):
        read_into([(source, 0, 10)], [memoryview(bytearray(9))], [])
    with pytest.raises(TruncatedError):
        read_into([(source, len(DATA) - 5, 10)], [memoryview(bytearray(10))], [])
    source.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[Path, bytes]:
    data = np.random.default_rng(2).integers(0, 256, (5 << 20) + 12_345, dtype=np.uint8).tobytes()
    place = tmp_path_factory.mktemp("reading") / "large"
    place.write_bytes(data)
    return place, data


def no_reads(fd, views, offset, flags=0):
    if flags == 0:
        raise AssertionError("this was to come out of a mapping")
    return sum(view.nbytes if isinstance(view, memoryview) else len(view) for view in views)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not tell what is cached")
def test_large_targets_are_copied_out_of_a_mapping(large, monkeypatch):
    place, data = large
    monkeypatch.setattr(os, "preadv", no_reads)
    monkeypatch.setattr(reading, "JOB", 3 << 20)
    source = FileSource(place)
    windows = [(source, 77, 1 << 20), (source, 77 + (1 << 20), 3 << 20), (source, (5 << 20) - 9, 12_354)]
    targets = [memoryview(bytearray(length)) for _, _, length in windows[:2]]
    finished: list[int] = []
    read_into(windows[:2], targets, finished)
    assert [bytes(view) for view in targets] == [data[at : at + length] for _, at, length in windows[:2]]
    assert sorted(finished) == [0, 1]
    with pytest.raises(AssertionError, match="out of a mapping"):
        read_into(windows[2:], [memoryview(bytearray(12_354))], [])  # a small one is read
    source.close()
    assert str(place) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("why", ["not cached", "cannot tell", "cannot map"])
def test_what_cannot_be_copied_out_of_a_mapping_is_read(large, monkeypatch, why):
    place, data = large
    source = FileSource(place)
    if why == "cannot map":
        monkeypatch.setattr(reading.mmap, "mmap", lambda *_, **__: (_ for _ in ()).throw(OSError(19, "No such device")))
    else:
        real = os.preadv

        def asked(fd, views, offset, flags=0):
            if flags:
                raise OSError(11 if why == "not cached" else 95, "no")
            return real(fd, views, offset)

        monkeypatch.setattr(os, "preadv", asked)
    target = memoryview(bytearray(len(data)))
    read_into([(source, 0, len(data))], [target], [])
    source.close()
    assert bytes(target) == data


def test_a_large_file_that_was_cut_short_is_told(tmp_path, large):
    place = tmp_path / "cut"
    place.write_bytes(large[1])
    source = FileSource(place)
    os.truncate(place, 4 << 20)
    with pytest.raises(TruncatedError, match=f"ends at {4 << 20} now"):
        read_into([(source, 0, 5 << 20)], [memoryview(bytearray(5 << 20))], [])
    source.close()


def test_a_slow_huge_page_is_followed_by_ever_more_jobs_of_small_ones(monkeypatch):
    monkeypatch.setattr(reading, "_SLOW", 1.0)

    def asked(seconds, jobs):
        """Give the jobs that ask for a huge page, each of which takes the next time."""
        pages, took = reading._Pages(), iter(seconds)
        found = []
        for job in range(jobs):
            if pages.may_be_huge():
                found.append(job)
                pages.came_in(next(took))
        return found

    fast, slow = 0.0, 2.0
    assert asked([fast] * 5, 5) == [0, 1, 2, 3, 4]
    assert asked([slow] * 5, 20) == [0, 2, 5, 10, 19]
    assert asked([slow, slow, fast, slow, fast], 9) == [0, 2, 5, 6, 8]
