"""What each file of a step says of the save it is of."""

from __future__ import annotations

from dataclasses import replace

from firekeep.checkpoint._step import StepInfo
from firekeep.sections import Section

SAVE = "firekeep.step"
"""Where the metadata of each file tells of which save it is."""


def marked(section: Section, info: StepInfo) -> Section:
    """Have a section say of which save it is."""
    contents = section.contents
    return replace(section, contents=replace(contents, metadata={**contents.metadata, SAVE: save_of(info)}))


def save_of(info: StepInfo) -> str:
    """Name a save: no two of one step are at the same microsecond."""
    return f"{info.step} {float(info.time)!r}"
