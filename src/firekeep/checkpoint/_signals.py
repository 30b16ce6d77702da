"""Signals that ask a run to end: noted at once, acted upon at the end of a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, Self

DEFAULT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class SignalWatch:
    """Notes the first signal; the second ends the process at once, as the signal would have.

    Leaving the block puts back the handlers that were there.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._old: dict[signal.Signals, Any] = {}
        self._pid = os.getpid()

    @property
    def active(self) -> bool:
        """Whether signals come here."""
        return bool(self._old)

    def install(self, signals: Iterable[int]) -> None:
        """Take over the signals; raises RuntimeError outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals are handled in the main thread only: call handle_signals() there")
        self._pid = os.getpid()
        for number in signals:
            known = signal.Signals(number)
            if known not in self._old:
                self._old[known] = signal.signal(known, self._note)

    def remove(self) -> None:
        """Put back the handlers that were there."""
        while self._old:
            known, handler = self._old.popitem()
            signal.signal(known, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        known = signal.Signals(number)
        if os.getpid() != self._pid:
            # A forked worker has inherited this: the run is its parent's to end, and the worker is its parent's to end.
            if known is not signal.SIGINT:
                signal.signal(known, signal.SIG_DFL)
                os.kill(os.getpid(), known)
            return
        if self.received is not None:
            signal.signal(known, signal.SIG_DFL)
            os.kill(os.getpid(), known)
            return
        self.received = known
        # Written to the descriptor: the interrupted code may be in the middle of printing.
        with contextlib.suppress(OSError):
            os.write(
                2,
                f"\n{known.name}: the run is saved at the end of this step; a second signal ends it at once\n".encode(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
