"""Objects of JAX as outlines and as entries."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from firekeep.bridges.jax._frameworks import is_a, is_equinox, is_nnx_state
from firekeep.bridges.jax._holders import changeable, remakable
from firekeep.bridges.jax._hollow import refuse_hollow
from firekeep.bridges.jax._leaves import describe, is_number, looks, widest
from firekeep.bridges.jax._making import cannot_become
from firekeep.bridges.jax._walk import Place, Walk, walk
from firekeep.entry import TensorEntry
from firekeep.garbage import collector_paused
from firekeep.slots import Convention, Outline, Slot

_COLLECTION = "params"


def outline(root: Any, *, anew: bool, beside: Any = None) -> Outline:
    """Describe the places of an object; `anew` for one that is made anew when it is filled, `beside` as in `walk`."""
    refuse_hollow(root)
    with collector_paused():
        found = walk(root, beside=beside)
        ties = find_ties(found)
        slots = tuple(_slot(place, found, ties, anew=anew) for place in found.places.values())
    convention = _convention(root, found)
    return Outline(
        slots,
        convention=convention,
        layers=tuple(found.layers),
        modules=frozenset(found.modules),
        bare=convention is not None and not found.layers and _is_bare(root, found),
        others=found.others,
        numbers=tuple(found.numbers),
        keyed=frozenset(found.keyed),
    )


def entries(root: Any) -> list[TensorEntry]:
    """Describe the values of an object; one array in two places is described once, so that its blob is one too."""
    refuse_hollow(root)
    with collector_paused():
        found = walk(root)
        ties = find_ties(found)
        made: dict[str, TensorEntry] = {}
        for path, place in found.places.items():
            first = ties.get(path)
            made[path] = describe(path, place.value) if first is None else made[first].renamed(path)
        return list(made.values())


def numbers(root: Any) -> frozenset[str]:
    """Name the places of numbers of Python's."""
    return frozenset(path for path, place in walk(root).places.items() if is_number(place.value))


def tie_of(place: Place) -> Hashable:
    """Say which array hangs at a place: equal for two places of one. A shape without values is one with itself alone."""
    if is_number(place.value):
        return place.path
    if is_a(place.value, "jax", "ShapeDtypeStruct"):
        spot = spot_of(place)
        return place.alias_of or (place.path if spot is None else spot)
    if place.holder is not None and place.holder.how == "ref":
        return spot_of(place)  # its value is another array whenever it is asked for
    return id(place.value)


def find_ties(found: Walk) -> dict[str, str]:
    """Map each further path of an array to the first one. Empty arrays are never tied."""
    first: dict[Hashable, str] = {}
    ties: dict[str, str] = {}
    for place in found.places.values():
        if 0 in getattr(place.value, "shape", ()):
            continue
        if (kept := place.alias_of) is None:
            kept = first.setdefault(tie_of(place), place.path)
        if kept != place.path:
            ties[place.path] = ties.get(kept, kept)
    return ties


def is_firm(place: Place, other: Place) -> bool:
    """Say whether two places of one array are one place: a variable in two modules, or a part that is shared; else they may part."""
    if place.alias_of is not None or other.alias_of is not None:
        return True
    return spot_of(place) is not None and spot_of(place) == spot_of(other)


def spot_of(place: Place) -> Hashable:
    """Say where exactly an array hangs, or None where what holds it is made anew for every name that it has."""
    holder = place.holder
    return (id(holder.value), str(place.key)) if holder is not None and holder.takes else None


def _slot(place: Place, found: Walk, ties: dict[str, str], *, anew: bool) -> Slot:
    dtype, shape, problem = looks(place.value)
    if is_number(place.value):
        dtype, problem = widest(place.value), None
    first = ties.get(place.path)
    root = place if place.alias_of is None else found.places[place.alias_of]
    if problem is None:
        problem = cannot_become(root.value, dtype)
    if problem is None and not (remakable(root.holder) if anew else changeable(root.holder)):
        problem = _around(root, anew=anew)
    return Slot(
        path=place.path,
        dtype=dtype,
        shape=shape,
        layer=place.layer,
        containers=place.containers,
        trainable=is_a(place.variable, "flax.nnx", "Param"),
        tied_to=first,
        loosely=first is not None and not is_firm(place, found.places[first]),
        problem=problem,
    )


def _around(place: Place, *, anew: bool) -> str:
    if anew:
        return "nobody can make another of the mapping around it: make it a dict"
    if place.holder is None:
        return "nothing is around it that could take another array: put it in a dict, or make a new one with load_as"
    holder = place.holder
    while holder.how == "inner" and holder.outer is not None:
        holder = holder.outer
    outer = holder.outer
    while (
        is_equinox(holder.value) and outer is not None
    ):  # the whole model is meant, and is told once for all its places
        holder, outer = (outer, outer.outer) if is_equinox(outer.value) else (holder, outer.outer)
    kind = type(holder.value).__name__
    return f"the {kind} around it never changes: load_as makes another of it"


def _convention(root: Any, found: Walk) -> Convention | None:
    if is_a(root, "flax.nnx", "Optimizer"):
        return None  # its moments lie as the parameters do, and nothing tells which layers these are of
    if "nnx" in found.kinds:
        return "flax"
    if "equinox" in found.kinds:
        return "equinox"
    return "linen" if any(path.split(".", 1)[0] == _COLLECTION and "." in path for path in found.places) else None


def _is_bare(root: Any, found: Walk) -> bool:
    """Say whether an object does not tell its layers, as against having none of a known kind."""
    return is_nnx_state(root) or not found.kinds
