"""What holds arrays, and how another array is put there: into the holder where it takes one, else into another holder in its place."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

How = Literal["variable", "ref", "object", "item", "field", "fixed", "inner", "frozen", "node"]


@dataclass(slots=True, eq=False)
class Holder:
    """A container on the way to an array, itself under `key` in `outer`.

    `how` says by what its parts are put: the value of a variable or of a reference of JAX's, attributes of an nnx object, items, fields
    of a dataclass, "fixed" for one that is frozen; a "node" is one that JAX takes apart and puts together, its keys the numbers of its
    parts, "inner" a dict that is part of a FrozenDict, and "frozen" a mapping that nobody can make another of. `is_ours` is a copy that
    `filled` has made, so that it can be changed.
    """

    value: Any
    how: How
    outer: Holder | None
    key: Any
    depth: int = 0
    is_ours: bool = False

    @property
    def takes(self) -> bool:
        """Say whether another array can be put there while the holder stays."""
        return self.how in ("variable", "ref", "object", "item", "field")

    def put(self, key: Any, value: Any) -> None:
        """Put another value in place of a part."""
        if self.how == "variable":
            self.value.set_raw_value(value)
        elif self.how == "ref":
            self.value[...] = value
        elif self.how == "item":
            self.value[key] = value
        else:
            setattr(self.value, key, value)

    def remade(self, changes: Mapping[Any, Any]) -> Any:
        """Make another holder with other parts; the rest is in both."""
        if self.how == "node":
            whole = self.value
            parts, shape = jax.tree_util.tree_flatten(whole, is_leaf=lambda part: part is not whole)
            return jax.tree_util.tree_unflatten(shape, [changes.get(place, part) for place, part in enumerate(parts)])
        if self.how == "ref":
            return jax.new_ref(changes[None])
        other = copy.copy(self.value)
        for key, value in changes.items():
            if self.how in ("field", "fixed"):
                object.__setattr__(other, key, value)
            else:
                other[key] = value
        return other


def changeable(holder: Holder | None) -> bool:
    """Say whether a holder, or one around it, takes another part."""
    while holder is not None:
        if holder.takes:
            return True
        if holder.how == "frozen":
            return False
        holder = holder.outer
    return False


def remakable(holder: Holder | None) -> bool:
    """Say whether another can be made of a holder and of all around it."""
    while holder is not None:
        if holder.how == "frozen":
            return False
        holder = holder.outer
    return True


class Changes:
    """Values waiting to be put into holders that never change. `anew` leaves all holders as they are and makes others."""

    def __init__(self, *, anew: bool) -> None:
        self._anew = anew
        self._waiting: dict[int, tuple[Holder, dict[Any, Any]]] = {}
        self._remade: dict[int, list[tuple[Holder, dict[Any, Any], Any]]] = {}

    def at_once(self, holder: Holder | None) -> bool:
        """Say whether a value can be put into a holder now."""
        return holder is not None and holder.takes and (not self._anew or holder.is_ours)

    def add(self, holder: Holder, key: Any, value: Any) -> None:
        """Remember a value, to be put with all others of its holder."""
        self._waiting.setdefault(id(holder), (holder, {}))[1][key] = value

    def settle(self, root: Any) -> Any:
        """Put all values, from the inside out, and give the whole: the same object unless it had to be made anew."""
        while self._waiting:
            deepest = max(self._waiting.values(), key=lambda one: one[0].depth)[0].depth
            for holder, parts in [one for one in self._waiting.values() if one[0].depth == deepest]:
                del self._waiting[id(holder)]
                if self.at_once(holder):
                    for key, value in parts.items():
                        holder.put(key, value)
                    continue
                made = self._remake(holder, parts)
                if holder.outer is None:
                    root = made
                else:
                    self.add(holder.outer, holder.key, made)
        return root

    def _remake(self, holder: Holder, parts: dict[Any, Any]) -> Any:
        """Make another of a holder, one for all the places where it is given the same parts."""
        before = self._remade.setdefault(id(holder.value), [])  # which the holders kept there keep alive
        for _, known, made in before:
            if known.keys() == parts.keys() and all(known[key] is parts[key] for key in parts):
                return made
        made = holder.remade(parts)
        before.append((holder, parts, made))
        return made
