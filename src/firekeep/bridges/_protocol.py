"""What every bridge gives and takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, UnsupportedError
from firekeep.slots import Constants, Outline, Slot


# Not frozen, as a Slot is not: a model may have tens of thousands.
@dataclass(slots=True)
class Filling:
    """One tensor on its way into a slot.

    `entry` has the slot's path, its convention and the shape of its file form. The slot shall hold `dtype` afterwards: where that is
    not the entry's, its values are cast.
    """

    slot: Slot
    entry: TensorEntry
    dtype: DType


class Bridge(Protocol):
    """What a member's door offers: a module with these names will do. Importing it must not import a framework."""

    @property
    def name(self) -> str:
        """The member's name in the table."""
        ...

    def owns(self, obj: object) -> bool:
        """Say whether the object is of this member's kind, without importing a framework: who has such an object has done so."""
        ...

    def outline(self, obj: Any) -> Outline:
        """Describe the places of the object that want tensors, without initialising any."""
        ...

    def entries(self, obj: Any) -> list[TensorEntry]:
        """Describe the tensors the object holds, one a slot, under its path and in its order, without copying any.

        A tensor that has no values to give (a meta tensor, a quantized one) is listed with a `problem`.
        """
        ...

    def constants(self, obj: Any) -> list[Constants]:
        """Tell what the parts of the object compute with beside their tensors, as far as their classes are known."""
        ...

    def fill(self, obj: Any, fillings: Sequence[Filling], done: list[str]) -> None:
        """Put tensors into slots, and append the path of each slot to `done` once it is filled.

        What can be refused is refused before anything is touched: see `check_fillings`. Parameters take the ids of their entries.
        """
        ...


class Remaker(Bridge, Protocol):
    """A member whose objects can be made anew with other tensors in them, whether they can be changed or not."""

    def outline_anew(self, obj: Any) -> Outline:
        """Describe the places of an object as `outline` does; containers that never change stand in nobody's way."""
        ...

    def filled(self, obj: Any, fillings: Sequence[Filling], done: list[str]) -> Any:
        """Make an object like another, with tensors in it; the other stays as it is. What is not filled is in both."""
        ...


def check_fillings(fillings: Sequence[Filling]) -> None:
    """Refuse, naming the slot, what cannot be filled: a slot or an entry with a problem, another shape, values of another kind."""
    for filling in fillings:
        slot, entry, dtype = filling.slot, filling.entry, filling.dtype
        if slot.problem is not None:
            raise UnsupportedError(f"nothing can be put there: {slot.problem}", tensor=slot.path)
        source = entry.require()
        if entry.shape != slot.shape:
            raise EntryError(
                f"the tensor has shape {list(entry.shape)}, and its place in the model {list(slot.shape)}",
                tensor=slot.path,
            )
        if source is not dtype and source != dtype and not _casts(source, dtype):
            raise UnsupportedError(
                f"its values are {source}, and cannot become {dtype} without loss of their meaning",
                tensor=slot.path,
                remedy=f"Leave it out, or convert it to a {dtype.kind} type first.",
            )


_WHOLE = ("int", "uint")


def _casts(source: DType, target: DType) -> bool:
    """Say whether values keep their meaning: within a kind, bytes become bools and whole numbers floats; quantized ones are never cast."""
    if source.kind == "quantized" or target.kind == "quantized":
        return False
    if source.kind == target.kind or (source.kind in _WHOLE and target.kind in _WHOLE):
        return True
    if target.kind == "bool":
        return source.name == "U8"
    return target.kind == "float" and source.kind in _WHOLE
