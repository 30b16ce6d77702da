"""What was read of steps, for as long as their files are those that were read: a directory of thousands is not read at each save."""

from __future__ import annotations

import os
from collections.abc import Collection

from firekeep.checkpoint._step import StepInfo

Mark = tuple[int, ...]
"""Which file it is, and in what state."""

SETTLED = 2_000_000_000
"""Nanoseconds after which a change of a file has another time than the last one: clocks of file systems tick that often."""


def mark_of(status: os.stat_result) -> Mark:
    """Tell a file by what changes with it: another one in its place, and what is written into it."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Seen:
    """What was read of steps in one directory, by the marks of the files it was read from.

    Files that were changed just now are not remembered: a second change in the same moment would not be seen.
    """

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[int, tuple[tuple[Mark, ...], StepInfo]] = {}

    def recall(self, step: int, marks: tuple[Mark, ...]) -> StepInfo | None:
        """Give what was read of a step, if its files are those that it was read from."""
        held = self._steps.get(step)
        return held[1] if held is not None and held[0] == marks else None

    def keep(self, marks: tuple[Mark, ...], info: StepInfo, *, began: int) -> None:
        """Remember what was read, unless a file was changed just before the reading `began`, in nanoseconds since 1970, or later."""
        if all(began - max(mark[-2:]) > SETTLED for mark in marks):
            self._steps[info.step] = marks, info

    def last(self, step: int) -> StepInfo | None:
        """Give a step as it was when it was looked at last."""
        held = self._steps.get(step)
        return None if held is None else held[1]

    def forget_others(self, steps: Collection[int]) -> None:
        """Forget the steps that are not among these."""
        for step in set(self._steps).difference(steps):  # another thread may be saving
            self._steps.pop(step, None)
