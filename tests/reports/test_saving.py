"""Saving over a good file: what is left when it goes wrong, and what becomes of modes, links and open files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import firekeep
from reports.files import FOUR, state_dict_file

SUFFIXES = (".safetensors", ".bpk")
OLD = {"w": np.arange(4, dtype=np.float32)}
NEW = {"w": np.arange(8, dtype=np.float32), "b": np.ones(3, np.float32)}

posix_only = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX'")


def is_old(path: Path) -> bool:
    return {name: array.tolist() for name, array in firekeep.load_file(path).items()} == {"w": [0, 1, 2, 3]}


# pytorch-lightning#688, #19970, returnn#1444: an interrupted save left no readable file.
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("error", [RuntimeError("device lost"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_a_save_that_fails_leaves_the_old_file_and_no_other(
    error: BaseException, share: float, suffix: str, tmp_path: Path
):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    seen = []

    def fail(done: int, total: int) -> None:
        seen.append(done)
        if done >= share * total:
            raise error

    arrays = {f"layer.{number}": np.ones(1 << 20, np.float32) for number in range(10)}
    with pytest.raises(type(error)):
        firekeep.save_file(arrays, path, progress=fail)
    assert seen
    assert is_old(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_tensor_that_cannot_be_saved_is_found_before_anything_is_written(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    with pytest.raises(firekeep.UnsupportedError, match="'odd'"):
        firekeep.save_file({**NEW, "odd": np.array([{}], object)}, path)
    assert is_old(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_source_that_proves_damaged_midway_leaves_the_old_file(suffix: str, tmp_path: Path):
    file = state_dict_file(a=FOUR, b=FOUR)
    torn = file.replace(b"archive/data/1", b"archive/data/9", 1)
    (tmp_path / "torn.pt").write_bytes(torn)
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    with pytest.raises(firekeep.FirekeepError, match="tampered"):
        firekeep.convert(tmp_path / "torn.pt", path)
    assert is_old(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["torn.pt", path.name])


@posix_only
@pytest.mark.parametrize("moment", ["first", "middle", "last"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_process_killed_while_saving_leaves_the_old_file(suffix: str, moment: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    script = f"""
        import os, signal, numpy, firekeep
        arrays = {{f"layer.{{number}}": numpy.ones(1 << 20, numpy.float32) for number in range(12)}}
        due = {{"first": 1, "middle": 20 << 20, "last": 48 << 20}}[{moment!r}]
        def watch(done, total):
            if done >= due:
                os.kill(os.getpid(), signal.SIGKILL)
        firekeep.save_file(arrays, {str(path)!r}, progress=watch)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert is_old(path)
    firekeep.save_file(NEW, path)
    assert sorted(firekeep.load_file(path)) == ["b", "w"]


# burn#5399, open_lm#154: a full disk took the only copy with it.
@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("call", ["pwritev", "fsync"])
def test_a_full_disk_leaves_the_old_file_and_no_scratch(
    call: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("pwritev", "pwrite", "write", "writev") if call == "pwritev" else (call,):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, full)
    big = {"w": np.ones(4 << 20, np.float32)}
    with pytest.raises(OSError, match=r"No space left|bytes are needed and fewer are free"):
        firekeep.save_file(big, path)
    monkeypatch.undo()
    assert is_old(path)
    assert list(tmp_path.iterdir()) == [path]


@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_limit_on_file_sizes_leaves_the_old_file_and_no_scratch(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    script = f"""
        import resource, signal, numpy, firekeep
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            firekeep.save_file({{"w": numpy.ones(1 << 20, numpy.float32)}}, {str(path)!r})
        except OSError as error:
            print("refused", error.errno)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("refused")
    assert is_old(path)
    assert list(tmp_path.iterdir()) == [path]


# safetensors#782, sentence-transformers#4010, MONAI#1862, huggingface_hub#1215, pytorch-lightning PR#20011: files of mode 0600.
@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600), (0o000, 0o666)])
def test_a_new_file_has_the_mode_that_the_umask_gives(umask: int, mode: int, suffix: str, tmp_path: Path):
    before = os.umask(umask)
    try:
        firekeep.save_file(NEW, tmp_path / f"model{suffix}")
    finally:
        os.umask(before)
    assert (tmp_path / f"model{suffix}").stat().st_mode & 0o777 == mode


@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mode", [0o664, 0o600, 0o640, 0o444])
def test_a_replaced_file_keeps_its_mode(mode: int, suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    path.chmod(mode)
    firekeep.save_file(NEW, path)
    assert path.stat().st_mode & 0o777 == mode
    assert len(firekeep.load_file(path)) == 2


# safetensors PR#764: a symbolic link was replaced by a file.
@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])
def test_a_symbolic_link_is_written_through(relative: bool, suffix: str, tmp_path: Path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / f"model-7{suffix}", tmp_path / f"latest{suffix}"
    firekeep.save_file(OLD, real)
    link.symlink_to(Path("real") / real.name if relative else real)
    firekeep.save_file(NEW, link)
    assert link.is_symlink()
    assert len(firekeep.load_file(real)) == 2
    assert [entry.name for entry in (tmp_path / "real").iterdir()] == [real.name]


@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_link_to_nothing_yet_makes_the_file_it_points_to(suffix: str, tmp_path: Path):
    link = tmp_path / f"latest{suffix}"
    link.symlink_to(f"model-8{suffix}")
    firekeep.save_file(NEW, link)
    assert link.is_symlink()
    assert (tmp_path / f"model-8{suffix}").is_file()


@posix_only
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_hard_link_keeps_the_old_bytes(suffix: str, tmp_path: Path):
    path, other = tmp_path / f"model{suffix}", tmp_path / f"kept{suffix}"
    firekeep.save_file(OLD, path)
    os.link(path, other)
    firekeep.save_file(NEW, path)
    assert is_old(other)
    assert len(firekeep.load_file(path)) == 2


# unsloth-zoo#1078: saving over the file that the tensors are still read from.
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_read_from_a_file_can_be_saved_over_it(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(NEW, path)
    loaded = firekeep.load_file(path)
    firekeep.save_file({**loaded, "extra": np.zeros(100_000)}, path)
    again = firekeep.load_file(path)
    assert sorted(again) == ["b", "extra", "w"]
    for name, array in NEW.items():
        np.testing.assert_array_equal(loaded[name], array)
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_open_can_be_saved_over(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path)
    with firekeep.open(path) as file:
        firekeep.save_file({f"copy.{name}": file[name] for name in file}, path)
        assert file["w"].tolist() == [0, 1, 2, 3]
    assert firekeep.load_file(path)["copy.w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_can_be_converted_onto_itself(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(NEW, path)
    firekeep.convert(path, path, rename=[("^", "model.")])
    loaded = firekeep.load_file(path)
    assert sorted(loaded) == ["model.b", "model.w"]
    np.testing.assert_array_equal(loaded["model.w"], NEW["w"])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_not_replaced_when_that_was_not_allowed(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(OLD, path, overwrite=False)
    with pytest.raises(FileExistsError, match="overwrite"):
        firekeep.save_file(NEW, path, overwrite=False)
    assert is_old(path)
    assert list(tmp_path.iterdir()) == [path]
