"""Regular expressions given by users, with errors they can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from firekeep.errors import RuleError

Pattern = str | re.Pattern[str]

_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
_RUST_GROUP = re.compile(r"\(\?<(?=[A-Za-z_])")


def compile_pattern(pattern: Pattern, *, role: str) -> re.Pattern[str]:
    """Compile one pattern; raises `RuleError` saying where it is wrong.

    Python's dialect, and named groups also in Rust's spelling, `(?<name>...)`.
    """
    if isinstance(pattern, re.Pattern):
        return pattern
    if not isinstance(pattern, str):
        raise RuleError(f"{role}: {pattern!r} is {type(pattern).__name__}, where a regular expression is due")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        first = error
    try:
        return re.compile(_RUST_GROUP.sub("(?P<", pattern))
    except (re.error, RecursionError, OverflowError):
        raise RuleError(f"{role} {pattern!r} is not a regular expression: {first}") from None


def compile_all(patterns: Pattern | Iterable[Pattern], *, role: str) -> tuple[re.Pattern[str], ...]:
    """Compile several; one by itself will do."""
    if isinstance(patterns, str | re.Pattern):
        patterns = (patterns,)
    if not isinstance(patterns, Iterable):
        raise RuleError(f"{role}: {patterns!r} is {type(patterns).__name__}, where regular expressions are due")
    return tuple(compile_pattern(pattern, role=role) for pattern in patterns)


def pattern_text(pattern: re.Pattern[str]) -> str:
    """Write a pattern as text that says all of it, its flags too."""
    told = re.compile(pattern.pattern).flags
    letters = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag and not told & flag)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern
