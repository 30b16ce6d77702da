"""Tensors into the places of a tree: in place where the memory allows, else as new arrays in the containers."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from firekeep.bridges._drawing import check_drawable, plain_dtype
from firekeep.bridges._protocol import Filling, check_fillings
from firekeep.bridges.plain._anew import remakable
from firekeep.bridges.plain._leaves import cannot_become, fits_in_place, is_torch, make_like, write
from firekeep.bridges.plain._walk import Place
from firekeep.dtypes import DType
from firekeep.errors import EntryError, UnsupportedError


def problem_of(places: Sequence[Place], dtype: DType, *, anew: bool = False) -> str | None:
    """Say why values of a dtype cannot be put in the places of one tensor, or None; `anew` for a tree that is made anew."""
    value = places[0].value
    if (fault := cannot_become(value, dtype)) is not None:
        return fault
    if anew:
        return None if all(map(remakable, places)) else _around(places[0])
    if fits_in_place(value, dtype):
        return None
    for place in places:
        if not _takes_another(place.holder):
            return f"{_why_not_in_place(value, dtype)}, and {_around(place)}"
    return None


def fill_places(groups: dict[str, list[Place]], fillings: Sequence[Filling], done: list[str]) -> None:
    """Fill places by path; `groups` gives all places of the tensor at each. Everything is checked before anything is touched."""
    check_fillings(fillings)
    for filling in fillings:
        _check(groups, filling)
    for filling in fillings:
        group = groups[filling.slot.path]
        if fits_in_place(group[0].value, filling.dtype):
            write(group[0].value, filling.entry, filling.dtype)
        else:
            _replace(group, make_like(group[0].value, filling.entry, filling.dtype))
        done.append(filling.slot.path)


def new_values(groups: dict[str, list[Place]], fillings: Sequence[Filling]) -> dict[tuple[int, Any], Any]:
    """Make new arrays, by the container and the key of each of their places; nothing is touched."""
    check_fillings(fillings)
    for filling in fillings:
        _check(groups, filling, anew=True)
    new = {}
    for filling in fillings:
        group = groups[filling.slot.path]
        made = make_like(group[0].value, filling.entry, filling.dtype)
        new.update({(id(place.holder), place.key): made for place in group})
    return new


def _check(groups: dict[str, list[Place]], filling: Filling, *, anew: bool = False) -> None:
    path = filling.slot.path
    if path not in groups:
        raise EntryError("the tree has no such place any more", tensor=path, remedy="Describe the tree again.")
    if (problem := problem_of(groups[path], filling.dtype, anew=anew)) is not None:
        raise UnsupportedError(f"nothing can be put there: {problem}", tensor=path)
    if not (is_torch(groups[path][0].value) and filling.entry.require() == plain_dtype(filling.dtype)):
        check_drawable(filling)


def _replace(group: list[Place], value: Any) -> None:
    """Put another value in all places of a tensor: what was tied stays tied."""
    for place in group:
        if isinstance(place.holder, MutableMapping | list):
            place.holder[place.key] = value
        else:
            setattr(place.holder, place.key, value)
        place.value = value


def _takes_another(holder: Any) -> bool:
    if isinstance(holder, MutableMapping | list):
        return True
    return not isinstance(holder, tuple) and is_dataclass(holder) and not _is_frozen(holder)


def _is_frozen(holder: Any) -> bool:
    return bool(type(holder).__dataclass_params__.frozen)


def _why_not_in_place(value: Any, dtype: DType) -> str:
    own = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if own != plain_dtype(dtype).numpy and own != plain_dtype(dtype).torch:
        return f"its memory holds {own} and cannot hold {dtype}"
    return f"this {type(value).__name__} cannot be written to"


def _around(place: Place) -> str:
    """Say what stands in the way of another array, and what would not."""
    holder = place.holder
    if holder is None:
        return "nothing is around it that could take another array: give a writable array of that dtype, or put it in a dict"
    kind = type(holder).__name__
    if isinstance(holder, tuple) and not hasattr(holder, "_fields"):
        return "the tuple around it takes no other: make it a list"
    if isinstance(holder, tuple):
        return f"the named tuple {kind} around it takes no other: give it an array that can be written to"
    if is_dataclass(holder):
        return f"the dataclass {kind} around it is frozen and takes no other: give it an array that can be written to"
    return f"the {kind} around it takes no other: make it a dict"
