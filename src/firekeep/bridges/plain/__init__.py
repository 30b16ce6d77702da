"""Plain trees: dictionaries, lists, tuples and dataclasses of arrays and tensors; a state dict is one, an array by itself another.

Names are keys, indices and fields, joined with dots. Numbers, texts and other objects that are no tensors are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from firekeep.bridges._protocol import Filling
from firekeep.bridges.plain._anew import remade
from firekeep.bridges.plain._fill import fill_places, new_values, problem_of
from firekeep.bridges.plain._leaves import Faulty, describe_faulty, describe_leaf, faulty_entry, is_tensor, is_torch
from firekeep.bridges.plain._walk import Place, Tree
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import UnsupportedError
from firekeep.slots import Constants, Outline, Slot

__all__ = ["constants", "entries", "fill", "filled", "name", "outline", "outline_anew", "owns"]

name = "plain"


def owns(obj: object) -> bool:
    """Take containers, whatever they hold, and arrays."""
    if isinstance(obj, Mapping | list | tuple) or is_tensor(obj):
        return True
    return is_dataclass(obj) and not isinstance(obj, type)


def outline(obj: Any) -> Outline:
    """Describe the places of all tensors in a tree.

    The convention is PyTorch's where every tensor is one of PyTorch's. Raises `UnsupportedError`, naming it, for a tensor that has
    no name of its own or no dtype that files know.
    """
    return _outline(obj, anew=False)


def outline_anew(obj: Any) -> Outline:
    """Describe the places of all tensors for `filled`, which makes another tree: whether containers and arrays change plays no part."""
    return _outline(obj, anew=True)


def _outline(obj: Any, *, anew: bool) -> Outline:
    tree = Tree(obj)
    faults: dict[str, Faulty] = {}
    described = _describe(tree, faults)
    ties = find_ties(list(described.values()))
    groups = _groups(tree, ties)
    slots = []
    for path, place in tree.places.items():
        problem: str | None
        if path in faults:
            dtype, shape, problem = faults[path]
        else:
            dtype, shape = described[path].require(), described[path].shape
            problem = problem_of(groups[path], dtype, anew=anew)
        wants = is_torch(place.value) and place.value.requires_grad
        slots.append(
            Slot(path=path, dtype=dtype, shape=shape, trainable=wants, tied_to=ties.get(path), problem=problem)
        )
    all_torch = bool(slots) and all(is_torch(place.value) for place in tree.places.values())
    return Outline(
        tuple(slots),
        convention="torch" if all_torch else None,
        modules=frozenset(tree.modules),
        bare=all_torch,
        others=tree.others,
        numbers=tuple(tree.numbers),
        keyed=frozenset(tree.keyed),
    )


def entries(obj: Any) -> list[TensorEntry]:
    """Describe all tensors of a tree without copying them; one without values is listed with a `problem`."""
    tree = Tree(obj)
    faults: dict[str, Faulty] = {}
    described = _describe(tree, faults)
    return [described[path] if path in described else faulty_entry(path, faults[path]) for path in tree.places]


def constants(_obj: Any) -> list[Constants]:
    """Tell nothing: a tree of arrays computes nothing."""
    return []


def fill(obj: Any, fillings: Sequence[Filling], done: list[str]) -> None:
    """Put tensors into a tree: into the memory of the arrays there where it can be written to and holds the dtype wanted.

    Elsewhere a new array takes the place of the old one in its dict, list or dataclass, and in all others that hold the same array.
    Where that cannot be done, `UnsupportedError` is raised and nothing was touched.
    """
    tree = Tree(obj)
    fill_places(_groups(tree, find_ties(list(_describe(tree, {}).values()))), fillings, done)


def filled(obj: Any, fillings: Sequence[Filling], done: list[str]) -> Any:
    """Make a tree like another, with new arrays in it; the other stays as it is, and arrays that are not given are in both."""
    tree = Tree(obj)
    new = new_values(_groups(tree, find_ties(list(_describe(tree, {}).values()))), fillings)
    done += [filling.slot.path for filling in fillings]
    return new.get((id(None), None), remade(obj, new))


def _describe(tree: Tree, faults: dict[str, Faulty]) -> dict[str, TensorEntry]:
    """Describe every tensor; one object in two places is described once, so that its blob is one too.

    What tensors without values lack goes into `faults`.
    """
    made: dict[int, TensorEntry] = {}
    found = {}
    for path, place in tree.places.items():
        known = made.get(id(place.value))
        try:
            entry = describe_leaf(path, place.value) if known is None else known.renamed(path)
        except UnsupportedError as error:
            faults[path] = describe_faulty(path, place.value, error)
            continue
        made.setdefault(id(place.value), entry)
        found[path] = entry
    return found


def _groups(tree: Tree, ties: Mapping[str, str]) -> dict[str, list[Place]]:
    """Give, for each path, the places of all tensors that are one with it."""
    groups: dict[str, list[Place]] = {}
    for path, place in tree.places.items():
        group = groups.setdefault(ties.get(path, path), [])
        group.append(place)
        groups[path] = group
    return groups
