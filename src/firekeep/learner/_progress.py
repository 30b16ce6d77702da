"""What a run shows on standard error: a line for each epoch, and a bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from firekeep.wording import WIDTH

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PAUSE = 0.25
"""Seconds between two looks at the loss, which has the loop wait for the device."""


class Display:
    """Says what happens; all of its methods do nothing unless it is `wanted`, and the bar is for terminals."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted and sys.stderr is not None
        self._bars = self.wanted and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._next = 0.0

    def say(self, text: str) -> None:
        """Write a line."""
        if self.wanted:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def epoch(self, number: int, of: int, *, done: int, batches: int | None) -> None:
        """Begin the bar of an epoch."""
        if self._bars:
            self._progress = _open()
            self._task = self._progress.add_task(f"epoch {number}/{of}", total=batches, completed=done, loss="")

    def batches(self, done: int, loss: Any) -> None:
        """Move the bar; `loss` is a number or a tensor, and looked at now and then."""
        if self._progress is None or self._task is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PAUSE
        self._progress.update(self._task, completed=done, loss=f"loss {float(loss):.4g}")

    def validating(self, number: int) -> None:
        """Say on the bar that the epoch is being validated."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, loss=f"validating epoch {number}")

    def close(self) -> None:
        """Wipe the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def summary(number: int, of: int, metrics: Mapping[str, float]) -> str:
    """Put the metrics of an epoch into a line."""
    told = "".join(f"  {name} {value:.4g}" for name, value in metrics.items())
    return f"epoch {number}/{of}{told}"[:WIDTH]


def _open() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}", markup=False),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress
