"""One save at a time, beside the training loop."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one job at a time on a thread. Its failure is raised by the next call, or, if there is none, when the interpreter ends.

    The thread is no daemon: a program that ends waits for its save.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._ticket: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], T], *, name: str) -> None:
        """Start a job; the one before must have been waited for."""
        self._result, self._pid = None, os.getpid()  # a fork that saves by itself waits for its own thread
        self._thread = threading.Thread(target=self._run, args=(job,), name=name)
        if self._ticket is None:
            self._ticket = _at_exit(self)
        self._thread.start()

    def wait(self) -> T | None:
        """Wait for the job, give its result, or raise its error; both are given once."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            try:
                thread.join()
            except BaseException:  # interrupted while waiting
                self._thread = thread
                raise
        error, self._error = self._error, None
        result, self._result = self._result, None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Forget about the end of the interpreter; an error that nobody asked for is lost with it."""
        if self._ticket is not None:
            atexit.unregister(self._ticket)
            self._ticket = None

    def _run(self, job: Callable[[], T]) -> None:
        try:
            self._result = job()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error


def _at_exit(background: Background[T]) -> Callable[[], None]:
    """Have the interpreter raise what went wrong after the last call."""
    known = weakref.ref(background)

    def surface() -> None:
        if (found := known()) is not None:
            found.wait()

    atexit.register(surface)
    return surface
