"""A few places of a model that stand for all of them."""

from __future__ import annotations

from firekeep.applying._wants import prefixes
from firekeep.folding import is_number
from firekeep.slots import Outline, Slot


def sample(outline: Outline) -> Outline:
    """Keep one of each group of layers that are alike but for numbers in their paths, whole: what they want is called alike, too."""
    groups: dict[str, list[Slot]] = {}
    for slot in outline:
        groups.setdefault(_group(slot), []).append(slot)
    kinds: dict[tuple[object, ...], list[Slot]] = {}
    for slots in groups.values():
        kinds.setdefault(tuple(map(_kind, slots)), slots)
    kept = tuple(slot for slots in kinds.values() for slot in slots)
    around = {path for slot in kept for path in prefixes(slot.path)}
    layers = tuple(layer for layer in outline.layers if layer.path in around)
    return Outline(slots=kept, convention=outline.convention, layers=layers, bare=outline.bare)


def _group(slot: Slot) -> str:
    """Give the path of the outermost layer that has to do with how a tensor lies."""
    layer = slot.layer
    if layer is None:
        return slot.path
    while layer.parent is not None:
        layer = layer.parent
    return layer.path


def _kind(slot: Slot) -> tuple[object, ...]:
    path = tuple("" if is_number(segment) else segment for segment in slot.path.split("."))
    return path, None if slot.layer is None else slot.layer.kind
