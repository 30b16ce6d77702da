"""Operations on tensors that are found by name, as renames are; each can be turned round."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.rules._patterns import compile_pattern, pattern_text
from firekeep.rules._rule import RenameRule
from firekeep.rules.surgery._tensors import SLOT, merge, split, stack, unstack

Step = tuple[list[TensorEntry], int]
"""All tensors after an operation, and how many it was done on."""

_INDEX = "(?P<firekeep_index>[0-9]+)"


@dataclass(frozen=True, slots=True)
class Split:
    r"""Cut every tensor in whose name a pattern is found; the parts are called what renames would make of it.

    `Split.of(r"\.qkv\.", [".q.", ".k.", ".v."])` cuts `attn.qkv.weight` into three. `sizes`, `axis` and `heads` are those of `split`.
    """

    parts: tuple[RenameRule, ...]
    sizes: tuple[int, ...] | None = None
    axis: int = 0
    heads: int = 1

    @classmethod
    def of(
        cls, pattern: str, into: Sequence[str], *, sizes: Sequence[int] | None = None, axis: int = 0, heads: int = 1
    ) -> Self:
        """Read a pattern and the replacements for it, one for each part; raises `RuleError` saying what is wrong with them."""
        if isinstance(into, str) or len(into) < 2:
            raise RuleError(f"split {pattern!r}: two replacements or more are due, one for each part")
        parts = tuple(RenameRule.of((pattern, text)) for text in into)
        return cls(parts, _checked(sizes, len(parts), "split"), axis, heads)

    def apply(self, entries: Sequence[TensorEntry]) -> Step:
        """Give the parts in place of the tensors that are cut."""
        made: list[TensorEntry] = []
        hits = 0
        for entry in entries:
            if not self.parts[0].apply(entry.name)[1]:
                made.append(entry)
                continue
            names = [part.apply(entry.name)[0] for part in self.parts]
            made += split(entry, names=names, sizes=self.sizes, axis=self.axis, heads=self.heads)
            hits += 1
        return made, hits

    def inverse(self) -> Merge:
        """Give the merge that makes the tensors whole again; raises `RuleError` where the names cannot be turned round."""
        return Merge(tuple(part.inverse() for part in self.parts), self.sizes, self.axis, self.heads)

    def table(self) -> dict[str, object]:
        """Give it as a table of a mapping file."""
        into = [part.replacement for part in self.parts]
        return {"split": pattern_text(self.parts[0].pattern), "into": into} | _facts(self.sizes, self.axis, self.heads)

    def __str__(self) -> str:
        return f"split {self.parts[0].pattern.pattern} into {', '.join(part.replacement for part in self.parts)}"


@dataclass(frozen=True, slots=True)
class Merge:
    r"""Join tensors whose names become one, in the order of their patterns.

    `Merge.of([r"\.q\.", r"\.k\.", r"\.v\."], ".qkv.")` joins the three of each layer. Their extents along the axis are equal, or the
    `sizes` given: only so can it be turned round. A tensor whose other parts are not there is refused.
    """

    parts: tuple[RenameRule, ...]
    sizes: tuple[int, ...] | None = None
    axis: int = 0
    heads: int = 1

    @classmethod
    def of(
        cls,
        patterns: Sequence[str],
        into: str | Sequence[str],
        *,
        sizes: Sequence[int] | None = None,
        axis: int = 0,
        heads: int = 1,
    ) -> Self:
        """Read a pattern for each part, and the replacement for all, or one for each; raises `RuleError` for what is wrong."""
        if isinstance(patterns, str) or len(patterns) < 2:
            raise RuleError(f"merge {patterns!r}: two patterns or more are due, one for each part")
        texts = [into] * len(patterns) if isinstance(into, str) else list(into)
        if len(texts) != len(patterns):
            raise RuleError(f"merge: there are {len(patterns)} patterns and {len(texts)} replacements")
        parts = tuple(RenameRule.of(pair) for pair in zip(patterns, texts, strict=True))
        return cls(parts, _checked(sizes, len(parts), "merge"), axis, heads)

    def apply(self, entries: Sequence[TensorEntry]) -> Step:
        """Give the joined tensors, each where its first part was."""
        found = _gather(entries, self._part_of)
        for name, parts in found.items():
            missing = [str(rule) for place, rule in enumerate(self.parts) if place not in parts]
            if missing:
                there = ", ".join(repr(entry.name) for entry in parts.values())
                raise RuleError(
                    f"{name!r} cannot be merged of {there} alone: nothing was found for {missing[0]}",
                    remedy="Make the patterns narrower where not all of the parts are there.",
                )
        whole = {name: self._join(name, [parts[place] for place in sorted(parts)]) for name, parts in found.items()}
        return _put(entries, found, whole), len(found)

    def inverse(self) -> Split | Merge:
        """Give the split that cuts the tensors again; raises `RuleError` where the names cannot be turned round."""
        parts = tuple(part.inverse() for part in self.parts)
        if len({part.pattern.pattern for part in parts}) > 1:
            raise RuleError(
                f"{str(self)!r} has no inverse that its form tells: the new names do not say alike where the parts stood",
                remedy="Write the groups of all its patterns in one order.",
            )
        return Split(parts, self.sizes, self.axis, self.heads)

    def table(self) -> dict[str, object]:
        """Give it as a table of a mapping file."""
        texts = [part.replacement for part in self.parts]
        patterns = [pattern_text(part.pattern) for part in self.parts]
        into = texts[0] if len(set(texts)) == 1 else texts
        return {"merge": patterns, "into": into} | _facts(self.sizes, self.axis, self.heads)

    def _part_of(self, name: str) -> list[tuple[str, int]]:
        made = [(rule.apply(name), place) for place, rule in enumerate(self.parts)]
        return [(new, place) for (new, was_found), place in made if was_found]

    def _join(self, name: str, parts: list[TensorEntry]) -> TensorEntry:
        whole = merge(parts, name=name, axis=self.axis, heads=self.heads)
        extents = [entry.shape[self.axis] for entry in parts]
        if list(self.sizes or extents[:1] * len(extents)) != extents:
            due = "equal" if self.sizes is None else str(list(self.sizes))
            raise RuleError(
                f"the parts of {name!r} have the extents {extents} along axis {self.axis}, where {due} ones are due",
                remedy=f"Give sizes = {extents}, or leave this one out by a narrower pattern.",
            )
        return whole

    def __str__(self) -> str:
        return f"merge {', '.join(part.pattern.pattern for part in self.parts)} into {self.parts[0].replacement}"


@dataclass(frozen=True, slots=True)
class Stack:
    r"""Put the tensors of a list side by side along a new axis; `{}` in the pattern is the index.

    `Stack.of(r"^layers\.{}\.", "layers.")` makes one `layers.weight` of `layers.0.weight`, `layers.1.weight` and so on. The indices are
    those from 0 on without a gap.
    """

    rule: RenameRule
    axis: int = 0

    @classmethod
    def of(cls, pattern: str, into: str, *, axis: int = 0) -> Self:
        """Read a pattern with `{}` where the index is, and the replacement for what it finds."""
        _require_slot(pattern, f"stack {pattern!r}")
        return cls(RenameRule.of((pattern.replace(SLOT, re.escape(SLOT)), into)), axis)

    def apply(self, entries: Sequence[TensorEntry]) -> Step:
        """Give the stacked tensors, each where its first part was."""
        finder = compile_pattern(self.rule.pattern.pattern.replace(re.escape(SLOT), _INDEX), role="stack")

        def part_of(name: str) -> list[tuple[str, int]]:
            match = finder.search(name)
            if match is None:
                return []
            start, stop = match.span("firekeep_index")
            return [(self.rule.apply(f"{name[:start]}{SLOT}{name[stop:]}")[0], int(name[start:stop]))]

        found = _gather(entries, part_of)
        for name, parts in found.items():
            if sorted(parts) != list(range(len(parts))):
                shown = ", ".join(map(str, sorted(parts)[:8]))
                raise RuleError(
                    f"{name!r} cannot be stacked of the indices {shown}: they do not run from 0 without a gap",
                    remedy="Close the gaps first.",
                )
        whole = {
            name: stack([parts[place] for place in sorted(parts)], name=name, axis=self.axis)
            for name, parts in found.items()
        }
        return _put(entries, found, whole), len(found)

    def inverse(self) -> Unstack:
        """Give the operation that takes the tensors apart again; raises `RuleError` where the names cannot be turned round."""
        return Unstack(self.rule.inverse(), self.axis)

    def table(self) -> dict[str, object]:
        """Give it as a table of a mapping file."""
        pattern = self.rule.pattern.pattern.replace(re.escape(SLOT), SLOT)
        return {"stack": pattern, "into": self.rule.replacement} | _facts(None, self.axis, 1)

    def __str__(self) -> str:
        return f"stack {self.rule.pattern.pattern.replace(re.escape(SLOT), SLOT)} into {self.rule.replacement}"


@dataclass(frozen=True, slots=True)
class Unstack:
    r"""Take tensors apart along an axis, which goes away; `{}` in the replacement becomes the index.

    `Unstack.of(r"^layers\.", "layers.{}.")` makes `layers.0.weight`, `layers.1.weight` and so on of one `layers.weight`.
    """

    rule: RenameRule
    axis: int = 0

    @classmethod
    def of(cls, pattern: str, into: str, *, axis: int = 0) -> Self:
        """Read a pattern, and a replacement with `{}` where the index is due."""
        _require_slot(into, f"unstack {pattern!r} into {into!r}")
        return cls(RenameRule.of((pattern, into)), axis)

    def apply(self, entries: Sequence[TensorEntry]) -> Step:
        """Give the parts in place of the tensors that are taken apart."""
        made: list[TensorEntry] = []
        hits = 0
        for entry in entries:
            name, was_found = self.rule.apply(entry.name)
            made += unstack(entry, names=name, axis=self.axis) if was_found else [entry]
            hits += was_found
        return made, hits

    def inverse(self) -> Stack:
        """Give the operation that stacks the tensors again; raises `RuleError` where the names cannot be turned round."""
        return Stack(self.rule.inverse(), self.axis)

    def table(self) -> dict[str, object]:
        """Give it as a table of a mapping file."""
        return {"unstack": pattern_text(self.rule.pattern), "into": self.rule.replacement} | _facts(None, self.axis, 1)

    def __str__(self) -> str:
        return f"unstack {self.rule.pattern.pattern} into {self.rule.replacement}"


Found = dict[str, dict[int, TensorEntry]]
"""The parts of each tensor to be, by their places in it."""


def _gather(entries: Iterable[TensorEntry], part_of: Callable[[str], list[tuple[str, int]]]) -> Found:
    found: Found = {}
    for entry in entries:
        parts = part_of(entry.name)
        if len(parts) > 1:
            raise RuleError(
                f"it was found by several patterns of one merge: it would be part of {parts[0][0]!r} and {parts[1][0]!r}",
                tensor=entry.name,
                remedy="Make the patterns narrower.",
            )
        for name, place in parts:
            other = found.setdefault(name, {}).setdefault(place, entry)
            if other is not entry:
                raise RuleError(f"{other.name!r} and {entry.name!r} would be the same part of {name!r}")
    return found


def _put(entries: Iterable[TensorEntry], found: Found, whole: dict[str, TensorEntry]) -> list[TensorEntry]:
    """Give every new tensor where the first of its parts was, and everything else as it was."""
    owners = {entry.name: name for name, parts in found.items() for entry in parts.values()}
    made: list[TensorEntry] = []
    for entry in entries:
        owner = owners.get(entry.name)
        if owner is None:
            made.append(entry)
        elif owner in whole:
            made.append(whole.pop(owner))
    return made


def _require_slot(text: object, what: str) -> None:
    if not isinstance(text, str) or text.count(SLOT) != 1:
        raise RuleError(f"{what}: {SLOT} is due once, where the index is")


def _checked(sizes: Sequence[int] | None, count: int, role: str) -> tuple[int, ...] | None:
    if sizes is not None and len(sizes) != count:
        raise RuleError(f"{role}: there are {len(sizes)} sizes for {count} parts")
    return None if sizes is None else tuple(sizes)


def _facts(sizes: tuple[int, ...] | None, axis: int, heads: int) -> dict[str, object]:
    facts: dict[str, object] = {}
    if sizes is not None:
        facts["sizes"] = list(sizes)
    if axis:
        facts["axis"] = axis
    if heads != 1:
        facts["heads"] = heads
    return facts
