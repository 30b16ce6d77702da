"""What a file is a record of: asked only of files that may be one, since an answer costs more than a table of contents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from firekeep.errors import FirekeepError

if TYPE_CHECKING:
    from firekeep.opened import OpenedFile
    from firekeep.records import RecordDescription

_MAGIC = b"NRUB"
_KEYS = ("firekeep.record", "firekeep.scheduler", "firekeep.training", "firekeep.values")


def described(opened: OpenedFile) -> RecordDescription | None:
    """Describe an open file as a record; None for other files, and for one that only looks like a record."""
    if opened.format != "burnpack" or not _may_be_one(opened):
        return None
    from firekeep import records

    try:
        return records.describe_record(opened)
    except FirekeepError:
        return None


def _may_be_one(opened: OpenedFile) -> bool:
    if any(key in opened.metadata for key in _KEYS):
        return True
    if not len(opened):
        return bool(opened.scalars)
    return any(name == "history_s.len" or name.endswith(".__rank") for name in opened.scalars)


def summary_of(path: str) -> str | None:
    """Say in a line what a file is a record of; None where it is none, or cannot be opened."""
    found = asked(path)
    return None if found is None else found.summary


def asked(path: str) -> RecordDescription | None:
    """Open a file and say what it is a record of; None where it is none, or cannot be opened."""
    from firekeep import api

    try:
        if not _is_burnpack(Path(path)):
            return None
        with api.open(path) as opened:
            return described(opened)
    except (FirekeepError, OSError):
        return None


def _is_burnpack(path: Path) -> bool:
    """Look at the first bytes of a file; a pipe was read already, and is not asked."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
