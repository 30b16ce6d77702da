"""A load that leaves its object as it is and makes another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firekeep.bridges import Filling, Remaker
from firekeep.entry import TensorEntry
from firekeep.slots import Constants, Outline


class Anew:
    """A bridge over which a filled object is another one, kept in `made`."""

    def __init__(self, bridge: Remaker, obj: Any) -> None:
        self._bridge = bridge
        self.made = obj

    @property
    def name(self) -> str:
        """The member's name."""
        return self._bridge.name

    def owns(self, obj: object) -> bool:
        """Say whether the object is of the member's kind."""
        return self._bridge.owns(obj)

    def outline(self, obj: Any) -> Outline:
        """Describe the places of the object, those too that never change."""
        return self._bridge.outline_anew(obj)

    def entries(self, obj: Any) -> list[TensorEntry]:
        """Describe the tensors the object holds."""
        return self._bridge.entries(obj)

    def constants(self, obj: Any) -> list[Constants]:
        """Tell what the parts of the object compute with beside their tensors."""
        return self._bridge.constants(obj)

    def fill(self, obj: Any, fillings: Sequence[Filling], done: list[str]) -> None:
        """Make the other object; where that fails nothing is done at all."""
        finished: list[str] = []
        self.made = self._bridge.filled(obj, fillings, finished)
        done += finished
