"""Which letters a step of a regular expression takes, as a set of bits: those that a pattern speaks of, and some for all others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from re import _constants as codes  # type: ignore[attr-defined]
from typing import Any

from firekeep.rules._backtracking import inner_of

_SAMPLE = (*range(128), 0xE9, 0x4E2D)
"""What stands for letters that a pattern does not name: ASCII, and two beyond."""
_HIGHEST = 0x10FFFF

_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}


@dataclass(frozen=True, slots=True)
class Letters:
    """Letters in an order, each of which is a bit."""

    known: tuple[int, ...]
    places: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, parsed: Iterable[Any]) -> Letters:
        """Take the letters that a parsed pattern speaks of, and those that stand for the others."""
        known = dict.fromkeys(_SAMPLE)
        for letter in _named(parsed):
            known |= dict.fromkeys(_cases(letter))
        return cls(tuple(known), {letter: place for place, letter in enumerate(known)})

    def taken_by(self, code: Any, value: Any, flags: int) -> int:
        """Give the letters that a step takes; none for what is no step over one letter."""
        if code is codes.ANY:
            return self._all
        if code is codes.IN:
            negated = value[0][0] is codes.NEGATE
            found = 0
            for kind, what in value[negated:]:
                found |= self._one(kind, what, flags)
            return self._all & ~found if negated else found
        if code is codes.NOT_LITERAL:
            return self._all & ~self._one(codes.LITERAL, value, flags)
        return self._one(code, value, flags)

    @property
    def _all(self) -> int:
        return (1 << len(self.known)) - 1

    def _one(self, code: Any, value: Any, flags: int) -> int:
        if code is codes.LITERAL:
            return self._bits((value,), flags)
        if code is codes.RANGE:
            return self._bits((letter for letter in self.known if value[0] <= letter <= value[1]), flags)
        if code is codes.CATEGORY and value in _CATEGORIES:
            return _category(self.known, value, flags & re.ASCII)
        return 0

    def _bits(self, letters: Iterable[int], flags: int) -> int:
        found = 0
        for letter in letters:
            for case in _cases(letter) if flags & re.IGNORECASE else (letter,):
                found |= 1 << self.places[case] if case in self.places else 0
        return found


@cache
def _category(known: tuple[int, ...], category: Any, flags: int) -> int:
    pattern = re.compile(_CATEGORIES[category], flags)
    return sum(1 << place for place, letter in enumerate(known) if pattern.match(chr(letter)))


def _cases(letter: int) -> Iterator[int]:
    yield letter
    for other in (chr(letter).lower(), chr(letter).upper()):
        if len(other) == 1 and ord(other) != letter:
            yield ord(other)


def _named(parsed: Any) -> Iterator[int]:
    """Give the letters that a pattern names, the ends of its ranges, and what lies just beside these."""
    for code, value in parsed:
        if code in (codes.LITERAL, codes.NOT_LITERAL):
            yield value
        elif code is codes.RANGE:
            yield from (letter for end in value for letter in (end - 1, end, end + 1) if 0 <= letter <= _HIGHEST)
        elif code is codes.IN:
            yield from _named(value)
        else:
            for inside in inner_of(code, value):
                yield from _named(inside)
