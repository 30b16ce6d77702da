"""Where a file is to go: checked before anything is written."""

from __future__ import annotations

import errno
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from firekeep.disk._release import wait_for_releases
from firekeep.errors import DiskFullError, ExistsError

NO_FOLDER = "there is no such folder to save in: make it first (mkdir -p)"
_LINKS = 40
"""As many as Linux follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A destination. `path` is what the caller wrote, `final` the absolute name to be taken, links followed."""

    path: str
    final: Path
    status: os.stat_result | None
    """The regular file that is there now and will be replaced."""

    @property
    def folder(self) -> Path:
        """The directory of the final name."""
        return self.final.parent


def find_target(path: str | os.PathLike[str], *, overwrite: bool) -> Target:
    """Look at a destination; a symbolic link stands for what it points to, also where that does not exist yet.

    Raises `ExistsError` when `overwrite` is false and the name is taken, be it by a link that leads nowhere, IsADirectoryError for
    a directory, and OSError for links in a circle and for what is not a file (a device, a pipe).
    """
    given = os.fsdecode(path)
    if given.rpartition("/")[2] in ("", ".", ".."):
        _refuse_nameless(given)
    final = Path(given)
    if not final.is_absolute():
        final = Path.cwd() / final  # held on to: the current folder may change while the file is written
    status = first = _look(final)
    if first is not None and stat.S_ISLNK(first.st_mode):
        final, status = _follow(final)
    if status is not None:
        _refuse_irregular(given, status)
    if first is not None and not overwrite:
        raise exists_error(given)
    return Target(path=given, final=final, status=status)


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _follow(link: Path) -> tuple[Path, os.stat_result | None]:
    """Go from link to link; `Path.resolve` would take a name that it may not look at for the end of the way."""
    try:
        status = link.stat()  # refuses circles, and other people's links in shared folders where the system does
    except FileNotFoundError:
        status = None
    final, found = link, _look(link)
    for _ in range(_LINKS):
        if found is None or not stat.S_ISLNK(found.st_mode):
            break
        final = final.parent / final.readlink()
        found = _look(final)
    if (found is None) != (status is None) or (found and status and not os.path.samestat(found, status)):
        raise FileNotFoundError(errno.ENOENT, "the link leads to a file that has no name", str(link))
    return final, found


def _refuse_nameless(given: str) -> None:
    if not given:
        raise FileNotFoundError(errno.ENOENT, "an empty path is not a file's", given)
    raise IsADirectoryError(errno.EISDIR, "not a file's path: it ends without a name", given)


def _refuse_irregular(given: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory is there: give the name of a file in it", given)
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise OSError(errno.EINVAL, f"{kind} is there, and only regular files can be replaced", given)


def check_space(target: Target, nbytes: int) -> None:
    """Raise `DiskFullError` when the file system says that `nbytes` more do not fit. One that reports no sizes is believed."""
    try:
        free = _free_bytes(target.folder)
        if free < nbytes and wait_for_releases():
            free = _free_bytes(target.folder)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, NO_FOLDER, str(target.folder)) from None
    if free < nbytes:
        raise disk_full(target, nbytes, free=int(free))


def _free_bytes(folder: Path) -> float:
    found = os.statvfs(folder)
    if found.f_blocks == 0:
        return math.inf
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


def disk_full(target: Target, nbytes: int, *, free: int | None = None, quota: bool = False) -> DiskFullError:
    """Make the error of a file that does not fit."""
    left = "are free" if free is None else f"{free} are free"
    if free is None:
        left = "your quota leaves fewer" if quota else "fewer are free"
    kept = "; the old file stays as it was, and needs its space until the new one is whole" if target.status else ""
    error = DiskFullError(
        f"{nbytes} bytes are needed and {left} in {target.folder}{kept}",
        path=target.path,
        limit=free,
        actual=nbytes,
        remedy="Free space there, or save elsewhere.",
    )
    error.errno = errno.EDQUOT if quota else errno.ENOSPC
    return error


def exists_error(path: str) -> ExistsError:
    """Make the error of a name that is taken."""
    error = ExistsError("the file exists already", path=path, remedy="Pass overwrite=True to replace it.")
    error.errno = errno.EEXIST
    return error


def explained(error: OSError, target: Target, nbytes: int) -> OSError:
    """Turn a failure of the system while the new file was written into one that says what it means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(target, nbytes, quota=error.errno == errno.EDQUOT)
    if error.errno == errno.EFBIG:
        message = f"{error.strerror}: the file system, or a limit of this process (ulimit -f), allows less than {nbytes} bytes"
        return OSError(errno.EFBIG, message, target.path)
    return OSError(error.errno, error.strerror, target.path)
