"""What the reader of one kind of container hands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firekeep.formats._protocol import Finding
from firekeep.formats.pytorch._inert import Global
from firekeep.formats.pytorch._modules import ScriptClasses
from firekeep.formats.pytorch._storages import StorageTable


def _no_findings() -> Iterator[Finding]:
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the reader of one kind of container found: the object, its storages, and what it noticed."""

    variant: str
    root: Any
    storages: StorageTable
    globals: Mapping[tuple[str, str], Global]
    details: Mapping[str, Any]
    notes: Sequence[str] = ()
    later_notes: Callable[[], Sequence[str]] = tuple
    """Notes that are complete once the storages were looked up."""
    classes: ScriptClasses | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    """What its pickles took, by the names of the limits."""
    check: Callable[[], Iterator[Finding]] = field(default=_no_findings)
