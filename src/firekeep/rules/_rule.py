"""One rename: a pattern, and what takes the place of what it finds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from firekeep.errors import RuleError
from firekeep.rules._patterns import Pattern, compile_pattern
from firekeep.rules._templates import Piece, Template
from firekeep.wording import quote

Rule = str | tuple[Pattern, str]
"""'PATTERN=>REPLACEMENT', or the two as a pair."""

_ARROW = "=>"


@dataclass(frozen=True, slots=True)
class RenameRule:
    r"""All matches of a pattern in a name are replaced.

    Groups are `\1`, `\g<name>`, `$1`, `${1}` or `${name}`; `$$` is a dollar and two backslashes are one. A group that took no
    part in the match is empty. An empty match right after another one is none, as in Rust: `.*` is found once in a name.
    """

    pattern: re.Pattern[str]
    replacement: str
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, rule: Rule | RenameRule) -> Self:
        """Read 'PATTERN=>REPLACEMENT' or a pair of the two; raises `RuleError` saying what is wrong with it."""
        if isinstance(rule, RenameRule):
            return cls(rule.pattern, rule.replacement, rule.pieces)
        pattern, replacement = _split(rule)
        compiled = compile_pattern(pattern, role="rename")
        _refuse_found_everywhere(compiled, replacement)
        return cls(compiled, replacement, Template.of(replacement, compiled).pieces)

    def apply(self, name: str) -> tuple[str, bool]:
        """Give the name after this rule, and whether the pattern was found in it."""
        if self.pattern.search(name) is None:
            return name, False
        parts: list[str] = []
        end = -1
        cursor = 0
        for match in self.pattern.finditer(name):
            start, stop = match.span()
            if start == stop == end:
                continue
            parts.append(name[cursor:start])
            parts += [piece if isinstance(piece, str) else match[piece] or "" for piece in self.pieces]
            cursor = end = stop
        parts.append(name[cursor:])
        return "".join(parts), True

    def inverse(self) -> Self:
        r"""Give the rule that turns this one round, by its form alone; raises `RuleError` saying why there is none.

        Text and simple groups can be turned round: `layers\.(\d+)\.=>blocks.$1.`, `^model\.=>`, `\.gamma$=>.weight`. The inverse is
        right for names in which the new text did not stand before, and of a rule that takes a prefix away it gives the prefix to every
        name. `KeyRemapper.undo` checks both on real names.
        """
        from firekeep.rules._inverse import OneWayError, invert

        try:
            return self.of(invert(self.pattern, self.pieces))
        except OneWayError as error:
            raise RuleError(
                f"the rename {quote(str(self))} has no inverse that its form tells: {error}",
                remedy="Give inverse_of() the names it was used on: their table can always be turned round.",
            ) from None

    def __str__(self) -> str:
        return f"{self.pattern.pattern}{_ARROW}{self.replacement}"


def _refuse_found_everywhere(pattern: re.Pattern[str], replacement: str) -> None:
    """Refuse a pattern that finds nothing at all between any two letters, as 'x*' does: it would fill names with the replacement."""
    match = pattern.match("\0\0", 1)
    if match is not None and match.end() == 1:
        raise RuleError(
            f"the rename {quote(f'{pattern.pattern}{_ARROW}{replacement}')} is found between every two letters of any name",
            remedy="Write + where * or ? is, or ^ to put text in front of a name and $ to put it behind.",
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
