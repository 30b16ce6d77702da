"""Layers whose tensors get other names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from firekeep.slots import Constants, Layer

_Part = TypeVar("_Part", Layer, Constants)


def moved(layers: Sequence[_Part], names: Mapping[str, str]) -> Iterator[_Part]:
    """Give layers, and their parents, the paths that renames of their tensors give them; one whose tensors change otherwise is left out."""
    held = {part: name for name in names for part in parts_of(name)}
    parents: dict[int, Layer | None] = {}
    for layer in layers:
        path = _moved_path(layer.path, held, names)
        if path is None:
            continue
        if isinstance(layer, Layer):
            yield replace(layer, path=path, parent=_moved_parent(layer, held, names, parents))
        else:
            yield replace(layer, path=path)


def _moved_path(path: str, held: Mapping[str, str], names: Mapping[str, str]) -> str | None:
    old = held.get(path)
    if old is None:
        return None
    tail, new = old[len(path) + 1 :] if path else old, names[old]
    if new == tail:
        return ""
    return new[: -len(tail) - 1] if new.endswith(f".{tail}") else None


def _moved_parent(
    layer: Layer, held: Mapping[str, str], names: Mapping[str, str], known: dict[int, Layer | None]
) -> Layer | None:
    """Give the nearest layer around one that is still whole."""
    parent = layer.parent
    if parent is None:
        return None
    if id(parent) not in known:
        around = _moved_parent(parent, held, names, known)
        path = _moved_path(parent.path, held, names)
        known[id(parent)] = around if path is None else replace(parent, path=path, parent=around)
    return known[id(parent)]


def parts_of(name: str) -> Iterator[str]:
    """Give the paths of all that a name lies in."""
    while name:
        name = name.rpartition(".")[0]
        yield name
