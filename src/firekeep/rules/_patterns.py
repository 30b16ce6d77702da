"""Regular expressions given by users, with errors they can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from firekeep.errors import RuleError
from firekeep.wording import quote

Pattern = str | re.Pattern[str]

_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
_LONGEST = 100_000
"""Letters of a pattern: a longer one is a list of names, whose compiling and searching takes minutes."""
_RUST_GROUP = re.compile(r"\(\?<(?=[A-Za-z_])")


def compile_pattern(pattern: Pattern, *, role: str) -> re.Pattern[str]:
    """Compile one pattern; raises `RuleError` saying where it is wrong.

    Python's dialect, and named groups also in Rust's spelling, `(?<name>...)`. Refused as well are patterns of more than 100,000 letters,
    and repeats within repeats, and of alternatives, that may take for ever: no search can be broken off.
    """
    if not isinstance(pattern, str | re.Pattern):
        raise RuleError(f"{role}: {pattern!r} is {type(pattern).__name__}, where a regular expression is due")
    text = pattern if isinstance(pattern, str) else pattern.pattern
    if len(text) > _LONGEST:
        raise RuleError(
            f"{role}: the pattern {quote(str(text))} has {len(text):,} letters, and {_LONGEST:,} are the most",
            remedy="Give whole names as a table (KeyRemapper.table, the names of a mapping file), or several patterns.",
        )
    compiled = pattern if isinstance(pattern, re.Pattern) else _compile(pattern, role)
    if isinstance(text, str):
        _refuse_endless(compiled, role)
    return compiled


def _refuse_endless(pattern: re.Pattern[str], role: str) -> None:
    """Refuse a pattern that some names would keep busy for ever; unlike Rust's, Python's engine tries all ways to find it."""
    try:
        from firekeep.rules._ambiguity import is_ambiguous
        from firekeep.rules._backtracking import is_endless
    except ImportError:  # it takes Python's own parser, which has no promised place
        return
    if is_endless(pattern.pattern, pattern.flags):
        raise RuleError(
            f"{role} {quote(pattern.pattern)} has a repeat within a repeat, and nothing between the rounds tells them apart: "
            "on some names it would run for ever",
            remedy=r"Write one of the two, as \w+ for (\w+)+, or what stands between the rounds: (\w+\.)+ instead of (\w+\.?)+.",
        )
    if is_ambiguous(pattern.pattern, pattern.flags):
        raise RuleError(
            f"{role} {quote(pattern.pattern)} has a repeat that can take the same letters in more than one way: "
            "on some names it would run for ever",
            remedy=r"Let alternatives have no text in common, as (\w|-\w)+ for (\w|_\w)+, and no round be two, as \d+ for (\d{1,2})+.",
        )


def _compile(pattern: str, role: str) -> re.Pattern[str]:
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
