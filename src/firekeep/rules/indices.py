"""Indices in names: the gaps in lists closed, and opened again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from firekeep.rules._patterns import Pattern, compile_pattern
from firekeep.rules._templates import refuse_collisions

_INDEX = re.compile(r"\+?[0-9]+")
_LARGEST = (1 << 64) - 1


def close_gaps(names: Iterable[str], *, except_: Pattern | None = None) -> Mapping[str, str]:
    """Number the indices of every list from 0 on, in their order, and give the new name of each.

    It is what Burn's stores do with names from PyTorch, where an activation in a `Sequential` takes an index and has no tensors. A part
    between dots is an index when it is a number of at most 64 bits; a list is what stands before it. All names count, also those that
    nobody asks for: the names of one shard would all move down. A list in whose name `except_` is found (`flows`, `net.flows`) keeps
    its numbers, and those inside it do not.

    Raises `RuleError` naming both where two names become one, `b.01.w` and `b.1.w`.

    >>> close_gaps(["net.0.weight", "net.2.weight"])
    {'net.0.weight': 'net.0.weight', 'net.2.weight': 'net.1.weight'}
    """
    kept = None if except_ is None else compile_pattern(except_, role="except")
    split = {name: name.split(".") for name in names}
    found: dict[str, set[int]] = {}
    for parts in split.values():
        for prefix, _, number in _indices(parts):
            found.setdefault(prefix, set()).add(number)
    ranks = {
        prefix: {number: str(rank) for rank, number in enumerate(sorted(numbers))}
        for prefix, numbers in found.items()
        if kept is None or kept.search(prefix) is None
    }
    closed = {}
    for name, parts in split.items():
        new = list(parts)
        for prefix, place, number in _indices(parts):
            if prefix in ranks:
                new[place] = ranks[prefix][number]
        closed[name] = ".".join(new)
    refuse_collisions(
        closed, what="closing the gaps gives", remedy="Rename one of them, or leave their list out with except_."
    )
    return closed


@dataclass(frozen=True, slots=True)
class Gap:
    """A list whose indices are others in the names to be like: `old` are those it has, `new` those it takes, or would have to."""

    parent: str
    old: tuple[int, ...]
    new: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.parent or 'the list itself'}: {_listed(self.old)} -> {_listed(self.new)}"


@dataclass(frozen=True, slots=True)
class OpenedGaps:
    """What `open_gaps` made: old to new for all names, the lists that were renumbered, and those that cannot be, as their counts differ."""

    names: Mapping[str, str]
    opened: tuple[Gap, ...]
    left: tuple[Gap, ...]


def open_gaps(names: Iterable[str], *, like: Iterable[str]) -> OpenedGaps:
    """Give every list the indices that the list of the same name has in `like`, in order, where both have as many.

    It turns `close_gaps` round: `net.0` and `net.1`, to be like `net.0` and `net.2`. Lists inside lists are looked up where their parents
    come to stand. A list that `like` has not, or with another number of indices, stays as it is.

    Raises `RuleError` naming both where two names become one.
    """
    root, wanted = _Node(), _Node()
    listed = list(names)
    for node, all_names in ((root, listed), (wanted, like)):
        for name in all_names:
            node.add(name.split("."))
    opened: list[Gap] = []
    left: list[Gap] = []
    _open(root, wanted, "", opened, left)
    renamed = {name: root.translate(name.split(".")) for name in listed}
    refuse_collisions(renamed, what="opening the gaps gives", remedy="Rename one of them, or open no gaps.")
    return OpenedGaps(renamed, tuple(opened), tuple(left))


@dataclass(slots=True)
class _Node:
    """What stands at one place of the names: the parts that follow it, and what each is to be called."""

    children: dict[str, _Node] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)

    def add(self, parts: list[str]) -> None:
        node = self
        for part in parts:
            node = node.children.setdefault(part, _Node())

    def indices(self) -> dict[int, str]:
        """Give the numbers among its parts in ascending order, as they are written."""
        return dict(sorted((number, part) for part in self.children if (number := _number(part)) is not None))

    def translate(self, parts: list[str]) -> str:
        node = self
        made = []
        for part in parts:
            made.append(node.new.get(part, part))
            node = node.children[part]
        return ".".join(made)


def _open(root: _Node, wanted: _Node, parent: str, opened: list[Gap], left: list[Gap]) -> None:
    """Number the lists of a tree of names like those of another; a stack of its own, as names may have thousands of parts."""
    todo = [(root, wanted, parent)]
    while todo:
        node, other, parent = todo.pop()
        mine, theirs = node.indices(), other.indices()
        if mine.keys() != theirs.keys() and mine and theirs:
            gap = Gap(parent, tuple(mine), tuple(theirs))
            if len(mine) == len(theirs):
                by_number = dict(zip(mine, theirs.values(), strict=True))
                node.new = {part: by_number[number] for part in node.children if (number := _number(part)) is not None}
                opened.append(gap)
            else:
                left.append(gap)
        for part, child in reversed(node.children.items()):
            new = node.new.get(part, part)
            if new in other.children:
                todo.append((child, other.children[new], f"{parent}.{part}" if parent else part))


def _indices(parts: list[str]) -> Iterable[tuple[str, int, int]]:
    """Give, for each index among the parts of a name, what stands before it, its place, and its number."""
    for place, part in enumerate(parts):
        if (number := _number(part)) is not None:
            yield ".".join(parts[:place]), place, number


def _number(part: str) -> int | None:
    if not part or part[-1] not in "0123456789" or _INDEX.fullmatch(part) is None:
        return None
    digits = part.lstrip("+0")
    number = int(digits or "0") if len(digits) <= 20 else _LARGEST + 1
    return number if number <= _LARGEST else None


def _listed(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8:,} more" if len(numbers) > 8 else shown
