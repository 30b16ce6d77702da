"""Tensors on their way into objects that hold NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firekeep.bridges._protocol import Filling
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, UnsupportedError

if TYPE_CHECKING:
    from firekeep.arrays import Array

_WHOLE = ("int", "uint")


def plain_dtype(dtype: DType) -> DType:
    """Give the dtype that arrays have for one that only files of Burn know."""
    if dtype.kind == "bool":
        return BY_NAME["BOOL"]
    return BY_NAME["F32"] if dtype.name == "FLEX32" else dtype


def check_drawable(filling: Filling) -> None:
    """Refuse, naming the slot, a tensor that no array can hold: as it comes, or as it shall be."""
    from firekeep.arrays import numpy_dtype

    for dtype in (filling.entry.require(), filling.dtype):
        try:
            numpy_dtype(dtype)
        except UnsupportedError as error:
            raise error.at(tensor=filling.slot.path)  # noqa: B904 - the same error, with its place


def draw(entry: TensorEntry, dtype: DType) -> Array:
    """Give a tensor's values in a dtype: a view of its bytes where they are of it already, so perhaps read-only.

    Raises `EntryError` for whole numbers that the dtype does not hold.
    """
    import numpy as np

    from firekeep.arrays import as_array, numpy_dtype

    array = as_array(entry)
    if dtype.kind in _WHOLE and entry.require().kind in _WHOLE:
        _check_range(array, dtype, entry.name)
    with np.errstate(all="ignore"):  # what a cast loses is not told here
        return array.astype(numpy_dtype(plain_dtype(dtype)), copy=False)


def _check_range(array: Array, dtype: DType, name: str) -> None:
    import numpy as np

    from firekeep.arrays import numpy_dtype

    target = numpy_dtype(dtype)
    if not array.size or np.can_cast(array.dtype, target):
        return
    least, most, bounds = int(array.min()), int(array.max()), np.iinfo(target)
    if least < bounds.min or most > bounds.max:
        raise EntryError(
            f"it holds numbers from {least} to {most}, and {dtype} holds {bounds.min} to {bounds.max}",
            tensor=name,
            remedy="Leave it out, or fill a place of a wider dtype.",
        )


def draw_own(entry: TensorEntry, dtype: DType) -> Array:
    """Give a tensor's values in a dtype, in writable memory that nobody else has."""
    drawn = draw(entry, dtype)
    return drawn if drawn.flags.owndata and drawn.flags.writeable else drawn.copy()
