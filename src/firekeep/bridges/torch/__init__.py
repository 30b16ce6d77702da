"""PyTorch models: `torch.nn.Module`, compiled, on several devices or on none. PyTorch is imported when a model is there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from firekeep.bridges._protocol import Filling
from firekeep.entry import TensorEntry
from firekeep.ids import ParamId
from firekeep.slots import Outline

if TYPE_CHECKING:
    from torch import nn

__all__ = ["entries", "fill", "ids_of", "name", "outline", "owns"]

name = "torch"


def owns(obj: object) -> bool:
    """Say whether the object is a `torch.nn.Module`."""
    framework: Any = sys.modules.get("torch.nn")  # who gives a module has it imported
    return framework is not None and isinstance(obj, getattr(framework, "Module", ()))


def outline(obj: nn.Module) -> Outline:
    """Describe the parameters and persistent buffers of a model, under the names and in the order of its state dict.

    The names are those of the model inside the wrappers of `torch.compile` and data parallelism. Extra state of modules is left out.
    """
    from firekeep.bridges.torch import _describe

    return _describe.outline(obj)


def entries(obj: nn.Module) -> list[TensorEntry]:
    """Describe the values of a model, without copying any; parameters that have no id yet get one."""
    from firekeep.bridges.torch import _describe

    return _describe.entries(obj)


def fill(obj: nn.Module, fillings: Sequence[Filling], done: list[str]) -> None:
    """Put tensors into a model, in place where the dtype stays; see `Bridge.fill`.

    Parameters stay the objects they are, but for those on the meta device, which are replaced by ones in memory.
    """
    from firekeep.bridges.torch import _fill

    _fill.fill(obj, fillings, done)


def ids_of(obj: nn.Module) -> dict[str, ParamId]:
    """Give the ids of all parameters and buffers of a model by path, made where there were none.

    They stay through `.to()`, `to_empty()` and `load_state_dict`. A deep copy of a model gets ids of its own.
    """
    from firekeep.bridges.torch import _describe

    return _describe.ids_of(obj)
