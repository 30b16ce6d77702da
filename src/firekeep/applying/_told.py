"""A load into a tree that does not tell its layers, where another model does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from firekeep.bridges import Bridge, Filling
from firekeep.entry import TensorEntry
from firekeep.rules.layout import without_collection, without_collections
from firekeep.slots import Constants, Outline, Slot

_OF_FLAX = ("kernel", "embedding", "scale")


class Told:
    """A bridge over which a tree has the layers of another model, and the names that Linen gives them in their collections."""

    def __init__(self, bridge: Bridge, telling: Callable[[Outline], Outline]) -> None:
        self.base = bridge
        self._telling = telling
        self._slots: dict[str, Slot] = {}

    @property
    def name(self) -> str:
        """The member's name."""
        return self.base.name

    def owns(self, obj: object) -> bool:
        """Say whether the object is of the member's kind."""
        return self.base.owns(obj)

    def outline(self, obj: Any) -> Outline:
        """Describe the places of the object, with layers if it does not tell them itself."""
        own = self.base.outline(obj)
        made = told_outline(own)
        self._slots = dict(zip(made.paths(), own, strict=True))
        return self._telling(made) if made.bare or made.convention is None else made

    def entries(self, obj: Any) -> list[TensorEntry]:
        """Describe the tensors the object holds."""
        return told_entries(self.base.entries(obj))

    def constants(self, obj: Any) -> list[Constants]:
        """Tell what the parts of the object compute with beside their tensors."""
        return self.base.constants(obj)

    def fill(self, obj: Any, fillings: Sequence[Filling], done: list[str]) -> None:
        """Put tensors into the places, which the object calls otherwise."""
        own = {self._slots[one.slot.path].path: one.slot.path for one in fillings}
        finished: list[str] = []
        given = [_given(one, self._slots[one.slot.path]) for one in fillings]
        try:
            self.base.fill(obj, given, finished)
        finally:
            done += [own[path] for path in finished]


def _given(filling: Filling, slot: Slot) -> Filling:
    return replace(filling, slot=slot, entry=filling.entry.renamed(slot.path))


def told_outline(outline: Outline) -> Outline:
    """Give an outline with the names that layers have: those of Linen without their collections.

    A tree of arrays that are called as Flax calls them, and of which nothing else is known, is one of Linen's.
    """
    last = {path.rpartition(".")[2] for path in outline.paths()}
    if outline.convention is None and not last.isdisjoint(_OF_FLAX):
        outline = replace(outline, convention="linen", bare=True)
    if outline.convention != "linen" or not outline.bare:
        return outline
    names = without_collections(outline.paths())
    slots = tuple(
        replace(slot, path=names[slot.path], tied_to=None if slot.tied_to is None else names[slot.tied_to])
        for slot in outline
    )
    had = any(name != old for old, name in names.items())
    modules = frozenset(map(without_collection, outline.modules)) if had else outline.modules
    return replace(outline, slots=slots, modules=modules)


def told_entries(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Give entries the same names."""
    names = without_collections(entry.name for entry in entries)
    return [entry.renamed(names[entry.name]) for entry in entries]
