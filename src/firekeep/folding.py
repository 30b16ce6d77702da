"""Names in the order people count, and alike names as one: layers.{0…29}.attn.weight."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from firekeep.wording import quote

_Item = tuple[tuple[str, ...], tuple[str, ...]]
"""Segments, with labels of numbers where names were put together, and the names."""

_DIGITS = re.compile(r"([0-9]+)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_DEEPEST = 64
"""Segments of a name that are looked at; the rest of a longer name is one."""

_MAX_RANGES = 6
"""Ranges in one label; numbers scattered more than this are told by the first, the last, and how many there are."""


def natural(name: str) -> tuple[str | int, ...]:
    """Give a key that sorts names as people count: layers.2 before layers.10."""
    parts: list[str | int] = _DIGITS.split(name)  # text and numbers by turns, the first a text that may be empty
    parts[1::2] = [int(number[:4000]) for number in parts[1::2]]  # type: ignore[index]
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Fold:
    """Names that differ in nothing but the numbers of their segments, and one label for all of them."""

    label: str
    names: tuple[str, ...]


def fold(names: Iterable[str], *, dots: str = "…") -> list[Fold]:
    """Put together names that are alike but for numbered segments, in the order of the first of each.

    A label describes the names of its fold and no others; where their numbers are too scattered to list, it counts them.
    """
    items: list[_Item] = [(tuple(name.split(".", _DEEPEST - 1)), (name,)) for name in names]
    for place in range(max((len(segments) for segments, _ in items), default=0)):
        items = _merge(items, place, dots)
    return [Fold(".".join(segments), members) for segments, members in items]


def some_alike(names: Iterable[str], shown: int = 5) -> str:
    """List names in quotes, alike ones as one, and count the names that are not shown."""
    told = fold(names)
    rest = sum(len(one.names) for one in told[shown:])
    return ", ".join(quote(one.label) for one in told[:shown]) + (f" and {rest:,} more" if rest else "")


def _merge(items: list[_Item], place: int, dots: str) -> list[_Item]:
    groups: dict[object, list[_Item]] = {}
    for segments, members in items:
        numbered = len(segments) > place and is_number(segments[place])
        key = (segments[:place], segments[place + 1 :]) if numbered else (None, segments, members)
        groups.setdefault(key, []).append((segments, members))
    return [_joined(group, place, dots) for group in groups.values()]


def _joined(group: list[_Item], place: int, dots: str) -> _Item:
    if len(group) == 1:
        return group[0]
    segments = group[0][0]
    label = f"{{{ranges([int(item[0][place]) for item in group], dots=dots)}}}"
    return (*segments[:place], label, *segments[place + 1 :]), tuple(name for item in group for name in item[1])


def is_number(segment: str) -> bool:
    """Say whether a segment is the number of an element, as a list would write it."""
    return _NUMBER.fullmatch(segment) is not None


def ranges(numbers: Sequence[int], *, dots: str = "…") -> str:
    """Give numbers as ranges: 0…5,8; even steps as 0,2…22."""
    ordered = sorted(set(numbers))
    told = [_range(first, last, dots) for first, last in _runs(ordered)]
    if (
        len(ordered) > 3
        and len(told) == len(ordered)
        and len({after - before for before, after in pairwise(ordered)}) == 1
    ):
        return f"{ordered[0]},{ordered[1]}{dots}{ordered[-1]}"
    if len(told) > _MAX_RANGES:
        return f"{len(ordered)} of {_range(ordered[0], ordered[-1], dots)}"
    return ",".join(told)


def _runs(ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(ordered) + 1):
        if place == len(ordered) or ordered[place] != ordered[place - 1] + 1:
            yield ordered[start], ordered[place - 1]
            start = place


def _range(first: int, last: int, dots: str) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}{dots}{last}"
