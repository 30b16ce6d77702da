"""Layers that share a weight, and may be of another kind in another framework: a head that is the embedding."""

from __future__ import annotations

from dataclasses import replace

from firekeep.layouts import BURNS
from firekeep.rules.layout import TIED, TWINS
from firekeep.slots import Convention, Layer, Outline

_ALIKE: tuple[Convention | None, ...] = (None, "torch", "equinox")
"""Layouts in which linear maps and embeddings lie alike and have one name."""


def with_shared(outline: Outline, layout: Convention | None) -> tuple[Layer, ...]:
    """Give the layers of a model, with a fact that tells of those with a shared weight where a file in the layout needs it.

    In Burn's layout a head lies as a linear map unless told otherwise; what Burn and PyTorch themselves have is never told.
    """
    if layout in _ALIKE or (layout == "burn" and outline.convention in BURNS):
        return outline.layers
    shared: dict[str, dict[str, str]] = {}
    for slot in outline:
        if slot.layer is not None and slot.layer.kind in TWINS:
            shared.setdefault(slot.tied_to or slot.path, {})[slot.layer.path] = slot.layer.kind
    marked: set[str] = set()
    for kinds in shared.values():
        told = [path for path, kind in kinds.items() if layout != "burn" or kind == "embedding"]
        marked.update(told if len(told) > 1 else ())
    return tuple(
        replace(layer, facts={**layer.facts, TIED: True}) if layer.path in marked else layer for layer in outline.layers
    )
