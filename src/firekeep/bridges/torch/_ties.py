"""Which places of a torch model hold one tensor, and which tensors are none that a file can hold."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from firekeep.tensors import storage_fault

LAZY = "its shape is not known yet: run one batch through the model first, as lazy modules want"


class Held(Protocol):
    """A place that holds a tensor, or a module that keeps its weights packed."""

    path: str
    module: nn.Module
    value: torch.Tensor | None
    fault: str | None


def first_names(places: Iterable[Held]) -> dict[str, str]:
    """Map each further path of a tensor to the first one."""
    places = list(places)
    if len({_whereabouts(place) for place in places}) == len(places):
        return {}
    first: dict[Hashable, str] = {}
    ties = {}
    for place in places:
        key = tie_of(place)
        if first.setdefault(key, place.path) != place.path:
            ties[place.path] = first[key]
    return ties


def _whereabouts(place: Held) -> int:
    """Give a number that places of one tensor share; most models have none twice, which is soon told."""
    value = place.value
    if value is None:
        return id(place.module)
    return id(value) if place.fault is not None or value.is_meta else value.data_ptr() or id(value)


def tie_of(place: Held) -> Hashable:
    """Say which tensor hangs at a place: equal for two places of one tensor, be it one object or one memory seen in the same way."""
    value = place.value
    if value is None:
        return id(place.module)
    if place.fault is not None or value.is_meta or not (address := value.data_ptr()):
        return id(value)
    return (address, value.device, value.dtype, value.shape, value.stride())


def fault(value: torch.Tensor) -> str | None:
    """Say why a tensor is none that can be described by its dtype, shape and memory, or give None."""
    kind = type(value)
    if kind is not nn.Parameter and kind is not torch.Tensor:
        if is_lazy(value):
            return LAZY
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or kind.__name__ == "FlatParameter":
            return f"{kind.__name__} is a tensor that keeps its values in a form of its own"
    if value.is_nested:
        return "a nested tensor has no shape"
    if value.layout is not torch.strided:
        return f"its layout is {value.layout}, and files hold dense tensors"
    if value.is_quantized:
        return f"it is quantized ({value.dtype}), and its scale has no place in a file"
    return None if value.is_meta else storage_fault(value)
