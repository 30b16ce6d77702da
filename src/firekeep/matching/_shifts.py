"""Pairs of equal numbers in lists that may have been shifted: where a layer was put in or taken out, those after it have other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from firekeep.matching._lists import elements_of, spell
from firekeep.matching._words import Ambiguity, MatchOptions, Pair, Plan

_DOUBTED = "its numbers differ on the two sides, so equal ones need not mean equal layers; match='exact' takes them so"
_SHIFTED = "from {} on the numbers differ on the two sides, so layers after it may have been shifted; match='exact' takes equal ones"
_HIGHER = "all its numbers are {} {} in the file, so equal ones need not mean equal layers; match='exact' takes them so"
_RESHAPED = (
    "the two sides have different numbers, and {} is of another shape, so layers after it may have been shifted; "
    "match='exact' takes equal ones"
)


@dataclass(slots=True)
class _List:
    """What was paired within a list: by number, in elements of one number on both sides, and in which of them shapes or ranks differ."""

    mine: str
    theirs: str
    pairs: dict[int, list[Pair]] = field(default_factory=dict)
    odd: set[int] = field(default_factory=set)
    alien: set[int] = field(default_factory=set)
    renumbered: bool = False

    def add(self, number: int, other: int, pair: Pair) -> None:
        self.renumbered |= number != other
        self.pairs.setdefault(number, []).append(pair)
        if pair.want.shape != pair.offer.shape:
            self.odd.add(number)
        if len(pair.want.shape) != len(pair.offer.shape):
            self.alien.add(number)


def find_unsure(made: Plan, doubted: Iterable[str], options: MatchOptions) -> dict[str, Ambiguity]:
    """Give the pairs, by the want's name, for which nothing speaks but an equal number in a list where that need not mean an equal layer.

    In a list of `doubted` these are all pairs but those to which a rename gave their number. Where either side has numbers that the
    other lacks between those that both have, they are the pairs after the first such number; where one side has more than the other,
    those after an element of another shape, and its own where the rank is another: that is another layer, whose bias is not this one's;
    where all numbers differ by the same, they are all.
    Numbers that are names (a dict of heads) mean what they say.
    """
    if options.match == "exact" or not ((made.missing and made.unused) or made.mismatched):
        return {}
    model = _numbers(chain((want.name for want in made.missing), (pair.want.name for pair in made.found)))
    file = _numbers(chain((offer.name for offer in made.unused), (pair.offer.name for pair in made.found)))
    unsure: dict[str, Ambiguity] = {}
    for one in _lists(made.found):
        mine, theirs = model[one.mine], file[one.theirs]
        if one.renumbered or mine == theirs or _are_names(one.mine, mine, options.modules):
            continue
        after, reason = (-1, _DOUBTED) if one.mine in doubted else _parting(one, mine, theirs)
        if numbers := sorted(number for number in one.pairs if number > after and reason):
            doubt = Ambiguity(want=spell(one.mine, numbers), candidates=(spell(one.theirs, numbers),), reason=reason)
            unsure |= {
                pair.want.name: doubt
                for number in numbers
                for pair in one.pairs[number]
                if one.mine not in doubted or not _was_moved(pair, one.theirs, options)
            }
    return unsure


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
    """Give the number after which equal ones are in doubt, and why; no reason where none are."""
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
