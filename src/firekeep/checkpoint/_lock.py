"""The lock of a directory: one process at a time publishes and deletes steps in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from firekeep.checkpoint._errors import DirectoryBusyError
from firekeep.checkpoint._names import LOCK
from firekeep.errors import FirekeepError

_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
_PAUSE = 0.01


@contextlib.contextmanager
def locked(directory: Path, *, timeout: float) -> Iterator[None]:
    """Hold the directory's lock; the system lets go of it when the process ends, however that comes about.

    Raises `DirectoryBusyError` naming the holder when it is not to be had in time. On a file system without locks nothing is held:
    a step is still published by one rename, which only one process can win.
    """
    fd = _open(directory / LOCK)
    try:
        _acquire(fd, directory, timeout)
        _sign(fd)
        try:
            yield
        finally:
            # Said, not left to closing: a process forked meanwhile has the descriptor, too.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Open the file of the lock, and nothing that a link of this name leads to: it is written into."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        fd = -1
    if fd < 0 or not stat.S_ISREG(os.fstat(fd).st_mode):
        if fd >= 0:
            os.close(fd)
        raise FirekeepError(
            "the lock of the directory is a link, or no regular file",
            path=path,
            remedy="Remove it: firekeep makes a file of this name.",
        )
    return fd


def _acquire(fd: int, directory: Path, timeout: float) -> None:
    give_up = time.monotonic() + timeout
    while try_flock(fd) is False:
        if time.monotonic() >= give_up:
            raise DirectoryBusyError(
                f"{_holder(fd)} has held the lock of this directory for {timeout:g} seconds",
                path=directory,
                remedy="Wait for it to end, or end it; nothing was saved or deleted here.",
            )
        time.sleep(_PAUSE)


def try_flock(fd: int) -> bool | None:
    """Take the lock of an open file or directory: True when it is had, False when somebody else has it, None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _sign(fd: int) -> None:
    """Write down who holds the lock, for the message of those who wait in vain; but not into a file that has another name, too."""
    if os.fstat(fd).st_nlink > 1:
        return
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)


def _holder(fd: int) -> str:
    with contextlib.suppress(OSError):
        text = os.pread(fd, 200, 0).decode(errors="replace").strip()
        if text.isprintable() and text:
            return text
    return "another process"
