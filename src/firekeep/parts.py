"""The part of a PyTorch file that is a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firekeep.errors import RuleError
from firekeep.formats import OpenOptions
from firekeep.opened import OpenedFile, narrow
from firekeep.wording import some


@dataclass(frozen=True, slots=True)
class Part:
    """What is taken of a file: all of it, or what lies under a key."""

    opened: OpenedFile
    key: str | None
    left_out: tuple[str, ...]


def take_part(opened: OpenedFile, options: OpenOptions, top_level_key: str | None) -> Part:
    """Choose the model in a PyTorch file: what was asked for, or the one that there is.

    With no key given and one subtree that is a model, that one is taken. Several raise `RuleError` naming them.
    """
    if top_level_key is not None or not opened.subtrees:
        return Part(opened, top_level_key or None, ())
    if len(opened.subtrees) > 1:
        raise RuleError(
            f"{len(opened.subtrees)} parts of the file look like a model: {some(opened.subtrees)}",
            remedy=f"Choose one, top_level_key={opened.subtrees[0]!r}, or take all the file holds with top_level_key=''.",
        )
    (key,) = opened.subtrees
    part = narrow(opened, replace(options, top_level_key=key))
    inside = {f"{key}.{name}" if name else key for name in part}
    return Part(part, key, tuple(name for name in opened if name not in inside))
