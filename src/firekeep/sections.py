"""State in parts, each a file of its own: what keeps checkpoints asks of what is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from firekeep.errors import RuleError
from firekeep.formats import Contents
from firekeep.opened import OpenedFile
from firekeep.wording import quote

SECTION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9_-])?", re.ASCII)
"""What a section may be called: it becomes the name of a file, on any system."""


GRADIENTS = "firekeep.gradients"
"""The metadata key of a section that holds gradients which were not applied yet."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a state: a name, and what its file is to hold. The entries are drawn when they are written, not before."""

    name: str
    contents: Contents

    def __post_init__(self) -> None:
        if SECTION_NAME.fullmatch(self.name) is None:
            raise RuleError(
                f"{quote(str(self.name))} cannot be the name of a section, which becomes that of a file",
                remedy="Use up to 100 letters, digits, '_', '-' and '.', a letter or digit first and no '.' last.",
            )


@runtime_checkable
class Savable(Protocol):
    """A state that can be taken apart into sections, and put together again from their files.

    It may also have a method `facts() -> Mapping[str, str | int | float | bool]`: what is worth knowing of the run (versions, threads)
    before any file is opened. It is kept beside the sections.
    """

    def sections(self) -> Sequence[Section]:
        """Give the parts, each name once. Nothing is copied yet: the state must not change until they are written or snapshotted."""
        ...

    def restore(self, opened: Mapping[str, OpenedFile]) -> Any:
        """Take the state back from open files, by the names of their sections, and report what came of it."""
        ...
