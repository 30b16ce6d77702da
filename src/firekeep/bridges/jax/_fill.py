"""Tensors into the places of an object: one by one where its containers take them, at the end where these are made anew."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from firekeep.bridges._drawing import check_drawable
from firekeep.bridges._protocol import Filling, check_fillings
from firekeep.bridges.jax._describe import find_ties, is_firm, spot_of
from firekeep.bridges.jax._holders import Changes, changeable, remakable
from firekeep.bridges.jax._making import Order, cannot_become, make
from firekeep.bridges.jax._walk import Place, Walk, walk
from firekeep.entry import tie_key
from firekeep.errors import EntryError, UnsupportedError


def fill(root: Any, fillings: Sequence[Filling], done: list[str], *, beside: Any = None) -> None:
    """Put tensors into an object; everything that can be refused is refused before anything is touched."""
    _fill(root, walk(root, beside=beside), fillings, done, anew=False)


def filled(root: Any, fillings: Sequence[Filling], done: list[str], *, beside: Any = None) -> Any:
    """Make an object like another, with tensors in it."""
    found = walk(root, beside=beside)
    if "nnx" not in found.kinds:
        return _fill(root, found, fillings, done, anew=True)
    copy = sys.modules["flax.nnx"].clone(root)  # variables of its own, with the same arrays
    return _fill(copy, walk(copy, ours=True, beside=beside), fillings, done, anew=True)


def _fill(root: Any, found: Walk, fillings: Sequence[Filling], done: list[str], *, anew: bool) -> Any:
    check_fillings(fillings)
    for filling in fillings:
        _check(found, filling, anew=anew)
    changes = Changes(anew=anew)
    targets = _targets(found, fillings, changes)
    waiting: list[str] = []
    arrays = make(deque(Order(places[0].value, filling.entry, filling.dtype) for filling, places in targets if places))
    for place in found.places.values():
        place.value = None  # what is replaced goes at once
    for filling, places in targets:
        direct = all(changes.at_once(place.holder) for place in places)
        made = next(arrays) if places else None
        for place in places:
            if place.holder is None:
                root = made
            elif direct:
                place.holder.put(place.key, made)
            else:
                changes.add(place.holder, place.key, made)
        (done if direct else waiting).append(filling.slot.path)
    root = changes.settle(root)
    done += waiting
    return root


def _check(found: Walk, filling: Filling, *, anew: bool) -> None:
    path = filling.slot.path
    place = found.places.get(path)
    if place is None:
        raise EntryError("the object has no such place any more", tensor=path, remedy="Describe the object again.")
    root = place if place.alias_of is None else found.places[place.alias_of]
    problem = cannot_become(root.value, filling.dtype)
    if problem is None and not (remakable(root.holder) if anew else changeable(root.holder)):
        problem = "nothing around it takes another array"
    if problem is not None:
        raise UnsupportedError(f"nothing can be put there: {problem}", tensor=path)
    check_drawable(filling)


def _targets(found: Walk, fillings: Sequence[Filling], changes: Changes) -> list[tuple[Filling, list[Place]]]:
    """Say where each tensor goes: to its own place, and to those that are one with it and are given no other."""
    given = {filling.slot.path for filling in fillings}
    ties = find_ties(found)
    groups: dict[str, list[Place]] = {}
    for path, place in found.places.items():
        groups.setdefault(ties.get(path, path), []).append(place)
    owner: dict[Hashable, Filling] = {}
    targets = []
    for filling in fillings:
        own = found.places[filling.slot.path]
        group = groups[ties.get(own.path, own.path)]
        chosen = [place for place in group if is_firm(place, own) or place.path not in given or place is own]
        kept = []
        for spot, place in _real(found, chosen, changes).items():
            first = owner.setdefault(spot, filling)
            if first is filling:
                kept.append(place)
            elif place is own or is_firm(place, own):
                _refuse_another(first, filling)
        targets.append((filling, kept))
    return targets


def _real(found: Walk, places: Sequence[Place], changes: Changes) -> dict[Hashable, Place]:
    """Give the places where something hangs: an alias has none of its own, and a variable one, under however many names."""
    real = [place if place.alias_of is None else found.places[place.alias_of] for place in places]
    return {spot_of(place) if changes.at_once(place.holder) else place.path: place for place in real}


def _refuse_another(first: Filling, second: Filling) -> None:
    one, two = tie_key(first.entry), tie_key(second.entry)
    same = first.dtype == second.dtype and first.entry.dtype == second.entry.dtype
    if same and (one is None or one != two):
        same = first.entry.read() == second.entry.read()
    if not same:
        raise EntryError(
            f"in the object it is the same array as {first.slot.path!r}, and two different ones were given",
            tensor=second.slot.path,
            remedy="Give one of the two, or untie them in the object first.",
        )
