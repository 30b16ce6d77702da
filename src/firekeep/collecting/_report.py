"""What a save tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firekeep.showing import Shown
from firekeep.wording import count, lines, some


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SaveReport(Shown, os.PathLike[str]):
    """What was written: a path, and what was done to the tensors on the way."""

    path: Path
    format: str
    layout: str | None
    tensors: int
    nbytes: int
    left_out: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    overflowed: Mapping[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Values of the model that are no tensors, and not in the file."""
    files: tuple[Path, ...] = ()
    """All files of a set, the index last, which is then `path`; empty for one file."""
    removed: tuple[str, ...] = ()
    """Files of an older set, or in its place, that were removed."""

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "path": str(self.path),
            "format": self.format,
            "layout": self.layout,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "left_out": list(self.left_out),
            "steps": list(self.steps),
            "overflowed": dict(self.overflowed),
            "others": list(self.others),
            "files": [str(file) for file in self.files],
            "removed": list(self.removed),
        }

    def __str__(self) -> str:
        where = f"written to {self.path}" if self.path.name else "written to memory"
        told = [f"{count(self.tensors, 'tensor')} {where} ({self.format}, layout {self.layout or 'not known'})"]
        if self.files:
            first, *_, last = self.files[:-1]
            told += list(lines([f"{count(len(self.files) - 1, 'shard')}, {first.name!r} to {last.name!r}"]))
        told += list(lines(self.steps))
        if self.left_out:
            told += list(lines([f"left out by the filter: {some(self.left_out)}"]))
        if self.overflowed:
            told += list(
                lines([f"numbers too large for the new type became infinite in {some(list(self.overflowed))}"])
            )
        if self.removed:
            told += list(
                lines([f"removed, being of what stood there: {some([Path(one).name for one in self.removed])}"])
            )
        return "\n".join(told)
