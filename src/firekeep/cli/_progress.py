"""A progress bar on standard error, for a terminal and for work that takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from firekeep.cli._output import escape

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = Callable[[int, int], None]

_PATIENCE = 0.5
"""Seconds before a bar appears: most files are done by then, and rich is not even imported."""
_LONGEST_TITLE = 40


@contextmanager
def progress_bar(title: str) -> Iterator[Report | None]:
    """Give a function to report (bytes done, bytes in all) to; None when standard error is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(escape(title))
    try:
        yield bar.report
    finally:
        bar.close()


class _Bar:
    """Draws nothing until `_PATIENCE` has passed, and is wiped away at the end."""

    def __init__(self, title: str) -> None:
        self._title = title if len(title) <= _LONGEST_TITLE else f"...{title[-_LONGEST_TITLE + 3 :]}"
        self._start = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def report(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._progress is None:
            if time.monotonic() - self._start < _PATIENCE:
                return
            self._progress = self._open()
        if self._task is None:
            self._task = self._progress.add_task(self._title, total=total)
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Wipe the bar away."""
        if self._progress is not None:
            self._progress.stop()

    @staticmethod
    def _open() -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),  # a file name may look like markup
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        return progress
