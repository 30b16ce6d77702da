"""Moments whose numbers, or whose roles, are not the same on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from firekeep.arrays import Array
from firekeep.blobs import DeferredBlob
from firekeep.bridges._states import ParamState
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.records._file_params import FileParam
from firekeep.views import permuted


def computed(like: TensorEntry, function: Callable[..., Array], *sources: TensorEntry) -> TensorEntry:
    """Give a tensor that is computed of others when it is drawn, in double precision, and rounded once."""

    def draw() -> memoryview:
        import numpy as np

        from firekeep.arrays import as_array, numpy_dtype

        arrays = [as_array(one).astype(np.float64) for one in sources]
        made = np.ascontiguousarray(function(*arrays).astype(numpy_dtype(like.require())))
        return made.reshape(-1).view(np.uint8).data

    return replace(like, blob=DeferredBlob(like.nbytes, draw))


def momentum_of(options: Mapping[str, Any]) -> float:
    """Give the momentum of Muon, which its two scales differ by; raises `UnsupportedError` where the options do not tell it."""
    if not isinstance(held := options.get("momentum"), int | float):
        raise UnsupportedError(
            "Burn keeps the momentum of Muon in another scale, and nothing tells the factor",
            remedy="Give the transformation too, as tx=.",
        )
    return float(held)


def scaled(entry: TensorEntry, *, by: float) -> TensorEntry:
    """Give a tensor with all numbers multiplied."""
    return computed(entry, lambda numbers: numbers * by, entry)


def centered_average(state: Mapping[str, Any]) -> TensorEntry | None:
    """Give what Burn's RMSProp divides by: the average of squares, less the square of the average where it is centered."""
    squares, mean = state.get("square_avg"), state.get("grad_avg")
    if not isinstance(squares, TensorEntry):
        return None
    if not isinstance(mean, TensorEntry):
        return replace(squares)
    return computed(squares, lambda first, second: first - second * second, squares, mean)


def fitted(entry: TensorEntry, name: str, one: ParamState, homes: Sequence[FileParam]) -> TensorEntry | None:
    """Give a factor of Adafactor for the parameter as the file has it: rows and columns change places where it is turned round.

    None where the parameter is split or joined there: the factors of parts do not follow from those of the whole.
    """
    home = homes[0]
    if len(homes) > 1 or not home.is_whole:
        return None
    if not home.is_turned:
        return entry
    other = one.state.get("col_var" if name == "second_moment" else "row_var")
    return permuted(other, (1, 0)) if isinstance(other, TensorEntry) else None
