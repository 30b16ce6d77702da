"""New names for tensors, by ordered rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from firekeep.errors import RuleError
from firekeep.rules._patterns import Pattern, compile_pattern

Rule = str | tuple[Pattern, str]
"""'PATTERN=>REPLACEMENT', or the two as a pair."""

Piece = str | int
"""A part of a replacement: text, or the number of a group."""

_ARROW = "=>"
_SHOWN = 5

_REFERENCE = re.compile(
    r"""
      \\(?P<digits>[0-9]{1,2})          # \1
    | \\g<(?P<bracketed>[^>]*)>         # \g<1>, \g<name>
    | \\(?P<escaped>.?)                 # \\, and everything that means nothing
    | \$(?P<dollar>\$)                  # $$
    | \$\{(?P<braced>[^}]*)\}           # ${1}, ${name}
    | \$(?P<bare>[A-Za-z0-9_]+)         # $1, $name: the longest run, as in Rust
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class RenameRule:
    r"""All matches of a pattern in a name are replaced.

    Groups are `\1`, `\g<name>`, `$1`, `${1}` or `${name}`; `$$` is a dollar and two backslashes are one. A group that took no
    part in the match is empty.
    """

    pattern: re.Pattern[str]
    replacement: str
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, rule: Rule) -> Self:
        """Read 'PATTERN=>REPLACEMENT' or a pair of the two; raises `RuleError` saying what is wrong with it."""
        pattern, replacement = _split(rule)
        compiled = compile_pattern(pattern, role="rename")
        return cls(compiled, replacement, tuple(_parse(replacement, compiled)))

    def apply(self, name: str) -> tuple[str, bool]:
        """Give the name after this rule, and whether the pattern was found in it."""
        new, times = self.pattern.subn(self._expand, name)
        return new, times > 0

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(piece if isinstance(piece, str) else match[piece] or "" for piece in self.pieces)

    def __str__(self) -> str:
        return f"{self.pattern.pattern}{_ARROW}{self.replacement}"


@dataclass(frozen=True, slots=True)
class Renaming:
    """What rules made of a list of names: old to new for all of them, and for each rule in how many names it was found."""

    names: Mapping[str, str]
    hits: tuple[tuple[str, int], ...]

    @property
    def changed(self) -> int:
        """How many names are not what they were."""
        return sum(old != new for old, new in self.names.items())


@dataclass(frozen=True, slots=True)
class KeyRemapper:
    r"""Rules tried in order on every name; each sees what the one before made of it.

    >>> KeyRemapper.of([r"^model\.=>", r"layers\.(\d+)=>blocks.$1"]).rename(["model.layers.3.bias"]).names
    {'model.layers.3.bias': 'blocks.3.bias'}
    """

    rules: tuple[RenameRule, ...] = ()

    @classmethod
    def of(cls, rules: Rule | Iterable[Rule] | Mapping[str, str] = ()) -> Self:
        """Read rules, one by itself, or a mapping of patterns to replacements."""
        if isinstance(rules, str):
            rules = (rules,)
        if not isinstance(rules, Iterable):
            raise RuleError(f"rename: {rules!r} is {type(rules).__name__}, where rules are due")
        given: Iterable[Rule] = rules.items() if isinstance(rules, Mapping) else rules  # type: ignore[assignment]
        return cls(tuple(RenameRule.of(rule) for rule in given))

    def rename(self, names: Iterable[str]) -> Renaming:
        """Give every name its new one; raises `RuleError` naming both sources when two would become one."""
        hits = [0] * len(self.rules)
        renamed: dict[str, str] = {}
        for old in names:
            new = old
            for place, rule in enumerate(self.rules):
                new, found = rule.apply(new)
                hits[place] += found
            renamed[old] = new
        _refuse_collisions(renamed)
        return Renaming(renamed, tuple((str(rule), count) for rule, count in zip(self.rules, hits, strict=True)))

    def __bool__(self) -> bool:
        return bool(self.rules)


def _refuse_collisions(renamed: Mapping[str, str]) -> None:
    sources: dict[str, list[str]] = {}
    for old, new in renamed.items():
        sources.setdefault(new, []).append(old)
    clashes = [(new, olds) for new, olds in sources.items() if len(olds) > 1]
    if clashes:
        shown = "; ".join(f"{' and '.join(map(repr, olds[:3]))} become {new!r}" for new, olds in clashes[:_SHOWN])
        more = f"; and {len(clashes) - _SHOWN} more" if len(clashes) > _SHOWN else ""
        raise RuleError(
            f"the renames give several tensors one name: {shown}{more}",
            remedy="Make the patterns narrower, or leave one of them out with exclude.",
        )


def _split(rule: Rule) -> tuple[Pattern, str]:
    if isinstance(rule, str):
        parts = rule.split(_ARROW)
        if len(parts) != 2:
            fault = f"no {_ARROW!r}" if len(parts) == 1 else f"{_ARROW!r} {len(parts) - 1} times"
            raise RuleError(
                f"the rename {rule!r} has {fault}",
                remedy="Write PATTERN=>REPLACEMENT; an arrow inside the pattern is written [=]>.",
            )
        return parts[0], parts[1]
    try:
        pattern, replacement = rule
    except (TypeError, ValueError):
        raise RuleError(f"the rename {rule!r} is neither 'PATTERN=>REPLACEMENT' nor a pair of the two") from None
    if not isinstance(replacement, str):
        raise RuleError(f"the replacement of {pattern!r} is {type(replacement).__name__}, where text is due")
    return pattern, replacement


def _parse(replacement: str, pattern: re.Pattern[str]) -> list[Piece]:
    pieces: list[Piece] = []
    cursor = 0
    for match in _REFERENCE.finditer(replacement):
        pieces.append(replacement[cursor : match.start()])
        pieces.append(_resolve(match, replacement, pattern))
        cursor = match.end()
    pieces.append(replacement[cursor:])
    return [piece for piece in pieces if piece != ""]


def _resolve(match: re.Match[str], replacement: str, pattern: re.Pattern[str]) -> Piece:
    found = match.groupdict()
    if found["dollar"]:
        return "$"
    if (escaped := found["escaped"]) is not None:
        if escaped == "\\":
            return "\\"
        raise RuleError(
            f"the replacement {replacement!r} has {match[0]!r}, which stands for nothing",
            remedy=f"Write {escaped!r} by itself." if escaped else "Write two backslashes for one.",
        )
    group = next(found[kind] for kind in ("digits", "bracketed", "braced", "bare") if found[kind] is not None)
    number = _group_number(group, pattern)
    if number is not None:
        return number
    raise RuleError(
        f"the replacement {replacement!r} speaks of group {group!r}, which the pattern {pattern.pattern!r} has not",
        remedy=_near_group(group, pattern) if found["bare"] else None,
    )


def _group_number(group: str, pattern: re.Pattern[str]) -> int | None:
    if group.isascii() and group.isdigit() and len(group) < 6:
        return int(group) if int(group) <= pattern.groups else None
    return pattern.groupindex.get(group)


def _near_group(group: str, pattern: re.Pattern[str]) -> str | None:
    """`$1_bn` speaks of a group called `1_bn`: show how to say what was meant."""
    for length in range(len(group) - 1, 0, -1):
        if _group_number(group[:length], pattern) is not None:
            return (
                f"Write ${{{group[:length]}}}{group[length:]} for group {group[:length]!r} and then {group[length:]!r}."
            )
    return None
