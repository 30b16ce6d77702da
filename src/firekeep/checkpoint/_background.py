"""One save at a time, beside the training loop."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    """A job, its thread, and what came of it."""

    def __init__(self, work: Callable[[], T], *, name: str) -> None:
        self._work = work
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self._run, name=name)
        self.result: T | None = None
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.error = error


class Background(Generic[T]):
    """Runs one job at a time on a thread. Its failure is raised by the next call, or, if there is none, when the interpreter ends.

    The thread is no daemon: a program that ends waits for its save. Threads use it one at a time. A signal's handler may come between any
    two lines, and wait, or start a job: what another call has waited for is that one's to give.
    """

    def __init__(self) -> None:
        self._job: _Job[T] | None = None
        self._ticket: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._job is not None and self._job.thread.is_alive()

    def start(self, job: Callable[[], T], *, name: str) -> None:
        """Start a job; the one before must have been waited for."""
        made = _Job(job, name=name)
        if self._ticket is None:
            self._ticket = _at_exit(self)
        try:
            made.thread.start()
        finally:  # one that the system has refused is nothing to wait for; one that was interrupted as it began is
            self._job = made if made.thread.ident is not None else None

    def wait(self) -> T | None:
        """Wait for the job, give its result, or raise its error; both are given once."""
        job = self._job
        if job is None:
            return None
        if job.pid == os.getpid():  # a fork has nothing to wait for, and its parent is told
            job.thread.join()  # where this is interrupted, the job is still to be waited for
        if self._job is not job:
            return None
        self._job = None
        if job.pid != os.getpid():
            return None
        if job.error is not None:
            raise job.error
        return job.result

    def close(self) -> None:
        """Forget about the end of the interpreter; an error that nobody asked for is lost with it."""
        if self._ticket is not None:
            atexit.unregister(self._ticket)
            self._ticket = None


def _at_exit(background: Background[T]) -> Callable[[], None]:
    """Have the interpreter raise what went wrong after the last call."""
    known = weakref.ref(background)

    def surface() -> None:
        if (found := known()) is not None:
            found.wait()

    atexit.register(surface)
    return surface
