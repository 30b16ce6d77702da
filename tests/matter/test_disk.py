"""The atomic writer: what it writes, in which order, and what is left when that fails."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descriptors import open_below
from firekeep.blobs import DeferredBlob, MemoryBlob, StridedBlob, WindowBlob
from firekeep.disk import Part, WritePlan, to_bytes, write_file
from firekeep.disk import _release as release
from firekeep.disk import _stream as stream
from firekeep.disk import _target as target
from firekeep.errors import EntryError, TruncatedError
from firekeep.sources import FileSource
from matter.plans import failing, names_in, plan_of, plan_with


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=60), st.sampled_from("mdsw")), max_size=12),
    st.integers(0, 30),
    st.integers(1, 50),
)
def test_a_file_is_its_parts_and_zeros_between_them(tmp_path_factory, parts, tail, batch):
    folder = tmp_path_factory.mktemp("plan")
    window = folder / "source"
    window.write_bytes(b"".join(value for _, value, _ in parts))
    source = FileSource(window)
    expected, planned, at = bytearray(), [], 0
    for gap, value, kind in parts:
        expected += bytes(gap)
        if kind == "m":
            blob = MemoryBlob(value)
        elif kind == "d":
            blob = DeferredBlob(len(value), lambda value=value: value)
        elif kind == "s":
            blob = StridedBlob(MemoryBlob(value[::-1] * 2), offset=0, itemsize=1, shape=(len(value),), strides=(1,))
            value = value[::-1]
        else:
            blob = WindowBlob(source, at, len(value))
        planned.append(Part(len(expected), blob, "t"))
        expected += value
        at += blob.nbytes
    expected += bytes(tail)
    plan = WritePlan(nbytes=len(expected), parts=planned)
    with pytest.MonkeyPatch.context() as patch:
        for small in (0, 20, 1000):
            patch.setattr(stream, "SMALL", small)
            patch.setattr(stream, "CHUNK", batch)
            assert write_file(folder / "out", plan, durable=small == 0).read_bytes() == expected
    assert to_bytes(plan) == expected
    source.close()


def test_large_tensors_are_written_in_pieces_and_whole(tmp_path):
    array = np.random.default_rng(3).integers(0, 256, (4300, 5000), dtype=np.uint8)
    plan = plan_with(
        MemoryBlob(array.data),
        StridedBlob(MemoryBlob(array.data), offset=0, itemsize=1, shape=(5000, 4300), strides=(1, 5000)),
        MemoryBlob(b"end"),
    )
    write_file(tmp_path / "out", plan)
    assert (tmp_path / "out").read_bytes() == array.tobytes() + array.T.tobytes() + b"end"


def test_a_file_of_nothing_is_empty(tmp_path):
    assert write_file(tmp_path / "out", WritePlan(nbytes=0, parts=[])).read_bytes() == b""
    assert to_bytes(WritePlan(nbytes=0, parts=[])) == b""


def test_parts_that_overlap_are_a_mistake_and_nothing_is_kept_of_it(tmp_path):
    plan = WritePlan(nbytes=6, parts=[Part(0, MemoryBlob(b"0123")), Part(2, MemoryBlob(b"ab"))])
    with pytest.raises(ValueError, match="a part begins at 2, 2 bytes before the end of the one before it"):
        write_file(tmp_path / "out", plan)
    assert names_in(tmp_path) == []


def test_parts_past_the_end_are_a_mistake(tmp_path):
    plan = WritePlan(nbytes=3, parts=[Part(0, MemoryBlob(b"0123"))])
    with pytest.raises(ValueError, match="a part begins at 3"):
        write_file(tmp_path / "out", plan)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_short_writes_are_gone_on_with(tmp_path, monkeypatch, limit):
    real = os.pwrite

    def short(fd, data, offset):
        return real(fd, data[:limit], offset)

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(stream, "SMALL", 5)
    write_file(tmp_path / "out", plan_of(b"abc", b"0123456789", b"x", gap=3))
    assert (tmp_path / "out").read_bytes() == b"head\0\0\0abc\0\0\0" + b"0123456789\0\0\0x"


def test_a_system_that_takes_no_more_bytes_is_not_asked_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    with pytest.raises(OSError, match="takes no more bytes"):
        write_file(tmp_path / "out", plan_of(b"abc"))
    assert names_in(tmp_path) == []


@pytest.fixture
def journal(monkeypatch):
    """Names of the calls that make a save durable, in the order they happen."""
    calls = []

    def watch(owner, name, said):
        real = getattr(owner, name)

        def watched(*args, **kwargs):
            calls.append(said(*args))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(os, "fsync", lambda fd: "sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
    watch(os, "rename", lambda *_: "rename")
    watch(os, "link", lambda *_: "link")
    watch(os, "unlink", lambda *_: "unlink")
    watch(os, "pwrite", lambda *_: "write")
    return calls


def test_a_save_is_on_the_disk_before_it_has_its_name_and_so_is_the_name_before_it_returns(tmp_path, journal):
    write_file(tmp_path / "out", plan_of(b"!"))
    assert journal == ["write", "sync file", "rename", "sync folder"]


def test_an_exclusive_save_is_durable_alike(tmp_path, journal):
    write_file(tmp_path / "out", plan_of(b"!"), overwrite=False)
    assert journal == ["write", "sync file", "link", "unlink", "sync folder"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_save_that_need_not_last_is_not_synced_and_atomic_all_the_same(tmp_path, journal, overwrite):
    write_file(tmp_path / "out", plan_of(b"!"), durable=False, overwrite=overwrite)
    assert journal == (["write", "rename"] if overwrite else ["write", "link", "unlink"])
    assert (tmp_path / "out").read_bytes() == b"head!"


def test_a_sealed_header_is_written_before_the_sync(tmp_path, journal):
    write_file(tmp_path / "out", plan_of(b"!"), seal=lambda: b"HEAD")
    assert journal == ["write", "write", "sync file", "rename", "sync folder"]


def fail_folder_sync(monkeypatch, number: int) -> None:
    real = os.fsync

    def fsync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_folder_that_cannot_be_synced_is_told_apart_from_a_failed_save(tmp_path, monkeypatch):
    fail_folder_sync(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=r"the file was saved, but .* may not survive a power loss .*out'"):
        write_file(tmp_path / "out", plan_of(b"!"))
    assert (tmp_path / "out").read_bytes() == b"head!"
    assert names_in(tmp_path) == ["out"]


def test_a_file_system_that_knows_no_sync_of_folders_is_no_failure(tmp_path, monkeypatch):
    fail_folder_sync(monkeypatch, errno.EINVAL)
    write_file(tmp_path / "out", plan_of(b"!"))
    assert (tmp_path / "out").read_bytes() == b"head!"


def test_the_disk_starts_on_batches_of_a_durable_save_only(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, nbytes, advice: started.append((offset, nbytes)))
    monkeypatch.setattr(stream, "CHUNK", 100_000)
    plan = plan_of(bytes(250_000), bytes(10), bytes(70_000))
    write_file(tmp_path / "out", plan)
    assert started == [(0, 100_004), (100_004, 100_000), (200_004, 120_010)]
    started.clear()
    write_file(tmp_path / "out", plan, durable=False)
    assert started == []


@pytest.mark.parametrize("where", ["file", "memory"])
def test_every_byte_of_each_tensor_is_seen_in_order_and_no_other(tmp_path, monkeypatch, where):
    monkeypatch.setattr(stream, "CHUNK", 100_000)
    values = [bytes(range(100)), b"", os.urandom(20_000_000)]
    array = np.arange(90_000, dtype=np.uint8).reshape(300, 300)
    strided = StridedBlob(MemoryBlob(array.data), offset=0, itemsize=1, shape=(300, 300), strides=(1, 300))
    plan = plan_of(*values)
    plan = WritePlan(nbytes=plan.nbytes + 90_000, parts=[*plan.parts, Part(plan.nbytes, strided, "strided")])
    seen: dict[str, bytearray] = {}

    def observe(name, view):
        seen.setdefault(name, bytearray()).extend(view)

    if where == "file":
        data = write_file(tmp_path / "out", plan, observe=observe).read_bytes()
    else:
        data = to_bytes(plan, observe=observe)
    assert list(seen) == ["t0", "t1", "t2", "strided"]
    assert list(seen.values()) == [*values, array.T.tobytes()]
    assert data == b"head" + b"".join(seen.values())


def test_digests_of_what_was_written_can_go_into_the_header(tmp_path):
    digest = hashlib.sha256()
    first = MemoryBlob(bytes(32))
    plan = WritePlan(nbytes=82, parts=[Part(0, first), Part(32, DeferredBlob(50, lambda: b"x" * 50), "x")])
    options = {"observe": lambda name, view: digest.update(view), "seal": lambda: digest.digest()}
    expected = hashlib.sha256(b"x" * 50).digest() + b"x" * 50
    assert write_file(tmp_path / "out", plan, **options).read_bytes() == expected
    digest = hashlib.sha256()
    assert to_bytes(plan, **options) == expected


@pytest.mark.parametrize("header", [b"hea", b"heads", b""])
def test_a_sealed_header_of_another_length_is_a_mistake(tmp_path, header):
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(ValueError, match=f"has {len(header)} bytes, and 4 are kept for it"):
        write_file(tmp_path / "out", plan_of(b"!"), seal=lambda: header)
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names_in(tmp_path) == ["out"]


def test_progress_adds_up_to_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 50_000)
    steps = []
    plan = plan_of(b"abc", bytes(300_000), b"", bytes(70_000), gap=17)
    write_file(tmp_path / "out", plan, progress=steps.append)
    assert sum(steps) == plan.nbytes
    assert all(0 < step <= 50_000 + 2 * stream.SMALL for step in steps)


FAILURES = {
    "error": (lambda: failing(RuntimeError("no such shard")), RuntimeError, "no such shard"),
    "system": (lambda: failing(OSError(5, "Input/output error")), OSError, "Input/output error"),
    "memory": (lambda: failing(MemoryError("no room")), MemoryError, "no room"),
    "interrupt": (lambda: failing(KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
    "exit": (lambda: failing(SystemExit(3)), SystemExit, "3"),
    "length": (lambda: DeferredBlob(4, lambda: b"123"), EntryError, "tensor 't2': 4 bytes were declared, 3 came"),
    "kind": (lambda: DeferredBlob(4, lambda: None), EntryError, "tensor 't2': bytes were expected, NoneType came"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("there", [True, False], ids=["over a file", "new"])
@pytest.mark.parametrize("before", [b"first", bytes(9 << 20)], ids=["at once", "after some megabytes"])
def test_a_provider_that_fails_leaves_the_old_file_and_no_litter(tmp_path, failure, there, before):
    make, kind, words = FAILURES[failure]
    if there:
        (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(kind, match=words) as caught:
        write_file(tmp_path / "out", plan_with(MemoryBlob(before), MemoryBlob(b"1"), make(), MemoryBlob(b"3")))
    assert names_in(tmp_path) == (["out"] if there else [])
    assert not there or (tmp_path / "out").read_bytes() == b"old"
    if isinstance(caught.value, Exception) and not isinstance(caught.value, EntryError):
        assert caught.value.__notes__ == ["while the bytes of tensor 't2' were drawn"]


@pytest.mark.parametrize("size", [3, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("observed", [True, False])
def test_a_blob_that_gives_another_length_than_it_says_is_refused(tmp_path, size, observed):
    for came in (size - 1, size + 1):
        blob = MemoryBlob(bytes(came))
        blob.nbytes = size
        observe = (lambda name, view: None) if observed else None
        with pytest.raises(EntryError, match=f"tensor 't0': {size} bytes were declared, {came} came"):
            write_file(tmp_path / "out", plan_with(blob), observe=observe)
        with pytest.raises(EntryError, match=f"tensor 't0': {size} bytes were declared, {came} came"):
            to_bytes(plan_with(blob))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("who", ["observe", "progress", "seal"])
def test_a_callback_that_fails_leaves_the_old_file_and_no_litter(tmp_path, who):
    def fail(*args):
        raise RuntimeError("enough")

    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="enough"):
        write_file(tmp_path / "out", plan_of(b"abc"), **{who: fail})
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names_in(tmp_path) == ["out"]


def test_a_failed_save_leaves_no_descriptor_open(tmp_path):
    for _ in range(5):
        with pytest.raises(RuntimeError):
            write_file(tmp_path / "out", plan_with(failing(RuntimeError())))
        write_file(tmp_path / "out", plan_of(b"abc"))
    assert open_below(tmp_path) == []


def test_a_source_cut_short_while_it_is_written_is_told_by_the_tensor(tmp_path):
    place = tmp_path / "source"
    place.write_bytes(bytes(1 << 20))
    source = FileSource(place)
    mapped = MemoryBlob(source.view(0, 1 << 20))

    def cut():
        os.truncate(place, 4096)
        return b"1"

    with pytest.raises(TruncatedError, match="tensor 't1': its bytes are gone: the file they are read from"):
        write_file(tmp_path / "out", plan_with(DeferredBlob(1, cut), mapped))
    source.close()
    assert names_in(tmp_path) == ["source"]


def test_a_file_can_be_saved_over_itself_while_it_is_read(tmp_path):
    # unsloth-zoo#1078: the truncation came before the reads
    place = tmp_path / "weights"
    data = os.urandom(300_000)
    place.write_bytes(data)
    source = FileSource(place)
    turned = [WindowBlob(source, 200_000, 100_000), WindowBlob(source, 0, 200_000)]
    view = source.view(10, 20)
    write_file(place, plan_with(*turned))
    assert place.read_bytes() == data[200_000:] + data[:200_000]
    assert view == data[10:30]
    assert source.view(0, 300_000) == data
    source.close()


def test_a_large_old_file_is_let_go_of_in_the_background_and_its_descriptor_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "LARGE", 1)
    closed = []
    real = os.close
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(os.fstat(fd).st_ino), real(fd))[1])
    (tmp_path / "out").write_bytes(b"old")
    inode = (tmp_path / "out").stat().st_ino
    write_file(tmp_path / "out", plan_of(b"!"))
    release.wait_for_releases()
    assert inode in closed
    gc.collect()
    assert (tmp_path / "out").read_bytes() == b"head!"


def test_space_that_is_just_being_given_back_is_waited_for(tmp_path, monkeypatch):
    answers = iter([3, 4])
    waited = []
    monkeypatch.setattr(target, "_free_bytes", lambda folder: next(answers))
    monkeypatch.setattr(target, "wait_for_releases", lambda: waited.append(1) or True)
    write_file(tmp_path / "out", plan_with(MemoryBlob(b"1234")))
    assert waited == [1]


def test_an_interpreter_that_starts_no_more_threads_lets_go_at_once(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(release, "LARGE", 1)
    monkeypatch.setattr(release.threading.Thread, "start", refuse)
    (tmp_path / "out").write_bytes(b"old")
    write_file(tmp_path / "out", plan_of(b"!"))
    assert open_below(tmp_path) == []
    assert (tmp_path / "out").read_bytes() == b"head!"


@pytest.mark.parametrize("pid", ["999999999", str(os.getpid())])
def test_what_a_killed_save_left_is_removed_by_a_later_one(tmp_path, pid):
    old, new = tmp_path / f"out.bpk.{pid}-900000.tmp", tmp_path / f"out.bpk.{pid}-900001.tmp"
    nested = tmp_path / f"out.bpk.{pid}-1.tmp.{pid}-900002.tmp"
    other, alive = tmp_path / f"out2.bpk.{pid}-0.tmp", tmp_path / "out.bpk.1-0.tmp"
    for file in (old, new, nested, other, alive):
        file.write_bytes(b"left")
    for file in (old, nested, other, alive):
        os.utime(file, (0, 0))
    write_file(tmp_path / "out.bpk", plan_of(b"!"))
    assert {file.name for file in tmp_path.iterdir()} == {"out.bpk", new.name, other.name, alive.name}
