"""The history of a run on disk: a file of JSON lines, each written by one call, so that a killed process leaves whole lines.

A run that is resumed goes back to a step that was saved; what was written after that step is cut off, for it is about to happen again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from firekeep.errors import ExistsError, FormatError

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the history of a run, oldest line first.

    Lines of kind "step" have the loss and the learning rate of a step, those of kind "epoch" the metrics of an epoch. A last line that
    was cut short is left out.
    """
    return [record for record, _ in _lines(Path(path))]


class History:
    """Appends to the file of a run; without a path it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._fd: int | None = None

    def open(self, *, step: int, epoch: int, anew: bool) -> list[dict[str, Any]]:
        """Open the file, cut off what lies after a step and so many whole epochs, and give the records of the epochs that stay.

        A run without checkpoints always begins `anew`, and must not cut off the history of another: raises `ExistsError`.
        """
        if self.path is None:
            return []
        if anew and self.path.exists() and self.path.stat().st_size:
            raise ExistsError(
                "there is the history of an earlier run, and one without checkpoints cannot go on with it",
                path=self.path,
                remedy="Give the run another file as history=, or checkpoint= as well.",
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept, end = [], 0
        if self.path.exists():
            for record, after in _lines(self.path):
                if not _is_past(record, step, epoch):
                    break
                kept.append(record)
                end = after
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._fd, end)
        return [record for record in kept if record["kind"] == "epoch"]

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a line."""
        if self._fd is None:
            return
        line = json.dumps({key: _plain(value) for key, value in record.items()}, allow_nan=False).encode() + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError(f"{self.path}: a line of the history was cut short; is the disk full?")

    def sync(self) -> None:
        """Have the lines on disk: a checkpoint must not know more than the history beside it."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_past(record: Mapping[str, Any], step: int, epoch: int) -> bool:
    """Say whether a line tells what had happened when a step was saved, so many epochs being complete."""
    return bool(record["step"] <= step and (record["kind"] != "epoch" or record["epoch"] <= epoch))


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Give each record and the offset behind it."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # cut short by whatever ended the process
            end += len(line)
            yield _record(line, path, number), end


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if isinstance(record["step"], int) and isinstance(record["epoch"], int) and isinstance(record["kind"], str):
            return {key: _number(value) if key != "kind" else value for key, value in record.items()}
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise FormatError(
        f"line {number} is not one of a history",
        path=path,
        remedy="Move the file away, or give the Learner another one as history=.",
    )


def _plain(value: Any) -> Any:
    """Spell a number that JSON has no spelling for."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
