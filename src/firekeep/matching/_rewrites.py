"""Renames within names that would make unused names missing ones: layers.*.self_attn.q.weight, wanted as layers.*.attn.q.weight."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry
from firekeep.folding import is_number
from firekeep.matching._near import NEAR
from firekeep.matching._words import Want

_NUMBER = "#"
_MOST = 300
"""Kinds of names that are compared, those with most names."""
_LEAST = 2
"""Names that speak for a rename: one may be near another by chance."""
_NEXTS = 8

Segments = tuple[str, ...]


@dataclass(slots=True)
class _Kind:
    """Names that are alike but for numbers: by their numbers, the shapes."""

    segments: Segments
    shapes: dict[Segments, tuple[int, ...]] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        return self.segments.count(_NUMBER)


@dataclass(frozen=True, slots=True)
class _Change:
    """What differs between two kinds of names: the segments before, those of either side, the segments after."""

    before: Segments
    theirs: Segments
    mine: Segments
    after: Segments

    @property
    def equal(self) -> int:
        """How many segments, numbers apart, are the same on both sides; the last one alone (weight) says nothing."""
        return sum(segment != _NUMBER for segment in (*self.before, *self.after[:-1]))

    @property
    def rank(self) -> int:
        """How much both sides share."""
        return self.equal + len(self.after[-1:])


def find_rewrites(missing: Iterable[Want], unused: Iterable[TensorEntry]) -> list[str]:
    """Give rules, the ones with most names behind them first, each of which makes missing names of unused ones of equal shapes."""
    names: Counter[tuple[str, str]] = Counter()
    nexts: dict[tuple[str, str], dict[str, None]] = {}
    for change, number in _changes(_kinds(missing), _kinds(unused)):
        key, following = _rule(change)
        names[key] += number
        nexts.setdefault(key, {}).update(dict.fromkeys(following))
    rules = []
    for (pattern, replacement), number in names.most_common():
        known = list(nexts[pattern, replacement])
        if number >= _LEAST and len(known) <= _NEXTS:
            rules.append(f"{pattern.replace('{}', '|'.join(known))}=>{replacement}")
    return [rule for rule in rules if rule.count("=>") == 1]


def find_lone_rewrites(missing: Iterable[Want], unused: Iterable[TensorEntry]) -> list[str]:
    """Give such rules for vectors that go by another name in the same part (norm.scale, wanted as norm.weight), be there one of a kind."""
    rules = []
    wanted, offered = ([one for one in side if len(one.shape) == 1] for side in (list(missing), list(unused)))
    for change, _ in _changes(_kinds(wanted), _kinds(offered)):
        if change.before and not change.after and len(change.theirs) == len(change.mine) == 1:
            pattern, replacement = _rule(change)[0]
            rules.append(f"{pattern}=>{replacement}")
    return [rule for rule in dict.fromkeys(rules) if rule.count("=>") == 1]


def _kinds(side: Iterable[Want | TensorEntry]) -> list[_Kind]:
    kinds: dict[Segments, _Kind] = {}
    for one in side:
        segments = one.name.split(".")
        kind = tuple(_NUMBER if is_number(segment) else segment for segment in segments)
        numbers = tuple(segment for segment in segments if is_number(segment))
        kinds.setdefault(kind, _Kind(kind)).shapes[numbers] = one.shape
    return sorted(kinds.values(), key=lambda kind: -len(kind.shapes))[:_MOST]


def _changes(missing: Sequence[_Kind], unused: Sequence[_Kind]) -> Iterator[tuple[_Change, int]]:
    """Pair kinds whose numbers and shapes are mostly equal, and give how many names these are.

    Each is paired with the one that has more segments in common with it than any other: where two have as many (gate and up, for w1 and
    w2), nothing tells which was meant.
    """
    rivals: dict[int, list[tuple[int, _Change, int]]] = {}
    for mine in missing:
        best = list(_best(mine, unused))
        if len(best) == 1:
            other, rank, change, equal = best[0]
            rivals.setdefault(other, []).append((rank, change, equal))
    for found in rivals.values():
        highest = max(rank for rank, _, _ in found)
        first = [(change, equal) for rank, change, equal in found if rank == highest]
        if len(first) == 1:
            yield first[0]


def _best(mine: _Kind, unused: Sequence[_Kind]) -> Iterator[tuple[int, int, _Change, int]]:
    """Give all that share most with a kind, of those that fit it: each with its place, what it shares, and how many names are equal."""
    near = [(other, _change(kind.segments, mine.segments)) for other, kind in enumerate(unused)]
    ranked = [(change.rank, other, change) for other, change in near if _is_near(change, mine, unused[other])]
    ranked.sort(key=lambda one: -one[0])
    best = 0
    for rank, other, change in ranked:
        if rank < best:
            return
        theirs = unused[other].shapes
        equal = sum(theirs.get(numbers) == shape for numbers, shape in mine.shapes.items())
        if equal * 2 > min(len(mine.shapes), len(theirs)):
            best = rank
            yield other, rank, change, equal


def _is_near(change: _Change, mine: _Kind, theirs: _Kind) -> bool:
    if mine.numbers != theirs.numbers or change.theirs.count(_NUMBER) != change.mine.count(_NUMBER):
        return False
    from rapidfuzz.distance import Jaro

    return change.equal > 0 or Jaro.similarity(".".join(mine.segments), ".".join(theirs.segments)) >= NEAR


def _change(theirs: Segments, mine: Segments) -> _Change:
    most = min(len(theirs), len(mine))
    head = next((place for place in range(most) if theirs[place] != mine[place]), most)
    tail = next((place for place in range(most - head) if theirs[-1 - place] != mine[-1 - place]), most - head)
    end = len(theirs) - tail
    return _Change(theirs[:head], theirs[head:end], mine[head : len(mine) - tail], theirs[end:])


def _rule(change: _Change) -> tuple[tuple[str, str], Segments]:
    """Spell a change as a pattern and a replacement; where nothing is taken away, with {} for the segments that may follow."""
    if not change.theirs:
        return _insertion(change)
    start, stop = bool(change.before), bool(change.after)
    pattern = (r"\." if start else "^") + r"\.".join(map(_escaped, change.theirs)) + (r"\." if stop else "$")
    middle = _numbered(change.mine, first=1)
    left = "." if start and (middle or stop) else ""
    right = "." if stop and middle else ""
    return (pattern, f"{left}{middle}{right}"), ()


def _insertion(change: _Change) -> tuple[tuple[str, str], Segments]:
    """Put segments between the one before and those after, of which there are several in a layer (q, k, v)."""
    last, following = change.before[-1:], change.after[:1]
    found = [*map(_escaped, last), *("({})" for _ in following)]
    start, stop = (r"\." if len(change.before) > 1 else "^"), (r"\." if len(change.after) > 1 else "$")
    pattern = start + r"\.".join(found) + stop
    number = 1 + last.count(_NUMBER)
    told = [_numbered(last, first=1), ".".join(change.mine), f"${number}" if following else ""]
    replacement = "." * (len(change.before) > 1) + ".".join(filter(None, told)) + "." * (len(change.after) > 1)
    return (pattern, replacement), tuple(map(_escaped, following))


def _escaped(segment: str) -> str:
    return r"(\d+)" if segment == _NUMBER else re.escape(segment).replace("{}", r"\{\}")


def _numbered(segments: Segments, *, first: int) -> str:
    """Spell segments in a replacement, numbers as the groups that found them."""
    told, group = [], first
    for segment in segments:
        if segment == _NUMBER:
            told.append(f"${{{group}}}")
            group += 1
        else:
            told.append(segment.replace("\\", "\\\\").replace("$", "$$"))
    return ".".join(told)
