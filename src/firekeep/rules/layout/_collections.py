"""The collections of Flax Linen: `params` and `batch_stats` stand before the names of layers, and one layer may have tensors in both."""

from __future__ import annotations

from collections.abc import Iterable

from firekeep.errors import RuleError

_PARAMS, _COLLECTIONS = "params", ("params", "batch_stats")


def without_collection(name: str) -> str:
    """Take the collection off a name; the collection itself keeps its own."""
    collection, _, rest = name.partition(".")
    return rest if rest and collection in _COLLECTIONS else name


def without_collections(names: Iterable[str]) -> dict[str, str]:
    """Map names in a tree of Linen to those that they have in their layers; raises `RuleError` where two become one.

    A tree without `params` has none: it is what lies in one.
    """
    names = list(names)
    if not any(name.startswith(f"{_PARAMS}.") for name in names):
        return dict(zip(names, names, strict=True))
    made: dict[str, str] = {}
    first: dict[str, str] = {}
    for name in names:
        made[name] = without_collection(name)
        other = first.setdefault(made[name], name)
        if other != name:
            raise RuleError(f"{other!r} and {name!r} would both be {made[name]!r} without their collections")
    return made
