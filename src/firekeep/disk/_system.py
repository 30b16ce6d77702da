"""Two calls of Linux that Python does not have."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, nbytes: int) -> None:
    """Set aside space for the first `nbytes` of a file, and make it that long.

    Unlike `os.posix_fallocate`, which writes a byte into every block where the file system cannot do it (NFS, FUSE, FAT), this
    raises OSError with EOPNOTSUPP or ENOSYS there.
    """
    function = getattr(_LIBC, "fallocate64", None) or getattr(_LIBC, "fallocate", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while function(ctypes.c_int(fd), ctypes.c_int(0), ctypes.c_int64(0), ctypes.c_int64(nbytes)) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def rename_exclusive(source: Path, target: Path) -> None:
    """Rename a file unless the new name is taken (FileExistsError); OSError with EINVAL or ENOSYS where that cannot be done."""
    function = getattr(_LIBC, "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = ctypes.c_char_p(os.fsencode(source)), ctypes.c_char_p(os.fsencode(target))
    here = ctypes.c_int(_AT_FDCWD)
    if function(here, names[0], here, names[1], ctypes.c_uint(_RENAME_NOREPLACE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source), None, str(target))
