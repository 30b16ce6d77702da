r"""Regular expressions that may take for ever: Python's engine tries every way to deal out a text to a repeat within a repeat.

It has no time limit, and names come from files nobody vouches for. What is looked for are repeats like `(\w+)*` and `(.*\.)+`, in which
nothing tells where one round ends and the next begins; `(\w+\.)*` is none, since no dot is a `\w`. Repeats of
alternatives that overlap are another matter, see `_ambiguity`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

MANY = 16
"""Rounds from which a repeat counts as one without an end."""
_LETTERS = frozenset((*range(128), 0xE9, 0x4E2D))
"""What stands for all letters: ASCII, and two beyond."""
_WAYS = 64
"""Alternatives of one repeat that are looked at."""

REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
Parsed = Iterable[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class _Item:
    """A step of a pattern: what letters it may find, whether it must find one, whether many, and whether one kind or a group."""

    letters: frozenset[int]
    due: bool = True
    many: bool = False
    single: bool = True


@cache
def is_endless(pattern: str, flags: int) -> bool:
    """Say whether a pattern, which has been compiled, has a repeat in a repeat of which nothing tells the rounds apart."""
    found: Parsed = parser.parse(pattern, flags)
    return any(_is_endless(body) for body in _repeated(found))


def _repeated(parsed: Parsed) -> Iterator[Parsed]:
    """Give what is repeated many times, at any depth."""
    for code, value in parsed:
        if code in REPEATS and value[1] >= MANY:
            yield value[2]
        for inner in inner_of(code, value):
            yield from _repeated(inner)


def inner_of(code: Any, value: Any) -> Iterator[Parsed]:
    """Give the parts of a step that are patterns themselves."""
    if code is codes.BRANCH:
        yield from value[1]
    elif code is codes.SUBPATTERN:
        yield value[3]
    elif code in REPEATS or code is codes.POSSESSIVE_REPEAT:
        yield value[2]
    elif code is codes.ATOMIC_GROUP:
        yield value
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield value[1]
    elif code is codes.GROUPREF_EXISTS:
        yield from (part for part in value[1:] if part is not None)


def _is_endless(body: Parsed) -> bool:
    for items in _ways(list(body)):
        for place, item in enumerate(items):
            others = [other for at, other in enumerate(items) if at != place and other.due]
            if item.many and all(item.single and item.letters & other.letters for other in others):
                return True
    return False


def _ways(parsed: list[tuple[Any, Any]]) -> list[list[_Item]]:
    """Give the steps of a pattern, once for each of its alternatives."""
    ways: list[list[_Item]] = [[]]
    for code, value in parsed:
        if code is codes.BRANCH:
            further = [way for branch in value[1] for way in _ways(list(branch))]
        elif code is codes.SUBPATTERN:
            further = _ways(list(value[3]))
        else:
            further = [list(_items(code, value))]
        ways = [[*way, *more] for way in ways for more in further][:_WAYS]
    return ways


def _items(code: Any, value: Any) -> Iterator[_Item]:
    if code in REPEATS or code is codes.POSSESSIVE_REPEAT:
        least, most, body = value
        inside = [item for way in _ways(list(body)) for item in way]
        letters = frozenset[int]().union(*(item.letters for item in inside))
        many = code is not codes.POSSESSIVE_REPEAT and most >= MANY
        due = least > 0 and any(all(not item.due for item in way) for way in _ways(list(body))) is False
        yield _Item(letters, due, many, len(list(body)) == 1 and len(inside) == 1)
    elif code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
        yield _Item(_letters(code, value))
    elif code not in (codes.AT, codes.ASSERT, codes.ASSERT_NOT):
        yield _Item(frozenset())  # a group again, or an atomic one: taken for something that tells rounds apart


def _letters(code: Any, value: Any) -> frozenset[int]:
    if code is codes.ANY:
        return _LETTERS
    if code is codes.LITERAL:
        return frozenset((value,))
    if code is codes.NOT_LITERAL:
        return _LETTERS - {value}
    if code is codes.IN:
        negated = value[0][0] is codes.NEGATE
        found = frozenset[int]().union(*(_letters(*part) for part in value[negated:]))
        return _LETTERS - found if negated else found
    if code is codes.RANGE:
        return frozenset(letter for letter in _LETTERS if value[0] <= letter <= value[1])
    if code is codes.CATEGORY:
        known = _CATEGORIES.get(value)
        return frozenset(letter for letter in _LETTERS if known and known.match(chr(letter)))
    return frozenset()


_CATEGORIES = {
    codes.CATEGORY_DIGIT: re.compile(r"\d"),
    codes.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    codes.CATEGORY_SPACE: re.compile(r"\s"),
    codes.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    codes.CATEGORY_WORD: re.compile(r"\w"),
    codes.CATEGORY_NOT_WORD: re.compile(r"\W"),
}
