"""What the user called the layers of a model of Keras, whose files call them by their classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firekeep.opened import OpenedFile


def named(opened: OpenedFile) -> dict[str, str]:
    """Map what names of tensors begin with to what the layer is called in the model, where that is another word."""
    names = opened.details.get("layer_names")
    if not isinstance(names, dict):
        return {}
    held = _beginnings(opened)
    return {
        path: name
        for path, name in names.items()
        if path in held and path.rpartition(".")[2] != name and path.partition(".")[0] != "optimizer"
    }


def _beginnings(opened: OpenedFile) -> set[str]:
    found: set[str] = set()
    for name in opened:
        while (name := name.rpartition(".")[0]) and name not in found:
            found.add(name)
    return found
