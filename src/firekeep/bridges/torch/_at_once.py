"""A torch model that is described and filled, or described twice, in one go."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from firekeep.bridges._protocol import Filling
from firekeep.bridges.torch import _constants, _describe, _fill
from firekeep.bridges.torch._walk import Walk, walk
from firekeep.entry import TensorEntry
from firekeep.slots import Constants, Outline


class AtOnce:
    """A bridge that goes by what it has described: for one load or save, during which nobody else changes the model."""

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
        found = self._found(obj)
        return _describe.entries(obj) if found is None else _describe.entries_of(found)

    def constants(self, obj: nn.Module) -> list[Constants]:
        """Tell what the parts of the model compute with beside their tensors."""
        return _constants.constants(obj)

    def fill(self, obj: nn.Module, fillings: Sequence[Filling], done: list[str]) -> None:
        """Put tensors into the places found; once, as the model is another one then."""
        found = self._found(obj)
        self._walked = None
        # A function of the user's that chooses names was called meanwhile, and may have done anything.
        _fill.fill(obj, fillings, done, found=found if found is not None and found.is_still_so() else None)

    def _found(self, obj: nn.Module) -> Walk | None:
        return self._walked[1] if self._walked is not None and self._walked[0] is obj else None
