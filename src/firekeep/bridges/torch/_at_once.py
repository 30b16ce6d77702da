"""A torch model that is described and filled in one go."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from firekeep.bridges._protocol import Filling
from firekeep.bridges.torch import _constants, _describe, _fill
from firekeep.bridges.torch._walk import Walk, walk
from firekeep.entry import TensorEntry
from firekeep.slots import Constants, Outline


class AtOnce:
    """A bridge that fills what it has described without a second walk: for one load, during which nobody else changes the model."""

    name = "torch"

    def __init__(self) -> None:
        self._walked: tuple[nn.Module, Walk] | None = None

    def owns(self, obj: object) -> bool:
        """Say whether the object is a `torch.nn.Module`."""
        return isinstance(obj, nn.Module)

    def outline(self, obj: nn.Module) -> Outline:
        """Describe the places of the model, and keep what was found."""
        found = walk(obj)
        self._walked = (obj, found)
        return _describe.outline_of(found)

    def entries(self, obj: nn.Module) -> list[TensorEntry]:
        """Describe the tensors the model holds."""
        return _describe.entries(obj)

    def constants(self, obj: nn.Module) -> list[Constants]:
        """Tell what the parts of the model compute with beside their tensors."""
        return _constants.constants(obj)

    def fill(self, obj: nn.Module, fillings: Sequence[Filling], done: list[str]) -> None:
        """Put tensors into the places found; once, as the model is another one then."""
        walked, self._walked = self._walked, None
        _fill.fill(obj, fillings, done, found=walked[1] if walked is not None and walked[0] is obj else None)
