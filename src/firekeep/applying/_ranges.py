"""Whole numbers on their way into narrower types, which are looked at before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firekeep.bridges import Filling
from firekeep.dtypes import DType
from firekeep.report import Problem

_WHOLE = ("int", "uint")


def find_outside(fillings: Sequence[Filling]) -> Iterator[Problem]:
    """Name the tensors with whole numbers that the types of their places do not hold; those that may have some are read."""
    for filling in fillings:
        source, target = filling.entry.require(), filling.dtype
        if source.kind not in _WHOLE or target.kind not in (*_WHOLE, "bool") or not filling.entry.nbytes:
            continue
        least, most = _bounds(target)
        if _bounds(source)[0] >= least and _bounds(source)[1] <= most:
            continue
        low, high = _extremes(filling)
        if low < least or high > most:
            why = f"it holds numbers from {low} to {high}, and {target} holds {least} to {most}"
            yield Problem(kind="read", name=filling.slot.path, message=why)


def _bounds(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "bool":
        return 0, 1
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _extremes(filling: Filling) -> tuple[int, int]:
    from firekeep.arrays import as_array

    array = as_array(filling.entry)
    return int(array.min()), int(array.max())
