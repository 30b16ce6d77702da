"""Where the atomic writer writes to: any name, through links, with the right rights, and never over what must stay."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import stat
from pathlib import Path

import pytest

from firekeep import disk
from firekeep.blobs import DeferredBlob
from firekeep.disk import _scratch as scratch
from firekeep.disk import _system as system
from firekeep.disk import _target as target
from firekeep.disk import is_scratch, write_file
from firekeep.errors import ExistsError
from matter.plans import failing, mode_of, names_in, plan_of, plan_with


@pytest.fixture
def umask():
    """Set the umask of this process; it is put back afterwards."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("spell", [str, Path, os.fsencode], ids=["text", "path", "bytes"])
def test_any_spelling_of_a_path_will_do(tmp_path, spell):
    written = write_file(spell(tmp_path / "out"), plan_of(b"abc"))
    assert written == tmp_path / "out"
    assert written.read_bytes() == b"headabc"


def test_a_relative_path_holds_though_the_current_folder_changes_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def move():
        os.chdir(tmp_path / "there")
        return b"late"

    written = write_file("out", plan_with(DeferredBlob(4, move)))
    assert written == Path("out")
    assert names_in(tmp_path / "here") == ["out"]
    assert names_in(tmp_path / "there") == []


def test_a_path_through_a_parent_is_not_shortened_by_its_text(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    write_file(tmp_path / "link" / ".." / "out", plan_of(b"abc"))
    assert (tmp_path / "deep" / "out").read_bytes() == b"headabc"


@pytest.mark.parametrize(
    "name", ["a..", "..a", ".hidden", "with space", "new\nline", "ümläut", os.fsdecode(b"\xff\xfe"), "-rf", "%s"]
)
def test_any_name_a_file_can_have_will_do(tmp_path, name):
    write_file(tmp_path / name, plan_of(b"abc"))
    assert names_in(tmp_path) == [name]


@pytest.mark.parametrize("length", [235, 250, 255])
@pytest.mark.parametrize("letter", ["x", "ü", "日"])
def test_a_name_as_long_as_names_can_be_will_do(tmp_path, length, letter):
    name = letter * (length // len(letter.encode()))
    seen = []
    blob = DeferredBlob(1, lambda: seen.extend(names_in(tmp_path)) or b"1")
    write_file(tmp_path / name, plan_with(blob))
    write_file(tmp_path / "second", plan_of(b"2"))
    assert names_in(tmp_path) == sorted([name, "second"])
    assert len(seen) == 1
    assert is_scratch(seen[0])
    assert len(seen[0].encode()) <= 255


def test_a_name_too_long_is_refused_before_a_byte_is_drawn(tmp_path):
    with pytest.raises(OSError, match="File name too long"):
        write_file(tmp_path / ("x" * 256), plan_with(failing(AssertionError("drawn"))))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("path", ["", ".", "..", "/", "folder/", "folder/.", "folder/.."])
def test_a_path_without_a_name_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"not a file's path: it ends without a name|an empty path is not a file's"):
        write_file(path, plan_with(failing(AssertionError("drawn"))))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"no such folder to save in: make it first \(mkdir -p\): '{tmp_path}/missing'"
    ):
        write_file(tmp_path / "missing" / "out", plan_with(failing(AssertionError("drawn"))))


def test_a_directory_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    for overwrite in (True, False):
        with pytest.raises(IsADirectoryError, match="a directory is there"):
            write_file(tmp_path / "out", plan_with(failing(AssertionError("drawn"))), overwrite=overwrite)


def test_pipes_sockets_and_devices_are_refused_and_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name, kind in {"pipe": "a pipe", "socket": "a socket", "/dev/null": "a device"}.items():
            with pytest.raises(OSError, match=f"{kind} is there, and only regular files"):
                write_file(name, plan_with(failing(AssertionError("drawn"))))
    assert names_in(tmp_path) == ["pipe", "socket"]
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    with pytest.raises(PermissionError, match=f"their folder must be writable: '{folder}'"):
        write_file(folder / "out", plan_with(failing(AssertionError("drawn"))))


def test_a_refusal_of_the_folder_is_explained(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match=f"their folder must be writable: '{tmp_path}'"):
        write_file(tmp_path / "out", plan_with(failing(AssertionError("drawn"))))


@pytest.mark.parametrize("to", ["real", "there/real", "{}/there/real"], ids=["beside", "relative", "absolute"])
def test_a_link_is_written_through_and_stays_a_link(tmp_path, to):
    (tmp_path / "there").mkdir()
    to = to.format(tmp_path)
    real = tmp_path / to
    real.write_bytes(b"old")
    (tmp_path / "link").symlink_to(to)
    seen = []
    write_file(tmp_path / "link", plan_with(DeferredBlob(3, lambda: seen.extend(names_in(real.parent)) or b"new")))
    assert (tmp_path / "link").readlink() == Path(to)
    assert real.read_bytes() == b"new"
    assert not real.is_symlink()
    assert any(is_scratch(name) and name.startswith("real.") for name in seen)


def test_a_chain_of_links_is_followed_to_its_end(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "second").symlink_to("real")
    (tmp_path / "first").symlink_to("second")
    write_file(tmp_path / "first", plan_of(b"!"))
    assert (tmp_path / "real").read_bytes() == b"head!"
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()


def test_a_link_that_leads_nowhere_yet_makes_what_it_leads_to(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/new")
    write_file(tmp_path / "link", plan_of(b"!"))
    assert (tmp_path / "there" / "new").read_bytes() == b"head!"
    assert (tmp_path / "link").is_symlink()


def test_a_link_into_a_missing_folder_names_the_folder(tmp_path):
    (tmp_path / "link").symlink_to("missing/new")
    with pytest.raises(FileNotFoundError, match=r"no such folder to save in: .*: '.*/missing'"):
        write_file(tmp_path / "link", plan_of(b"!"))


@pytest.mark.parametrize("overwrite", [True, False])
def test_links_in_a_circle_are_refused(tmp_path, overwrite):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_file(tmp_path / "one", plan_of(b"!"), overwrite=overwrite)
    assert names_in(tmp_path) == ["one", "two"]


def test_a_link_to_a_directory_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(IsADirectoryError, match="a directory is there"):
        write_file(tmp_path / "link", plan_of(b"!"))


def test_a_link_to_a_file_that_has_lost_its_name_is_refused(tmp_path):
    with (tmp_path / "gone").open("wb") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(OSError, match=r"No such file or directory|leads to a file that has no name"):
            write_file(f"/proc/self/fd/{file.fileno()}", plan_of(b"!"))
    assert names_in(tmp_path) == []


def test_another_hard_link_keeps_the_old_file(tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    (tmp_path / "other").hardlink_to(tmp_path / "out")
    write_file(tmp_path / "out", plan_of(b"!"))
    assert (tmp_path / "other").read_bytes() == b"old"
    assert (tmp_path / "out").read_bytes() == b"head!"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o000, 0o666)])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_new_file_has_the_rights_that_the_umask_gives(tmp_path, umask, mask, mode, overwrite):
    # safetensors#782: weights that nobody else can read
    umask(mask)
    write_file(tmp_path / "out", plan_of(b"!"), overwrite=overwrite)
    assert mode_of(tmp_path / "out") == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o755, 0o666])
def test_a_replaced_file_keeps_its_rights(tmp_path, umask, mode):
    umask(0o027)
    (tmp_path / "out").write_bytes(b"old")
    (tmp_path / "out").chmod(mode)
    write_file(tmp_path / "out", plan_of(b"!"))
    assert mode_of(tmp_path / "out") == mode
    assert (tmp_path / "out").read_bytes() == b"head!"


def test_a_file_behind_a_link_keeps_its_rights(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o606)
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", plan_of(b"!"))
    assert mode_of(tmp_path / "real") == 0o606


def test_what_replaces_a_private_file_is_private_while_it_is_written(tmp_path, umask):
    umask(0)
    (tmp_path / "out").write_bytes(b"old")
    (tmp_path / "out").chmod(0o600)
    seen = []

    def look():
        seen.extend(mode_of(path) for path in tmp_path.iterdir() if is_scratch(path.name))
        return b"data"

    write_file(tmp_path / "out", plan_with(DeferredBlob(4, look)))
    assert seen == [0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_replaced_file_keeps_its_owner_where_that_is_permitted(tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    os.chown(tmp_path / "out", 1234, 2345)
    (tmp_path / "out").chmod(0o640)
    write_file(tmp_path / "out", plan_of(b"!"))
    status = (tmp_path / "out").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 2345, 0o640)


def test_where_the_group_cannot_be_kept_its_rights_are_not_given_to_another(tmp_path, monkeypatch):
    (tmp_path / "out").write_bytes(b"old")
    (tmp_path / "out").chmod(0o664)
    real = target.find_target

    def foreign(path, *, overwrite):
        found = real(path, overwrite=overwrite)
        status = list(found.status)
        status[5] += 1  # st_gid
        return target.Target(path=found.path, final=found.final, status=os.stat_result(status))

    def refuse(fd, uid, gid):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(disk, "find_target", foreign)
    monkeypatch.setattr(os, "fchown", refuse)
    write_file(tmp_path / "out", plan_of(b"!"))
    assert mode_of(tmp_path / "out") == 0o644


def test_a_file_that_is_there_is_kept_and_nothing_is_drawn(tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(
        ExistsError, match=r"out: the file exists already\. Pass overwrite=True to replace it\."
    ) as caught:
        write_file(tmp_path / "out", plan_with(failing(AssertionError("drawn"))), overwrite=False)
    assert isinstance(caught.value, FileExistsError)
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names_in(tmp_path) == ["out"]


def test_a_link_that_leads_nowhere_counts_as_there(tmp_path):
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(ExistsError):
        write_file(tmp_path / "out", plan_with(failing(AssertionError("drawn"))), overwrite=False)
    assert names_in(tmp_path) == ["out"]


def test_a_new_name_is_taken_and_no_second_one_is_left(tmp_path):
    write_file(tmp_path / "out", plan_of(b"!"), overwrite=False)
    assert names_in(tmp_path) == ["out"]
    assert (tmp_path / "out").stat().st_nlink == 1


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "exclusive renames"])
@pytest.mark.parametrize("rival", ["file", "link", "folder"])
def test_a_name_taken_at_the_last_moment_is_not_lost(tmp_path, monkeypatch, rival, links):
    def take():
        if rival == "file":
            (tmp_path / "out").write_bytes(b"rival")
        elif rival == "link":
            (tmp_path / "out").symlink_to("nowhere")
        else:
            (tmp_path / "out").mkdir()
        return b"data"

    if not links:
        monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(ExistsError, match="the file exists already"):
        write_file(tmp_path / "out", plan_with(DeferredBlob(4, take)), overwrite=False)
    assert names_in(tmp_path) == ["out"]
    if rival == "file":
        assert (tmp_path / "out").read_bytes() == b"rival"


def unsupported(*args, **kwargs):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_file_system_without_hard_links_renames_exclusively(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", unsupported)
    write_file(tmp_path / "out", plan_of(b"!"), overwrite=False)
    assert (tmp_path / "out").read_bytes() == b"head!"
    assert names_in(tmp_path) == ["out"]


def test_a_file_system_with_neither_says_what_to_do(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "link", unsupported)
    monkeypatch.setattr(system, "rename_exclusive", refuse)
    with pytest.raises(OSError, match=r"no way to save without replacing .* pass overwrite=True"):
        write_file(tmp_path / "out", plan_of(b"!"), overwrite=False)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("model.bpk.123-0.tmp", True),
        ("x.1-22.tmp", True),
        ("new\nline.1-2.tmp", True),
        ("model.bpk", False),
        ("model.tmp", False),
        ("model.bpk.123.tmp", False),
        ("model.bpk.123-0.tmp.bpk", False),
        ("model.bpk.a-b.tmp", False),
        (".1-2.tmp", False),
        ("model.bpk.1-2.tmp\n", False),
    ],
)
def test_names_left_behind_by_a_killed_save_are_known(name, answer):
    assert is_scratch(name) is answer


def test_a_taken_scratch_name_is_passed_over_and_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "_COUNTER", itertools.count())
    (tmp_path / "victim").write_bytes(b"victim")
    (tmp_path / f"out.{os.getpid()}-0.tmp").symlink_to("victim")
    (tmp_path / f"out.{os.getpid()}-1.tmp").write_bytes(b"someone else's")
    (tmp_path / f"out.{os.getpid()}-2.tmp").symlink_to("nowhere")
    write_file(tmp_path / "out", plan_of(b"!"))
    assert (tmp_path / "out").read_bytes() == b"head!"
    assert (tmp_path / "victim").read_bytes() == b"victim"
    assert (tmp_path / f"out.{os.getpid()}-1.tmp").read_bytes() == b"someone else's"
    assert not (tmp_path / "nowhere").exists()
    assert len(names_in(tmp_path)) == 5
