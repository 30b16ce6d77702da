"""Replacements that speak of the groups of a pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from firekeep.errors import RuleError

Piece = str | int
"""A part of a replacement: text, or the number of a group."""

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
class Template:
    r"""Text with groups in it: `\1`, `\g<name>`, `$1`, `${1}` or `${name}`; `$$` is a dollar and two backslashes are one."""

    text: str
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, text: str, pattern: re.Pattern[str]) -> Self:
        """Read a replacement for a pattern; raises `RuleError` for a group that the pattern has not."""
        return cls(text, tuple(_parse(text, pattern)))

    def expand(self, match: re.Match[str]) -> str:
        """Fill in what the groups have matched; a group that took no part is empty."""
        return "".join(piece if isinstance(piece, str) else match[piece] or "" for piece in self.pieces)


def escape_template(text: str) -> str:
    """Write a text so that a template means nothing but it."""
    return text.replace("\\", "\\\\").replace("$", "$$")


def refuse_collisions(renamed: Mapping[str, str], *, what: str, remedy: str) -> None:
    """Raise `RuleError`, naming the sources, where two old names have become one new one."""
    if len(set(renamed.values())) == len(renamed):
        return
    sources: dict[str, list[str]] = {}
    for old, new in renamed.items():
        sources.setdefault(new, []).append(old)
    clashes = [(new, olds) for new, olds in sources.items() if len(olds) > 1]
    shown = "; ".join(f"{' and '.join(map(repr, olds[:3]))} become {new!r}" for new, olds in clashes[:_SHOWN])
    more = f"; and {len(clashes) - _SHOWN} more" if len(clashes) > _SHOWN else ""
    raise RuleError(f"{what} several tensors one name: {shown}{more}", remedy=remedy)


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
