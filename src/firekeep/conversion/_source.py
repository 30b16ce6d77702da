"""The part of a source that is converted, and what of it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from firekeep.errors import FirekeepError, RuleError
from firekeep.formats import OpenOptions
from firekeep.opened import OpenedFile, narrow
from firekeep.wording import some

_DEEPEST = 1_000_000
"""Values looked at for what is no tensor; what lies beyond is not named."""


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


def other_values(opened: OpenedFile) -> tuple[list[str], str | None]:
    """Name the top-level keys of a PyTorch file under which something is that is no tensor; or say why they are not known."""
    if opened.format != "pytorch":
        return [], None
    from firekeep.formats.pytorch import Opaque, TensorRef

    try:
        root = opened.values()
    except FirekeepError as error:
        return [], f"what the file holds besides tensors was not looked at: {error.message}"

    barren = set[int]()  # what is shared by many keys is looked through once
    left = _DEEPEST

    def has_others(value: Any) -> bool:
        nonlocal left
        waiting, seen = [value], set[int]()
        while waiting and left > 0:
            item = waiting.pop()
            left -= 1
            if isinstance(item, TensorRef):
                continue
            if not isinstance(item, dict | list | tuple):
                return True
            if id(item) not in seen and id(item) not in barren:
                seen.add(id(item))
                waiting.extend(item.values() if isinstance(item, dict) else item)
        barren.update(seen)
        return False

    if isinstance(root, TensorRef):
        return [], None
    if isinstance(root, Opaque):
        return [], f"the file holds an object of the class {root.name}: its tensors were taken, and nothing else of it"
    return [key for key, value in _items(root) if has_others(value)], None


def _items(root: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(root, Mapping):
        yield from ((str(key), value) for key, value in root.items())
    elif isinstance(root, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(root))
