"""A step on disk: what its manifest says, once it is known to be true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firekeep.wording import headline, lines, quote, size

Fact = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFile:
    """A file of a step."""

    section: str
    name: str
    nbytes: int
    xxh3: str | None = None
    """The digest of the whole file, where one was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """A complete step: every file is there, with the size that it was written with.

    `time` is when it was saved, in seconds since 1970. `metrics` may hold NaN and infinities. `folder` is where the files are.
    """

    step: int
    folder: Path
    files: tuple[StepFile, ...] = ()
    time: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    version: str | None = None
    """The version of firekeep that wrote it; None for a step that Burn wrote."""

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def paths(self) -> dict[str, Path]:
        """The files, by section."""
        return {file.section: self.folder / file.name for file in self.files}

    def __str__(self) -> str:
        saved = datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        sections = ", ".join(file.section for file in self.files)
        parts = [headline(f"step {self.step} in {self.folder}:", f"{size(self.nbytes)}, saved {saved}")]
        parts += lines([sections] if sections else [])
        metrics = (f"{quote(name)[1:-1]} {value:.6g}" for name, value in self.metrics.items())
        parts += lines([f"metrics: {', '.join(metrics)}"] if self.metrics else [])
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes; numbers that are none become text."""
        return {
            "step": self.step,
            "folder": str(self.folder),
            "nbytes": self.nbytes,
            "files": [
                {"section": file.section, "name": file.name, "nbytes": file.nbytes, "xxh3": file.xxh3}
                for file in self.files
            ],
            "time": self.time,
            "saved": datetime.fromtimestamp(self.time, UTC).isoformat(timespec="seconds"),
            "metrics": {name: plain(value) for name, value in self.metrics.items()},
            "facts": {name: plain(value) for name, value in self.facts.items()},
            "version": self.version,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteStep:
    """A step that cannot be used, and why. It is never chosen, counted or deleted."""

    step: int
    name: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {"step": self.step, "name": self.name, "reason": self.reason}


def plain(value: Fact) -> Fact:
    """Spell a number that JSON has no spelling for."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
