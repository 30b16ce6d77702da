"""Gradients that were gathered and not applied yet: taken as entries, and put back where parameters are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from firekeep.bridges.torch._bytes import pour, torch_dtype
from firekeep.bridges.torch._extra_state import named_parameters
from firekeep.entry import TensorEntry
from firekeep.tensors import torch_entry


def gradients(root: nn.Module) -> list[TensorEntry]:
    """Describe those that are there; see the door."""
    return [torch_entry(path, value.grad) for path, value in named_parameters(root) if value.grad is not None]


def gradient_faults(root: nn.Module, found: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Say which of these have no place here, and why; see the door."""
    known = dict(named_parameters(root))
    faults = ((path, _fault(known.get(path), entry)) for path, entry in found.items())
    return {path: why for path, why in faults if why is not None}


def set_gradients(root: nn.Module, found: Mapping[str, TensorEntry]) -> None:
    """Put them in place, and take all others away; see the door."""
    made = {path: _made(value, found[path]) for path, value in named_parameters(root) if path in found}
    for path, value in named_parameters(root):
        value.grad = made.get(path)


def _fault(parameter: torch.Tensor | None, entry: TensorEntry) -> str | None:
    if parameter is None:
        return "there is no such parameter"
    if tuple(parameter.shape) != entry.shape:
        return f"it has shape {list(entry.shape)}, and the parameter {list(parameter.shape)}"
    due = getattr(parameter, "grad_dtype", parameter.dtype) or parameter.dtype
    if torch_dtype(entry.require()) is not due:
        return f"it is of {entry.dtype}, and the parameter takes gradients of {due}"
    return None


def _made(parameter: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """Make a gradient that lies as its parameter does, as those of PyTorch do: sums over it are taken in this order."""
    made = torch.empty_like(parameter, dtype=torch_dtype(entry.require()), requires_grad=False)
    pour(entry, made)
    return made
