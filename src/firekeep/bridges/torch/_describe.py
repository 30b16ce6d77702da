"""Torch models as outlines, as entries, and as ids by path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from firekeep.blobs import Blob
from firekeep.bridges.torch._extra_state import rewriting, stateful
from firekeep.bridges.torch._ids import recall, remember
from firekeep.bridges.torch._ties import LAZY
from firekeep.bridges.torch._walk import Place, Walk, walk
from firekeep.dtypes import BY_NAME, BY_TORCH, DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.garbage import collector_paused
from firekeep.ids import ParamId
from firekeep.slots import Outline, Slot
from firekeep.tensors import torch_entry

_UNKNOWN = BY_NAME["U8"]
_PACKED = "a quantized layer keeps its weights packed for its kernels"


def outline(root: nn.Module) -> Outline:
    """Describe the parameters and persistent buffers of a model, of lazy and meta ones too."""
    return outline_of(walk(root))


def outline_of(found: Walk) -> Outline:
    """Do the same for a model that was walked."""
    with collector_paused():
        first = found.ties
        slots = tuple(_slot(place, first.get(place.path)) for place in found.places)
    return Outline(
        slots,
        convention="torch",
        layers=tuple(found.layers),
        modules=frozenset(found.modules),
        keyed=frozenset(found.keyed),
        valueless=tuple(found.valueless),
        stateful=tuple(path for path, _ in stateful(found.parts)),
        rewriting=tuple(path for path, _ in rewriting(found.parts)),
    )


def entries(root: nn.Module) -> list[TensorEntry]:
    """Describe the values of a model; what has no id yet gets one."""
    return entries_of(walk(root))


def entries_of(found: Walk) -> list[TensorEntry]:
    """Do the same for a model that was walked."""
    with collector_paused():
        ids = ids_in(found)
        return [_entry(place, ids[place.path]) for place in found.places]


def ids_of(root: nn.Module) -> dict[str, ParamId]:
    """Give the ids of all parameters and buffers of a model by path, made where there were none; tied ones have one between them."""
    return ids_in(walk(root))


def ids_in(found: Walk) -> dict[str, ParamId]:
    """Do the same for a model that was walked."""
    first = found.ties
    ids: dict[str, ParamId] = {}
    for place in found.places:
        known = recall(place.module, place.name)
        wanted = ids[first[place.path]] if place.path in first else known or ParamId.fresh()
        if known is not wanted:
            remember(place.module, place.name, wanted)
        ids[place.path] = wanted
    return ids


def _slot(place: Place, tied_to: str | None) -> Slot:
    value = place.value
    dtype, shape, problem = _looks(value, place.fault)
    return Slot(
        path=place.path,
        dtype=dtype,
        shape=shape,
        layer=place.layer,
        containers=place.containers,
        param_id=recall(place.module, place.name),
        trainable=place.is_parameter and value is not None and value.requires_grad,
        tied_to=tied_to,
        problem=problem,
    )


def _looks(value: torch.Tensor | None, problem: str | None) -> tuple[DType, tuple[int, ...], str | None]:
    """Give dtype, shape and what stands in the way of filling, as far as each is known; `problem` is the fault of the tensor, if any."""
    if value is None:
        return _UNKNOWN, (), _PACKED
    dtype = _DTYPES.get(value.dtype)
    if problem is not None and (is_lazy(value) or value.is_nested):
        return dtype or _UNKNOWN, (), problem
    shape = tuple(value.shape)
    if dtype is None or dtype.kind == "quantized":
        return dtype or _UNKNOWN, shape, problem or f"a tensor of {value.dtype} has no plain values"
    if dtype.bits == 4:
        if not shape:
            return dtype, shape, problem or f"a tensor of {value.dtype} has no rank-0 form"
        shape = (*shape[:-1], shape[-1] * 2)
    if problem is None and 0 in value.stride() and _repeats(value):
        problem = "its elements share memory (it is an expanded tensor), so that they cannot be set one by one"
    return dtype, shape, problem


def _repeats(value: torch.Tensor) -> bool:
    return 0 not in value.shape and any(
        step == 0 and extent > 1 for step, extent in zip(value.stride(), value.shape, strict=True)
    )


def _entry(place: Place, param_id: ParamId) -> TensorEntry:
    value = place.value
    if value is None:
        return TensorEntry(place.path, None, (), Blob(0), param_id, _PACKED)
    try:
        if is_lazy(value):
            raise UnsupportedError(LAZY)
        entry = torch_entry(place.path, value)
    except UnsupportedError as error:
        dtype, shape, _ = _looks(value, place.fault)
        problem = f"{error.message}. {error.remedy}" if error.remedy else error.message
        nbytes = 0 if dtype.kind == "quantized" else dtype.nbytes(shape)
        return TensorEntry(place.path, dtype, shape, Blob(nbytes), param_id, problem)
    entry.param_id = param_id
    return entry


_DTYPES: dict[Any, DType] = {getattr(torch, name): row for name, row in BY_TORCH.items() if hasattr(torch, name)}
