"""Tensors put into torch models: read from the file straight into the memory of parameters wherever that will do."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from firekeep.bridges._protocol import Filling, check_fillings
from firekeep.bridges.torch._bytes import bytes_of, pour, torch_dtype
from firekeep.bridges.torch._ids import remember
from firekeep.bridges.torch._overlap import check_overlaps
from firekeep.bridges.torch._walk import Place, Walk, walk
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import EntryError, FirekeepError, UnsupportedError
from firekeep.garbage import collector_paused
from firekeep.reading import read_into
from firekeep.sources import Source

_READ_ONLY = (
    "the memory of a tensor cannot be written to: it is that of a read-only array or mapping, and a copy (clone) can"
)


def fill(root: nn.Module, fillings: Sequence[Filling], done: list[str], *, found: Walk | None = None) -> None:
    """Fill slots of a model: those whose bytes lie in a file as they are all at once, then the others one by one.

    `found` is the model as it was just walked, if it was.
    """
    check_fillings(fillings)
    # In inference mode new memory would be such that no training can use it later; leaving it switches grad mode on.
    with torch.inference_mode(mode=False), torch.no_grad():
        tasks = _tasks(found or walk(root), fillings)
        check_overlaps([(task.entry, task.target) for task in tasks if not task.is_new])
        direct = [task for task in tasks if task.window is not None]
        _read(direct, done)
        for task in tasks:
            if task.window is None:
                try:
                    pour(task.entry, task.target)
                except FirekeepError as error:
                    raise error.at(tensor=task.entry.name)  # noqa: B904 - the same error, with its place
                except RuntimeError as error:
                    raise UnsupportedError(f"PyTorch cannot put it there: {error}", tensor=task.entry.name) from error
                _finish(task, done)


def cast(root: nn.Module, dtype: DType) -> None:
    """Cast the floats of a model in place, as `Module.to` does: parameters stay the objects they are."""
    target = torch_dtype(dtype)
    if target is None or not target.is_floating_point:
        raise UnsupportedError(
            f"{dtype} is no float type of PyTorch's", remedy="Give a float type such as F32 or BF16."
        )
    root.to(target)


@dataclass(slots=True)
class _Task:
    """One tensor of the model to be filled: all places where it hangs, and the memory that takes the values."""

    fillings: list[Filling]
    places: list[Place]
    target: torch.Tensor
    is_new: bool
    window: tuple[Source, int] | None

    @property
    def entry(self) -> TensorEntry:
        """The entry it is filled from; those of further names have the same values."""
        return self.fillings[0].entry


def _tasks(found: Walk, fillings: Sequence[Filling]) -> list[_Task]:
    with collector_paused():
        by_path: dict[str, list[Place]] = {}
        ties = found.ties
        for place in found.places:
            first = ties.get(place.path)
            by_path[place.path] = group = [] if first is None else by_path[first]
            group.append(place)
        wanted: dict[int, list[Filling]] = {}
        for filling in fillings:
            group = by_path.get(filling.slot.path, [])
            if not group:
                raise EntryError("the model has no place of that name (any more)", tensor=filling.slot.path)
            wanted.setdefault(id(group), []).append(filling)
        for tied in wanted.values():
            if len(tied) > 1:
                _check_tied(tied)
        return [_task(tied, by_path[tied[0].slot.path]) for tied in wanted.values()]


def _check_tied(fillings: list[Filling]) -> None:
    """Refuse two tensors for the two names of one: which of them counts is not for us to say."""
    first = fillings[0]
    for other in fillings[1:]:
        one, two = tie_key(first.entry), tie_key(other.entry)
        same = first.dtype == other.dtype and first.entry.dtype == other.entry.dtype
        if same and (one is None or one != two):
            same = first.entry.read() == other.entry.read()
        if not same:
            raise EntryError(
                f"in the model it is the same tensor as {first.slot.path!r}, and two different ones were given",
                tensor=other.slot.path,
                remedy="Give one of the two, or untie them in the model first.",
            )


def _task(fillings: list[Filling], places: list[Place]) -> _Task:
    filling = fillings[0]
    value = places[0].value
    if value is None:
        raise UnsupportedError("nothing can be put there: its weights are packed", tensor=filling.slot.path)
    dtype = torch_dtype(filling.dtype)
    if dtype is None:
        raise UnsupportedError(f"PyTorch has no dtype for {filling.dtype}", tensor=filling.slot.path)
    target, is_new = value, False
    if value.is_meta or value.dtype is not dtype:
        shape = filling.slot.shape
        extents = (*shape[:-1], shape[-1] // 2) if filling.dtype.bits == 4 else shape
        target = torch.empty(extents, dtype=dtype, device="cpu" if value.is_meta else value.device)
        is_new = True
    return _Task(fillings, places, target, is_new, _window(filling, target))


def _window(filling: Filling, target: torch.Tensor) -> tuple[Source, int] | None:
    """Give the file and offset where exactly the bytes lie that the target, which has the filling's dtype, shall hold, or None."""
    blob = filling.entry.blob
    window = blob.window()
    if window is None or window[0].fileno() is None or sys.byteorder == "big":
        return None
    if target.dtype is torch.bool:  # any byte may stand in a file, and torch counts on 0 and 1
        return None
    plain = target.is_cpu and target.is_contiguous() and not target.is_conj() and not target.is_neg()
    dtype = filling.entry.dtype
    same = dtype is filling.dtype or (dtype is not None and torch_dtype(dtype) is target.dtype)
    return window if plain and same and blob.nbytes == target.nbytes else None


def _read(tasks: list[_Task], done: list[str]) -> None:
    windows = [(*task.window, task.entry.blob.nbytes) for task in tasks if task.window is not None]
    finished: list[int] = []
    try:
        read_into(windows, [bytes_of(task.target) for task in tasks], finished)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        raise UnsupportedError(_READ_ONLY) from None
    finally:
        # Autograd has seen nothing of it: a backward pass that needs the old values must fail, not use the new ones.
        torch.autograd.graph.increment_version([task.target for task in tasks if not task.target.is_inference()])
        for index in sorted(finished):
            _finish(tasks[index], done)


def _finish(task: _Task, done: list[str]) -> None:
    """Hang new memory where the old was, take over the id, and say so."""
    if task.is_new:
        _hang(task)
    for filling in task.fillings:
        if filling.entry.param_id is not None:
            for place in task.places:
                remember(place.module, place.name, filling.entry.param_id)
            break
    done += [filling.slot.path for filling in task.fillings]


def _hang(task: _Task) -> None:
    """Give the tensor its new memory; where it cannot take that, put one new object in all its places."""
    replaced: dict[int, torch.Tensor] = {}
    for place in task.places:
        old = place.value
        if old is None:
            continue
        if id(old) in replaced:
            setattr(place.module, place.name, replaced[id(old)])
        elif _takes(old, task.target):
            old.data = task.target
            if old.grad is not None:
                old.grad.data = old.grad.to(task.target.dtype)
        else:
            replaced[id(old)] = new = _like(old, task.target)
            setattr(place.module, place.name, new)


def _takes(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Say whether a tensor can change its memory and stay the object that optimizers know."""
    return not old.is_meta and not old.is_inference() and old.device == new.device


def _like(old: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Make a parameter or buffer of the same class, with what its user wrote on it."""
    if not isinstance(old, nn.Parameter):
        return data
    if type(old) is nn.Parameter:
        new: torch.Tensor = nn.Parameter(data, requires_grad=old.requires_grad)
    else:
        new = torch.Tensor._make_subclass(type(old), data, old.requires_grad)  # noqa: SLF001
    new.__dict__.update(old.__dict__)
    return new
