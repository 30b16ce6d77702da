"""What a source holds besides the tensors that are converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firekeep.errors import FirekeepError
from firekeep.opened import OpenedFile

_DEEPEST = 1_000_000
"""Values looked at for what is no tensor; what lies beyond is not named."""


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
