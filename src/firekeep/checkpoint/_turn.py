"""Whose turn it is: the threads of a process use one manager one after the other."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """A lock that a thread may take again while it has it, and that a forked process finds free: whoever had it is not there.

    A signal's handler runs on the main thread and may take it again, too. The thread that writes in the background never takes it:
    others wait for that thread while they have it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _ALL.add(self)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait until it is this thread's turn, and have it."""
        with self._lock:  # this very lock is let go of, though a fork has made another one meanwhile
            yield

    def renew(self) -> None:
        """Begin anew, in a process that was forked."""
        self._lock = threading.RLock()


_ALL: weakref.WeakSet[Turn] = weakref.WeakSet()


def _renew_all() -> None:
    for turn in list(_ALL):
        turn.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
