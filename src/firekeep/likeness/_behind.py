"""What a reader of a file that gets another layout, and then other names, looks like under the names of before both.

Renames see the names of the new layout, and `like=` speaks of names after the renames. So they are tried on all names that the tensors
of a layer may have in the new layout; what they make of a layer is then its place, whatever the last parts of names are on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from firekeep.likeness._likeness import Likeness, without_collections_of
from firekeep.rules import KeyRemapper
from firekeep.rules.layout import moved, parts_of
from firekeep.slots import Convention

Rename = Callable[[str], str]


def behind(like: Likeness, sources: Sequence[str], remapper: KeyRemapper, *, layout: Convention) -> Likeness:
    """Give a reader under the names that the tensors `sources` are in, which get a layout and are renamed in it.

    Its tensors keep the last part of their names, which the layout gives, and follow their layer. A layer of which the renames do not
    leave whole what belongs to it is left out with its tensors, so that whoever asks for these finds that nothing tells of them.
    """

    @cache
    def rename(name: str) -> str:
        # One by one: names that a tensor may have are not all there, and cannot be in one another's way.
        return remapper.rename((name,)).names[name]

    new = {name: rename(name) for name in sources}
    if like.layout == "linen" and not any(name.startswith("params.") for name in new.values()):
        like = replace(like, entries=without_collections_of(like.entries))
    known = frozenset(entry.name for entry in (*like.entries, *like.in_layout(layout).entries))
    names = _names_behind(like, new, dict(_places(sources, rename, known)))
    lost = set(_lost(like, names))
    entries = {entry.name: entry for entry in like.entries if entry.name not in names}
    entries |= {names[entry.name]: entry.renamed(names[entry.name]) for entry in like.entries if entry.name in names}
    whole = {entry.name: names.get(entry.name, entry.name) for entry in like.entries if entry.name not in lost}
    gone = {names.get(name, name) for name in lost}
    return replace(
        like,
        entries=tuple(entry for name, entry in entries.items() if name not in gone),
        layers=tuple(moved(like.layers, whole)),
    )


def _places(sources: Iterable[str], rename: Rename, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Map the paths that renames give to those of before, where no two become one."""
    roles = dict.fromkeys(name.rpartition(".")[2] for name in known)
    own: dict[str, list[str]] = {}
    for name in sources:
        own.setdefault(name.rpartition(".")[0], []).append(name)
    places: dict[str, set[str]] = {}
    for path, names in own.items():
        before = f"{path}." if path else ""
        news = [rename(name) for name in dict.fromkeys((*names, *(f"{before}{role}" for role in roles)))]
        told = {name.rpartition(".")[0] for name in news if name in known}
        told = told or {name.rpartition(".")[0] for name in news[: len(names)]}
        for here in told if len(told) == 1 else ():
            for new, old in _around(here, path):
                places.setdefault(new, set()).add(old)
    yield from ((new, old) for new, (old, *others) in places.items() if not others)


def _around(new: str, old: str) -> Iterator[tuple[str, str]]:
    """Give a place and what is around it, as far as both are called alike."""
    yield new, old
    while new and old and new.rpartition(".")[2] == old.rpartition(".")[2]:
        new, old = new.rpartition(".")[0], old.rpartition(".")[0]
        yield new, old


def _names_behind(like: Likeness, new: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Give the reader's tensors the names of before, where these are others; one outside of all layers has the same in every layout."""
    within = {layer.path for layer in like.layers}
    bare = {after: before for before, after in new.items()} if like.layers else {}
    names = {}
    for entry in like.entries:
        part = next((part for part in parts_of(entry.name) if part in places), None)
        if entry.name in bare and within.isdisjoint(parts_of(entry.name)):
            names[entry.name] = bare[entry.name]
        elif part is not None:
            names[entry.name] = f"{places[part]}{entry.name[len(part) :]}".removeprefix(".")
    return {after: before for after, before in names.items() if after != before}


def _lost(like: Likeness, names: Mapping[str, str]) -> Iterator[str]:
    """Name the tensors of layers that do not move as a whole."""
    within = {layer.path for layer in like.layers}
    held: dict[str, dict[str, str | None]] = {}
    for entry in like.entries:
        layer = next((part for part in parts_of(entry.name) if part in within), None)
        if layer is not None:
            tail = entry.name[len(layer) + 1 :] if layer else entry.name
            new = names.get(entry.name, entry.name)
            ending = new == tail or new.endswith(f".{tail}")
            held.setdefault(layer, {})[entry.name] = new[: len(new) - len(tail)] if ending else None
    for found in held.values():
        if len({*found.values()}) > 1 or None in found.values():
            yield from found
