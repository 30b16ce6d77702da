"""Module trees of `firekeep.module`, with Burn's names and shapes. What was not made yet is not made to be described or filled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from firekeep.bridges._protocol import Filling
from firekeep.entry import TensorEntry
from firekeep.slots import Constants, Outline

if TYPE_CHECKING:
    from firekeep.module import Module, Param, Variant

    Tree = Module | Param | Variant | list[Any] | tuple[Any, ...]

__all__ = ["constants", "entries", "fill", "name", "outline", "owns"]

name = "native"


_DEEPEST = 256


def owns(obj: object, depth: int = 0) -> bool:
    """Take modules, variants and parameters, and lists and tuples with such in them; ones too deep are refused as any other tree."""
    module: Any = sys.modules.get("firekeep.module")  # who has a part of a tree has it imported
    if module is None:
        return False
    if isinstance(obj, list | tuple):
        return depth < _DEEPEST and any(owns(element, depth + 1) for element in obj)
    return isinstance(obj, module.Module | module.Param | module.Variant)


def outline(obj: Tree) -> Outline:
    """Describe the parameters and running states of a tree, in the order of declaration; none is made."""
    from firekeep.bridges.native import _describe

    return _describe.outline(obj)


def entries(obj: Tree) -> list[TensorEntry]:
    """Describe the tensors of a tree in file form; a parameter that has no value yet is made when its bytes are drawn."""
    from firekeep.bridges.native import _describe

    return _describe.entries(obj)


def constants(obj: Tree) -> list[Constants]:
    """Tell what the parts of the object compute with beside their tensors; see `Bridge.constants`."""
    from firekeep.bridges.native import _constants

    return _constants.constants(obj)


def fill(obj: Tree, fillings: Sequence[Filling], done: list[str]) -> None:
    """Put tensors into a tree; no initialiser is run. Parameters take the ids of their entries, running states keep theirs."""
    from firekeep.bridges.native import _fill

    _fill.fill(obj, fillings, done)
