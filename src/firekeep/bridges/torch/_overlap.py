"""Tensors of a model that look at one memory in different ways: a decoder that holds its encoder's weight turned round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from firekeep.bridges.torch._bytes import pour
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError

Pouring = tuple[TensorEntry, torch.Tensor]
"""Values, and the tensor of the model that takes them."""


def check_overlaps(pourings: Sequence[Pouring]) -> None:
    """Refuse values that cannot all stand in memory that their tensors share; it is tried out in a copy of that memory."""
    for group in _overlapping(pourings):
        storage = group[0][1].untyped_storage()
        copied = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone()
        seen = [_like(target, copied) for _, target in group]
        for (entry, _), view in zip(group, seen, strict=True):
            pour(entry, view)
        for (entry, target), view in zip(group, seen, strict=True):
            alone = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            pour(entry, alone)
            if not torch.equal(_bytes(alone), _bytes(view)):
                others = ", ".join(repr(other.name) for other, _ in group if other is not entry)
                raise EntryError(
                    f"in the model it shares its memory with {others}, and the values given cannot stand there together",
                    tensor=entry.name,
                    remedy="Give values that agree, leave one of them out, or let each have memory of its own in the model.",
                )


def _overlapping(pourings: Sequence[Pouring]) -> Iterator[list[Pouring]]:
    if _lie_apart([target for _, target in pourings]):
        return
    spans = sorted(
        ((*_span(pouring[1]), place) for place, pouring in enumerate(pourings) if pouring[1].numel()),
        key=lambda span: span[0],
    )
    group: list[Pouring] = []
    reach = (0, -1)
    for (storage, start), stop, place in spans:
        if group and not (storage == reach[0] and start < reach[1]):
            if len(group) > 1:
                yield group
            group = []
        reach = (storage, max(stop, reach[1]) if group else stop)
        group.append(pourings[place])
    if len(group) > 1:
        yield group


def _lie_apart(targets: Sequence[torch.Tensor]) -> bool:
    """Say whether all are whole stretches of the same memory, each behind the one before: so it is with most models."""
    if not all(target.is_contiguous() and target.is_cpu for target in targets):
        return False
    spans = sorted((target.data_ptr(), target.nbytes) for target in targets)
    return all(start + nbytes <= following for (start, nbytes), (following, _) in pairwise(spans))


def _span(target: torch.Tensor) -> tuple[tuple[int, int], int]:
    """Give the storage of a tensor, and where its elements begin and end there."""
    start = int(target.storage_offset()) * target.element_size()
    reach: int = sum((extent - 1) * step for extent, step in zip(target.shape, target.stride(), strict=True)) + 1
    return (target.untyped_storage().data_ptr(), start), start + reach * target.element_size()


def _like(target: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """See other memory as a tensor sees its own."""
    seen = torch.empty(0, dtype=target.dtype, device=target.device)
    return seen.set_(memory.untyped_storage(), target.storage_offset(), target.shape, target.stride())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
