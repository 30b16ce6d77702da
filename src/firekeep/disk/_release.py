"""Letting go of a replaced file without waiting for it.

A file that loses its last name is taken apart by whoever lets go of it last: its pages leave the cache, its blocks are freed and, on
many machines, discarded. For gigabytes that takes longer than writing them did. So a large old file is held open across the
rename and closed by a thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

LARGE = 16 << 20
_running: list[threading.Thread] = []


@contextlib.contextmanager
def released_later(path: Path, nbytes: int) -> Iterator[None]:
    """Keep the file that is at `path` until after the block, which replaces it, and let go of it in the background."""
    held = _hold(path) if nbytes >= LARGE else None
    try:
        yield
    finally:
        if held is not None:
            _release(held)


def _hold(path: Path) -> int | None:
    try:
        return os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None


def _release(fd: int) -> None:
    thread = threading.Thread(target=os.close, args=(fd,), name="firekeep-release", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no threads any more: the interpreter is shutting down
        os.close(fd)
        return
    _running[:] = [other for other in _running if other.is_alive()]
    _running.append(thread)


def wait_for_releases() -> bool:
    """Wait until the space of replaced files is free again; says whether there was anything to wait for."""
    waiting = [thread for thread in _running if thread.is_alive()]
    for thread in waiting:
        thread.join()
    return bool(waiting)
