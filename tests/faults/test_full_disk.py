"""A disk that is full, a quota, a limit on file sizes: told before anything is drawn where it can be, and nothing is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from firekeep.blobs import DeferredBlob
from firekeep.disk import _system as system
from firekeep.disk import write_file
from firekeep.errors import DiskFullError
from matter.plans import failing, names_in, plan_of, plan_with


def statvfs_with(monkeypatch, free: int, *, blocks: int = 1000) -> None:
    real = os.statvfs

    def statvfs(path):
        values = list(real(path))
        values[1], values[2], values[3], values[4] = 1, blocks, free, free  # frsize, blocks, bfree, bavail
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_will_not_fit_is_refused_before_a_byte_is_drawn(tmp_path, monkeypatch, there):
    if there:
        (tmp_path / "out").write_bytes(b"old")
    statvfs_with(monkeypatch, 3)
    with pytest.raises(DiskFullError, match=f"out: 4 bytes are needed and 3 are free in {tmp_path}") as caught:
        write_file(tmp_path / "out", plan_with(failing(AssertionError("drawn"))))
    assert (caught.value.limit, caught.value.actual, caught.value.errno) == (3, 4, errno.ENOSPC)
    assert ("the old file stays as it was" in str(caught.value)) is there
    assert names_in(tmp_path) == (["out"] if there else [])


def test_a_file_that_just_fits_is_written(tmp_path, monkeypatch):
    statvfs_with(monkeypatch, 7)
    assert write_file(tmp_path / "out", plan_of(b"abc")).read_bytes() == b"headabc"


def test_a_file_system_that_tells_no_sizes_is_believed(tmp_path, monkeypatch):
    statvfs_with(monkeypatch, 0, blocks=0)
    assert write_file(tmp_path / "out", plan_of(b"abc")).read_bytes() == b"headabc"


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "fewer are free"), (errno.EDQUOT, "your quota leaves fewer")]
)
def test_space_that_cannot_be_set_aside_is_told_before_a_byte_is_drawn(tmp_path, monkeypatch, number, words):
    def refuse(fd, nbytes):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(system, "fallocate", refuse)
    plan = plan_with(failing(AssertionError("drawn")), nbytes=2 << 20)
    with pytest.raises(DiskFullError, match=f"{2 << 20} bytes are needed and {words} in") as caught:
        write_file(tmp_path / "out", plan)
    assert caught.value.errno == number
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_set_space_aside_is_written_to_all_the_same(tmp_path, monkeypatch, number):
    def refuse(fd, nbytes):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(system, "fallocate", refuse)
    data = os.urandom(2 << 20)
    assert write_file(tmp_path / "out", plan_of(data)).read_bytes() == b"head" + data


def test_space_set_aside_is_there_before_the_first_byte(tmp_path):
    sizes = []

    def look():
        sizes.extend(path.stat().st_size for path in tmp_path.iterdir())
        return bytes(2 << 20)

    write_file(tmp_path / "out", plan_with(DeferredBlob(2 << 20, look), nbytes=3 << 20))
    assert sizes == [3 << 20]
    assert (tmp_path / "out").stat().st_size == 3 << 20


def test_a_disk_that_fills_up_meanwhile_keeps_the_old_file(tmp_path, monkeypatch):
    # burn#5399, open_lm#154: a full disk destroyed the only copy
    real, calls = os.pwrite, []

    def fill_up(fd, data, offset):
        calls.append(offset)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", fill_up)
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(DiskFullError, match=r"out: 400004 bytes are needed and fewer are free .* Free space there"):
        write_file(tmp_path / "out", plan_of(*[bytes(100_000)] * 4))
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names_in(tmp_path) == ["out"]


def test_a_full_disk_that_a_provider_met_is_not_taken_for_the_destinations(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device", "/elsewhere/cache")
    with pytest.raises(OSError, match="/elsewhere/cache") as caught:
        write_file(tmp_path / "out", plan_with(failing(error)))
    assert caught.value is error


LIMITED = """
import resource, sys
from firekeep.blobs import MemoryBlob
from firekeep.disk import Part, WritePlan, write_file

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
parts = [Part(index * 60_000, MemoryBlob(bytes(60_000)), f"t{index}") for index in range(int(sys.argv[2]))]
try:
    write_file(sys.argv[1], WritePlan(nbytes=60_000 * len(parts), parts=parts))
except OSError as error:
    print(type(error).__name__, error)
    sys.exit(4)
"""


@pytest.mark.parametrize("count", [3, 30], ids=["while writing", "while space is set aside"])
def test_a_limit_on_the_size_of_files_is_told_and_the_old_file_kept(tmp_path, count):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    words = [sys.executable, "-c", LIMITED, str(path), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert f"allows less than {60_000 * count} bytes" in done.stdout
    assert "ulimit -f" in done.stdout
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["out"]
