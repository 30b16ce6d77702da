"""Lists of layers whose numbers differ: a file counts layers without tensors, and a model does not, or the other way round."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from firekeep.folding import fold, is_number, ranges
from firekeep.matching._words import Ambiguity

_NUMBER = re.compile(r"(?:^|(?<=\.))(?:0|[1-9][0-9]{0,8})(?=\.|$)")

_FURTHEST = 8
"""Numbers that a list may leave out in a row, where nothing is known of its elements without tensors."""

_LATEST = 1
"""The number that an unbroken list may begin with, where nothing is known of the elements before: else it is a part of a longer list."""

_ABSURD = 10_000
_FAR = "the numbers of the {} are too far apart to be places of one list"
_PART = "the {} may hold a part of a longer list"
_PARTS = (_PART.format("model"), _PART.format("file"))
_MOVED = "the renames gave the elements of the file another order, so which of them a gap stands for cannot be told by their places"

Numbers = Mapping[int, int]
Shape = tuple[int, ...]


def elements_of(name: str) -> list[tuple[str, int]]:
    """Give the elements of lists that a name goes through, the outermost first: the list's path, and the number."""
    return [(name[: max(match.start() - 1, 0)], int(match[0])) for match in _NUMBER.finditer(name)]


@dataclass(slots=True)
class Side:
    """The names of one side, which of them lie in which element of which list, and the paths of all modules, if known.

    `others` gives further names of the same tensor, by place; `sources` the names before renames, where there were any. `keyed` are
    paths under which numbers are keys.
    """

    names: Sequence[str]
    shapes: Sequence[Shape]
    modules: frozenset[str] = frozenset()
    others: Mapping[int, Sequence[str]] = field(default_factory=dict)
    sources: Sequence[str] = ()
    keyed: frozenset[str] = frozenset()
    lists: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    _ranks: Renumbering | None = None

    def __post_init__(self) -> None:
        ways: dict[str, list[list[int]]] = {}
        for place, name in enumerate(self.names):
            head, _, tail = name.rpartition(".")
            if head not in ways:
                ways[head] = self._way(head)
            for element in self._way(name) if tail[-1:].isdigit() and is_number(tail) else ways[head]:
                element.append(place)

    def _way(self, name: str) -> list[list[int]]:
        """Give the elements of lists that a name goes through, as the places of what lies in them."""
        return [self.lists.setdefault(parent, {}).setdefault(number, []) for parent, number in elements_of(name)]

    def inner(self, place: int, parent: str) -> list[str]:
        """Give the names of a tensor within its element of a list, lists within counted without gaps."""
        depth = parent.count(".") + 2 if parent else 1
        names = (self.names[place], *self.others.get(place, ()))
        return [self.ranks().apply(name).split(".", depth)[-1] for name in names]

    def ranks(self) -> Renumbering:
        """Number the elements of each list without gaps."""
        if self._ranks is None:
            self._ranks = Renumbering(
                {
                    parent: {number: rank for rank, number in enumerate(sorted(found))}
                    for parent, found in self.lists.items()
                    if parent not in self.keyed
                }
            )
        return self._ranks


@dataclass(slots=True)
class Renumbering:
    """For lists of the model: which number of the file stands for which of its own; and the lists that were left alone in doubt."""

    maps: dict[str, Numbers] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, Ambiguity] = field(default_factory=dict)
    parts: dict[str, tuple[str, Numbers]] = field(default_factory=dict)
    """Of the lists in doubt those that agree but begin late on one side: the file's list, and which number would stand for which."""
    used: set[str] = field(default_factory=set)
    _heads: dict[str, str] = field(default_factory=dict)

    def lists_of(self, name: str) -> list[str]:
        """Give the lists with a map that a name goes through."""
        return [parent for parent, _ in elements_of(name) if parent in self.maps]

    def settle(self, parent: str, there: str, numbers: Numbers) -> None:
        """Give a list its map."""
        self.maps[parent], self.parents[parent] = numbers, there
        self._heads.clear()

    def apply(self, name: str) -> str:
        """Give the other side's name: the number of each element whose list has a map is replaced."""
        if not self.maps:
            return name
        head, dot, tail = name.rpartition(".")
        if not dot or (tail[-1:].isdigit() and is_number(tail)):
            return self._renumber(name)
        if head not in self._heads:  # most names share all but their end with others
            self._heads[head] = self._renumber(head)
        return f"{self._heads[head]}.{tail}"

    def _renumber(self, name: str) -> str:
        parts, cursor = [], 0
        for match in _NUMBER.finditer(name):
            numbers = self.maps.get(name[: max(match.start() - 1, 0)])
            if numbers is not None:
                parts += [name[cursor : match.start()], str(numbers.get(int(match[0]), match[0]))]
                cursor = match.end()
        return "".join((*parts, name[cursor:])) if parts else name


def find_renumbering(model: Side, file: Side) -> Renumbering:
    """Decide for each list of the model as a whole, outer lists first.

    Numbers stand as they are where one side has all those of the other (a part of a longer model, gaps that both have). Else, where both
    have as many elements and these agree in order in names and shapes, the first is the first and the last is the last.
    """
    made = Renumbering()
    for parent in sorted(model.lists, key=lambda name: name.count(".")):
        there = made.apply(parent)
        mine, theirs = sorted(model.lists[parent]), sorted(file.lists.get(there, ()))
        if len(mine) != len(theirs) or mine == theirs or parent in model.keyed:
            continue
        if not _agree(model, file, (parent, mine), (there, theirs)):
            continue
        doubt = _doubt(model, parent, mine, "model") or _doubt(file, there, theirs, "file")
        if doubt is not None and doubt in _PARTS:
            made.parts[parent] = (there, dict(zip(mine, theirs, strict=True)))
            doubt += _apart(mine, theirs)
        if doubt is None and file.sources and not keeps_order(file, there, theirs):
            doubt = _MOVED
        if doubt is not None:
            made.doubts[parent] = Ambiguity(want=spell(parent, mine), candidates=(spell(there, theirs),), reason=doubt)
            continue
        made.settle(parent, there, dict(zip(mine, theirs, strict=True)))
    return made


_List = tuple[str, list[int]]


def _agree(model: Side, file: Side, mine: _List, theirs: _List) -> bool:
    """Say whether elements agree in order: all names, and all shapes; of three or more elements, one may be of other shapes."""
    odd = 0
    for own, other in zip(mine[1], theirs[1], strict=True):
        offered = {file.inner(place, theirs[0])[0]: file.shapes[place] for place in file.lists[theirs[0]][other]}
        wants = model.lists[mine[0]][own]
        common = same = 0
        for place in wants:
            name = next((name for name in model.inner(place, mine[0]) if name in offered), None)
            common += name is not None
            same += name is not None and offered[name] == model.shapes[place]
        if not common or (common < len(wants) and common < len(offered)):
            return False
        odd += same < common
    return odd == 0 or (odd == 1 and len(mine[1]) >= 3)


def _doubt(side: Side, parent: str, numbers: list[int], who: str) -> str | None:
    """Say what speaks against the gaps of a list being elements without tensors."""
    if max((numbers[0], *(after - before - 1 for before, after in pairwise(numbers)))) > _ABSURD:
        return _FAR.format(who)
    gaps = set(range(numbers[-1])) - set(numbers)
    if not gaps:
        return None
    if side.modules and (not parent or parent in side.modules):
        if all(_path(parent, number) in side.modules for number in gaps):
            return None
        return f"the {who} has no elements at the numbers that it leaves out, so they are names rather than places"
    unbroken = numbers[-1] - numbers[0] == len(numbers) - 1
    if unbroken and numbers[0] > _LATEST:
        return _PART.format(who)
    if max([numbers[0], *(after - before - 1 for before, after in pairwise(numbers))]) > _FURTHEST:
        return _FAR.format(who)
    return None


def _apart(mine: Sequence[int], theirs: Sequence[int]) -> str:
    """Say by how much all numbers differ, where it is the same for all."""
    by = {other - own for own, other in zip(mine, theirs, strict=True)}
    if len(by) > 1:
        return ""
    return f"; its numbers in the file are {abs(*by)} {'higher' if min(by) > 0 else 'lower'} than in the model"


def keeps_order(file: Side, parent: str, numbers: Sequence[int]) -> bool:
    """Say whether the elements of a list come in the order that they had before the names were changed.

    Names that are alike but for numbers are compared by these: by all of them, or by the one that counts the elements where the
    renames have put lists into one another.
    """
    ordered: dict[str, list[list[tuple[int, ...]]]] = {}
    for number in numbers:
        here: dict[str, list[tuple[int, ...]]] = {}
        for place in file.lists[parent][number]:
            source = file.sources[place]
            here.setdefault(_NUMBER.sub("#", source), []).append(tuple(map(int, _NUMBER.findall(source))))
        for kind, found in here.items():
            ordered.setdefault(kind, []).append(found)
    return all(map(_rises, ordered.values()))


def _rises(elements: Sequence[Sequence[tuple[int, ...]]]) -> bool:
    if all(max(before) < min(after) for before, after in pairwise(elements)):
        return True
    axes = range(len(elements[0][0]))
    columns = ([[numbers[axis] for numbers in element] for element in elements] for axis in axes)
    return any(all(max(before) < min(after) for before, after in pairwise(column)) for column in columns)


def _path(parent: str, number: int) -> str:
    return f"{parent}.{number}" if parent else str(number)


def spell(parent: str, numbers: Sequence[int]) -> str:
    """Name elements of a list, shortly: net.{0,2,4…9}."""
    if len(numbers) <= 3:
        return ", ".join(_path(parent, number) for number in numbers)
    return f"{parent}.{{{ranges(numbers)}}}" if parent else f"{{{ranges(numbers)}}}"


def describe(made: Renumbering) -> list[str]:
    """Say which numbers of the file are which of the model where that was used, lists that are alike told together."""
    alike: dict[tuple[tuple[int, int], ...], list[str]] = {}
    parents = made.parents
    for parent, numbers in made.maps.items():
        if parent in made.used:
            alike.setdefault(tuple(numbers.items()), []).append(parent)
    told = []
    for pairs, lists in alike.items():
        mine, theirs = [own for own, _ in pairs], [other for _, other in pairs]
        for group in fold(lists):
            there = fold([parents[parent] for parent in group.names])
            both = [(group.label, there[0].label)] if len(there) == 1 else [(one, parents[one]) for one in group.names]
            told += [f"{spell(other, theirs)} of the file are {spell(own, mine)} of the model" for own, other in both]
    return told
