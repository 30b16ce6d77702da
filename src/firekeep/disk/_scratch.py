"""The file beside the file: written under a name of its own, then renamed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from firekeep.disk._release import released_later
from firekeep.disk._target import Target, exists_error, explained

SCRATCH_SUFFIX = ".tmp"
_PATTERN = re.compile(r".\.\d+-\d+\.tmp\Z", re.DOTALL)
_COUNTER = itertools.count()
_TRIES = 10_000
_UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK, errno.EACCES, errno.EXDEV)
STEP = 256 << 10
"""Bytes of one call. The kernel takes memory in pieces as large as the call, where it can. A virtual machine that gives free memory
back to its host has to ask for large pieces: 8 MiB a call then took up to ten times as long, and elsewhere was no faster."""
_PREALLOCATE_FROM = 1 << 20


_STALE_SECONDS = 3600
"""A process that is not known here may be writing on another machine: its file is old only when it has not grown for this long."""
_own: set[str] = set()
"""Names that this process is writing under. A process before it may have had the same number, as in containers."""


def is_scratch(name: str) -> bool:
    """Say whether a file's name is one that an unfinished save leaves behind when its process is killed."""
    return _PATTERN.search(name) is not None


def remove_stale(folder: Path, name: str) -> None:
    """Remove what killed processes left of saves to this name: scratch files of processes that are gone, untouched for an hour."""
    shape = re.compile(rf"{re.escape(name)}(?:\.\d+-\d+\.tmp)*\.(\d{{1,9}})-\d+\.tmp", re.ASCII)
    with contextlib.suppress(OSError):
        with os.scandir(folder) as listing:
            found = [(match[1], file) for file in listing if (match := shape.fullmatch(file.name))]
        for pid, file in found:
            if file.name in _own or (int(pid) != os.getpid() and _is_alive(int(pid))):
                continue
            status = file.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _STALE_SECONDS:
                Path(file.path).unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


class Scratch:
    """A file being written. Leaving the block by an error removes it; `publish` gives it the final name."""

    def __init__(self, target: Target, nbytes: int) -> None:
        self._target = target
        self._nbytes = nbytes
        self._path = Path(target.final)
        self._made = False
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()

    def _open(self) -> None:
        # What replaces a private file is private while it is written, too.
        mode = 0o666 if self._target.status is None else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        for _ in range(_TRIES):
            self._path = self._target.folder / self._next_name()
            _own.add(self._path.name)
            self._made = True  # said beforehand: an interrupt between making the file and noting it leaves nothing
            try:
                self._fd = os.open(self._path, flags, mode)
            except FileExistsError:
                self._made = False
                continue
            except OSError as error:
                self._made = False
                message = f"{error.strerror}: the new file is made beside the old one, so their folder must be writable"
                raise OSError(error.errno, message, str(self._target.folder)) from None
            return
        raise FileExistsError(errno.EEXIST, "no name is free for a scratch file", str(self._target.folder))

    def _next_name(self) -> str:
        suffix = f".{os.getpid()}-{next(_COUNTER)}{SCRATCH_SUFFIX}"
        try:
            room = os.pathconf(self._target.folder, "PC_NAME_MAX")
        except (OSError, ValueError):
            room = 255
        stem = self._target.final.name
        while len(os.fsencode(stem)) + len(suffix) > room and len(stem) > 1:
            stem = stem[:-1]
        return stem + suffix

    def reserve(self) -> None:
        """Set space aside where the file system can: a full disk then shows before a byte is drawn."""
        if self._nbytes < _PREALLOCATE_FROM:
            return
        from firekeep.disk import _system

        try:
            _system.fallocate(self._fd, self._nbytes)
        except OSError as error:
            # Anything else is either no failure (not supported) or one that writing meets again.
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise explained(error, self._target, self._nbytes) from None

    def write(self, view: memoryview, offset: int) -> None:
        """Write bytes from `offset` on, however many calls it takes."""
        while view.nbytes:
            try:
                done = os.pwrite(self._fd, view[: STEP - offset % STEP], offset)
            except OSError as error:
                raise explained(error, self._target, self._nbytes) from None
            if done == 0:
                raise OSError(errno.EIO, "the system takes no more bytes", self._target.path)
            offset += done
            view = view[done:]

    def write_behind(self, offset: int, nbytes: int) -> None:
        """Have the disk start on bytes just written, so that an fsync at the end finds most of the work done.

        Pages that wait for the disk stay in the cache: measured, the file is in memory as a whole afterwards.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def finish(self, *, durable: bool) -> None:
        """Give the file the mode of the one it replaces, bring it to the disk and close it."""
        try:
            if self._target.status is not None:
                _take_over(self._fd, self._target.status)
            if durable:
                os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)  # network file systems report here what went wrong
        except OSError as error:
            raise explained(error, self._target, self._nbytes) from None

    def publish(self, *, overwrite: bool) -> None:
        """Give the file its final name in one step; raises `ExistsError` when that is taken and must not be replaced."""
        try:
            if overwrite:
                old = self._target.status
                with released_later(self._target.final, 0 if old is None else old.st_size):
                    self._path.rename(self._target.final)
                self._made = False
            else:
                self._made = _rename_exclusive(self._path, self._target.final)
        except FileExistsError:
            raise exists_error(self._target.path) from None
        except OSError as error:
            raise explained(error, self._target, self._nbytes) from None

    def _discard(self) -> None:
        fd, self._fd = self._fd, -1
        made, self._made = self._made, False
        _own.discard(self._path.name)
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
        if made:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _take_over(fd: int, old: os.stat_result) -> None:
    """Give a new file the owner, as far as this process may, and the mode of the old one."""
    new = os.fstat(fd)
    mode = stat.S_IMODE(old.st_mode) & 0o777
    if new.st_uid != old.st_uid:
        with contextlib.suppress(OSError):
            os.fchown(fd, old.st_uid, -1)
    if new.st_gid != old.st_gid:
        try:
            os.fchown(fd, -1, old.st_gid)
        except OSError:
            mode = mode & 0o707 | (mode & 0o007) << 3  # what was open to the old group is not open to another one
    if stat.S_IMODE(new.st_mode) != mode:
        os.fchmod(fd, mode)


def _rename_exclusive(scratch: Path, final: Path) -> bool:
    """Give a file a name that must be free; says whether the old name is still there."""
    try:
        os.link(scratch, final, follow_symlinks=False)
        return True
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    from firekeep.disk import _system

    try:
        _system.rename_exclusive(scratch, final)
        return False
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        message = (
            "this file system has no way to save without replacing (neither hard links nor exclusive renames): "
            "pass overwrite=True once you have made sure that nothing is there"
        )
        raise OSError(errno.EOPNOTSUPP, message, str(final)) from None


def sync_folder(target: Target) -> None:
    """Bring the new name to the disk. The file is saved by now, and the error says so."""
    try:
        fd = os.open(target.folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return  # a file system that cannot sync directories has nothing to wait for
        message = f"the file was saved, but its folder could not be synced, so the save may not survive a power loss ({error.strerror})"
        raise OSError(error.errno, message, target.path) from None
