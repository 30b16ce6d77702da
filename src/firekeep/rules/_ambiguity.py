r"""Repeats that can take the same letters in more than one way: `(\w|_\w)+x`, `(a{1,2})+x`, `(?:a?b?)*x`.

Where what comes behind such a repeat is not found, Python's engine tries all the ways, and these double with every letter. A repeat is
looked at as an automaton whose places are the letters of the pattern; it is told by two ways round from a place to itself over one text.
Only repeats behind which a search can still fail count, and what is too large to be looked at is let through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from firekeep.rules._backtracking import MANY, REPEATS, Parsed, inner_of
from firekeep.rules._letters import Letters

_PLACES = 400
"""Letters of one repeat that are looked at, and steps from pairs of these to others."""
_STEPS = 60_000

_Ways = Mapping[int, int]
"""Places, and in how many ways they are come to: 1, or 2 for more."""


class _TooLargeError(Exception):
    """A repeat has more places than are looked at."""


@cache
def is_ambiguous(pattern: str, flags: int) -> bool:
    """Say whether a pattern, which has been compiled, has a repeat that doubles the ways to be tried with every letter."""
    found: Any = parser.parse(pattern, flags)
    repeats = list(_repeats(found, int(found.state.flags), may_fail=False))
    if not repeats:
        return False
    letters = Letters.of(found)
    return any(_doubles(body, letters, flags) for body, flags in repeats)


def _repeats(parsed: Parsed, flags: int, *, may_fail: bool) -> Iterator[tuple[Parsed, int]]:
    """Give what is repeated many times where a search may fail behind it, with the flags that hold there; not single letters."""
    fails = may_fail
    for code, value in reversed(list(parsed)):
        if code in REPEATS:
            least, most, body = value
            if most >= MANY and fails and any(one in _COMPOUND for one, _ in body):
                yield body, flags
            yield from _repeats(body, flags, may_fail=fails or least > 1)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _repeats(branch, flags, may_fail=fails)
        elif code is codes.SUBPATTERN:
            yield from _repeats(value[3], _flags(flags, value), may_fail=fails)
        else:  # what is found whole or not at all; nothing behind it makes it look for another way
            for inside in inner_of(code, value):
                yield from _repeats(inside, flags, may_fail=code is codes.GROUPREF_EXISTS and fails)
        fails = fails or not _finds_nothing(code, value)


_COMPOUND = (*REPEATS, codes.BRANCH, codes.SUBPATTERN, codes.GROUPREF_EXISTS)


def _flags(flags: int, group: Any) -> int:
    return (flags | int(group[1])) & ~int(group[2])


def _finds_nothing(code: Any, value: Any) -> bool:
    """Say whether a step is content with nothing at all, wherever it stands."""
    if code in REPEATS or code is codes.POSSESSIVE_REPEAT:
        return value[0] == 0 or all(_finds_nothing(*step) for step in value[2])
    if code is codes.SUBPATTERN:
        return all(_finds_nothing(*step) for step in value[3])
    if code is codes.BRANCH:
        return any(all(_finds_nothing(*step) for step in branch) for branch in value[1])
    return False


def _doubles(body: Parsed, letters: Letters, flags: int) -> bool:
    made = _Automaton(letters)
    try:
        whole = made.read(body, flags)
        made.join(whole.last, whole.first)
    except _TooLargeError:
        return False
    return made.has_two_ways_round()


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a pattern: in how many ways it is content with nothing, the places that it may begin and end with."""

    empty: int
    first: _Ways = field(default_factory=dict)
    last: _Ways = field(default_factory=dict)


_NOTHING = _Part(1)


@dataclass
class _Automaton:
    """The places of a pattern by the letters they take, and in how many ways one comes behind another."""

    letters: Letters
    taken: list[int] = field(default_factory=list)
    after: dict[int, dict[int, int]] = field(default_factory=dict)

    def read(self, parsed: Parsed, flags: int) -> _Part:
        """Add a part of a pattern."""
        made = _NOTHING
        for code, value in parsed:
            made = self._then(made, self._step(code, value, flags))
        return made

    def join(self, last: _Ways, first: _Ways) -> None:
        """Let places come behind others."""
        for here, ways in last.items():
            after = self.after.setdefault(here, {})
            for place, more in first.items():
                after[place] = min(2, after.get(place, 0) + ways * more)

    def _step(self, code: Any, value: Any, flags: int) -> _Part:
        if code is codes.BRANCH:
            return _either([self.read(branch, flags) for branch in value[1]])
        if code is codes.SUBPATTERN:
            return self.read(value[3], _flags(flags, value))
        if code in REPEATS:
            least, most, body = value
            return self._repeat(least, most, body, flags)
        # What is no letter (an atomic group, a group again, a word boundary) is taken for a place that nothing comes to.
        if len(self.taken) >= _PLACES:
            raise _TooLargeError
        self.taken.append(self.letters.taken_by(code, value, flags))
        place = {len(self.taken) - 1: 1}
        return _Part(0, place, place)

    def _repeat(self, least: int, most: int, body: Parsed, flags: int) -> _Part:
        if most >= MANY:
            part = self.read(body, flags)
            self.join(part.last, part.first)
            return _Part(min(2, 1 + part.empty) if least == 0 else part.empty, part.first, part.last)
        made = _NOTHING
        for round_ in reversed(range(most)):
            made = self._then(self.read(body, flags), made)
            if round_ >= least:
                made = _either([made, _NOTHING])
        return made

    def _then(self, one: _Part, other: _Part) -> _Part:
        self.join(one.last, other.first)
        return _Part(
            min(2, one.empty * other.empty),
            _sum(one.first, other.first, one.empty),
            _sum(other.last, one.last, other.empty),
        )

    def has_two_ways_round(self) -> bool:
        """Say whether two ways lead from a place over the same text back to it."""
        for circle in self._circles():
            inside = {place: [(to, ways) for to, ways in self.after[place].items() if to in circle] for place in circle}
            if any(ways > 1 for steps in inside.values() for _, ways in steps):
                return True
            if self._parts_and_meets({place: [to for to, _ in steps] for place, steps in inside.items()}):
                return True
        return False

    def _parts_and_meets(self, inside: Mapping[int, list[int]]) -> bool:
        """Go two ways at once from every place of a circle, and say whether they part and come to one place again."""
        seen, steps = {(place, place) for place in inside}, 0
        todo = list(seen)
        while todo:
            one, other = todo.pop()
            for mine in inside[one]:
                for theirs in inside[other]:
                    steps += 1
                    if mine == theirs:
                        if one != other:
                            return True
                    elif self.taken[mine] & self.taken[theirs]:
                        pair = (min(mine, theirs), max(mine, theirs))
                        if pair not in seen:
                            seen.add(pair)
                            todo.append(pair)
            if steps > _STEPS:
                return False
        return False

    def _circles(self) -> Iterator[set[int]]:
        """Give the places that lead to one another, without those that nothing comes to."""
        left = {place for place, letters in enumerate(self.taken) if letters and place in self.after}
        while left:
            start = left.pop()
            circle = (_reached(start, self.after, left) & _reached(start, self._before, left)) | {start}
            left -= circle
            if len(circle) > 1 or start in self.after[start]:
                yield circle

    @cached_property
    def _before(self) -> Mapping[int, Mapping[int, int]]:
        made: dict[int, dict[int, int]] = {}
        for place, after in self.after.items():
            for to, ways in after.items():
                made.setdefault(to, {})[place] = ways
        return made


def _reached(start: int, steps: Mapping[int, Mapping[int, int]], among: set[int]) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        for place in steps.get(todo.pop(), ()):
            if place in among and place not in found:
                found.add(place)
                todo.append(place)
    return found


def _either(parts: list[_Part]) -> _Part:
    made = _Part(0)
    for part in parts:
        made = _Part(min(2, made.empty + part.empty), _sum(made.first, part.first, 1), _sum(made.last, part.last, 1))
    return made


def _sum(one: _Ways, other: _Ways, times: int) -> _Ways:
    if not times:
        return one
    made = dict(one)
    for place, ways in other.items():
        made[place] = min(2, made.get(place, 0) + ways * times)
    return made
