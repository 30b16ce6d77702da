"""Pairs of equal numbers in lists that may have been shifted: where a layer was put in or taken out, those after it have other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from firekeep.matching._alignment import Alignment, align, sides_of
from firekeep.matching._lists import Side, elements_of, spell
from firekeep.matching._words import Ambiguity, MatchOptions, Pair, Plan

_DOUBTED = "{}; equal numbers ({}) need not mean equal layers, and match='exact' takes them so"
_SHIFTED = "from {} on the numbers differ on the two sides, so layers after it may have been shifted; match='exact' takes equal ones"
_HIGHER = "all its numbers are {} {} in the file, so equal ones need not mean equal layers; match='exact' takes them so"
_RESHAPED = (
    "the two sides have different numbers, and {} is of another shape, so layers after it may have been shifted; "
    "match='exact' takes equal ones"
)
_UNLIKE = (
    "more elements of the two sides fit one another under other numbers, so equal ones need not mean equal layers; "
    "match='exact' takes equal ones"
)
_OTHERS = (
    "by order and shapes {} of the file may be {} of the model, so equal numbers need not mean equal layers; rename them if that is so, "
    "match='exact' takes equal ones"
)
_MOVED = "by order and shapes these may be they, under other numbers; rename them if that is so"
_KINDS = "it is a vector on one side and none on the other, so the layers are not of one kind; match='exact' takes what is equal in them"


@dataclass(slots=True)
class _List:
    """What was paired within a list: by number, in elements of one number on both sides, and in which of them shapes or ranks differ.

    `kinds` are the elements in which a vector meets what has more dimensions.
    """

    mine: str
    theirs: str
    pairs: dict[int, list[Pair]] = field(default_factory=dict)
    odd: set[int] = field(default_factory=set)
    alien: set[int] = field(default_factory=set)
    kinds: set[int] = field(default_factory=set)
    renumbered: bool = False

    def add(self, number: int, other: int, pair: Pair) -> None:
        self.renumbered |= number != other
        self.pairs.setdefault(number, []).append(pair)
        if pair.want.shape != pair.offer.shape:
            self.odd.add(number)
        if len(pair.want.shape) != len(pair.offer.shape):
            self.alien.add(number)
            layer = f"{self.mine}.{number}" if self.mine else str(number)
            if pair.want.name.rpartition(".")[0] == layer and min(len(pair.want.shape), len(pair.offer.shape)) == 1:
                self.kinds.add(number)


@dataclass(slots=True)
class _Sides:
    """Both sides of a plan by their lists, worked out where they are asked for."""

    made: Plan
    moved: list[Ambiguity] = field(default_factory=list)
    _both: tuple[Side, Side] | None = None

    def align(self, one: _List) -> Alignment | None:
        """Fit the elements of both lists in their order."""
        if self._both is None:
            wants = [*self.made.missing, *(pair.want for pair in self.made.found)]
            self._both = sides_of(wants, [*self.made.unused, *(pair.offer for pair in self.made.found)])
        return align(*self._both, one.mine, one.theirs)

    def tell(self, one: _List, moved: Mapping[int, int]) -> None:
        """Remember which elements fit others of the file, in one way only."""
        there = spell(one.theirs, list(moved.values()))
        self.moved.append(Ambiguity(want=spell(one.mine, list(moved)), candidates=(there,), reason=_MOVED))


def _unlike(one: _List, moved: Mapping[int, int]) -> str:
    """Say why equal numbers are in doubt, and which others may be meant where there is one way only."""
    return _OTHERS.format(spell(one.theirs, list(moved.values())), spell(one.mine, list(moved))) if moved else _UNLIKE


def find_unsure(
    made: Plan, doubted: Mapping[str, Ambiguity], options: MatchOptions
) -> tuple[dict[str, Ambiguity], list[Ambiguity]]:
    """Give the pairs, by the want's name, for which nothing speaks but an equal number in a list where that need not mean an equal layer.

    In a list of `doubted` these are all. In others they are those behind a number where the lists part, and where elements of equal
    numbers differ in shape and more fit when numbers are left aside, all that have another partner then; but not those that keep their
    number in every way to fit so many. Elements to which a rename gave their number are taken as they are asked for, and numbers that are
    names (a dict of heads) mean what they say. The second result tells of elements that fit one of another number, in one way only.
    """
    if options.match == "exact" or not ((made.missing and made.unused) or made.mismatched):
        return {}, []
    model = _numbers(chain((want.name for want in made.missing), (pair.want.name for pair in made.found)))
    file = _numbers(chain((offer.name for offer in made.unused), (pair.offer.name for pair in made.found)))
    unsure: dict[str, Ambiguity] = {}
    sides = _Sides(made)
    for one in _lists(made.found):
        mine, theirs = model[one.mine], file[one.theirs]
        if one.renumbered or (mine == theirs and not one.odd) or _are_names(one.mine, mine, options.modules):
            continue
        for numbers, doubt in _doubts(one, mine, theirs, doubted.get(one.mine), sides):
            unsure |= {
                pair.want.name: doubt
                for number in numbers
                for pair in one.pairs[number]
                if not _was_moved(pair, one.theirs, options)
            }
    return unsure, sides.moved


def _doubts(
    one: _List, mine: set[int], theirs: set[int], known: Ambiguity | None, sides: _Sides
) -> Iterator[tuple[list[int], Ambiguity]]:
    """Give elements of a list that are in doubt, and what the doubt is."""
    if known is not None:
        numbers = sorted(one.pairs)
        yield numbers, replace(known, reason=_DOUBTED.format(known.reason, spell(one.mine, numbers)))
        return
    after, reason = _parting(one, mine, theirs)
    unsure = {number for number in one.pairs if reason and number > after}
    if (reason or one.odd) and (found := sides.align(one)) is not None:
        if one.odd and found.shifted:
            unsure, reason = {number for number in one.pairs if number >= found.first}, _unlike(one, found.moved)
        unsure -= {number for number, other in found.sure.items() if number == other}
        if one.odd and found.shifted and found.moved and not unsure:
            sides.tell(one, found.moved)
    for numbers, told in ((sorted(unsure), reason), (sorted(one.kinds - unsure), _KINDS)):
        if numbers:
            yield (
                numbers,
                Ambiguity(want=spell(one.mine, numbers), candidates=(spell(one.theirs, numbers),), reason=told),
            )


def _was_moved(pair: Pair, parent: str, options: MatchOptions) -> bool:
    """Say whether a rename gave an element of a list its number; numbers are the same ones by how many come after them."""
    elements = elements_of(pair.offer.name)
    before = elements_of(options.sources.get(pair.offer.name, pair.offer.name))
    place = next(place for place, (path, _) in enumerate(elements) if path == parent) - len(elements)
    return len(before) < -place or before[place][1] != elements[place][1]


def _numbers(names: Iterable[str]) -> Mapping[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name in names:
        for parent, number in elements_of(name):
            found.setdefault(parent, set()).add(number)
    return found


def _lists(pairs: Iterable[Pair]) -> Iterator[_List]:
    found: dict[tuple[str, str], _List] = {}
    for pair in pairs:
        mine, theirs = elements_of(pair.want.name), elements_of(pair.offer.name)
        if len(mine) == len(theirs):
            for (parent, number), (there, other) in zip(mine, theirs, strict=True):
                found.setdefault((parent, there), _List(parent, there)).add(number, other, pair)
    yield from found.values()


def _are_names(parent: str, numbers: set[int], modules: frozenset[str]) -> bool:
    if not modules or (parent and parent not in modules):
        return False
    before = f"{parent}." if parent else ""
    return any(f"{before}{number}" not in modules for number in set(range(max(numbers))) - numbers)


def _parting(one: _List, mine: set[int], theirs: set[int]) -> tuple[int, str]:
    """Give the number after which equal ones are in doubt, and why; no reason where none are.

    Where either side has numbers that the other lacks between those that both have, it is the first such number; where one side has more
    than the other, the first element of another shape, and the one before where the rank is another: that is another layer, whose bias
    is not this one's. Where all numbers differ by the same, all are in doubt.
    """
    if mine == theirs:
        return -1, ""
    by = {other - own for own, other in zip(sorted(mine), sorted(theirs), strict=False)}
    if len(mine) == len(theirs) and len(by) == 1:
        return -1, _HIGHER.format(abs(min(by)), "higher" if min(by) > 0 else "lower")
    first, last = max(min(mine), min(theirs)), min(max(mine), max(theirs))
    between = sorted(number for number in mine ^ theirs if first <= number <= last)
    shifted = between[0] if between and mine - theirs and theirs - mine else None
    reshaped = min(one.odd, default=None)
    if shifted is not None and (reshaped is None or shifted < reshaped):
        return shifted, _SHIFTED.format(spell(one.mine, [shifted]))
    if reshaped is not None:
        return reshaped - (reshaped in one.alien), _RESHAPED.format(spell(one.mine, [reshaped]))
    return -1, ""
