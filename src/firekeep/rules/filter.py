"""Which tensors take part, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from firekeep.rules._patterns import Pattern, compile_all


@dataclass(frozen=True, slots=True)
class Selection:
    """What a filter made of a list of names. `idle` are the patterns that no name matched, as they were written."""

    kept: tuple[str, ...]
    left_out: tuple[str, ...]
    idle: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PathFilter:
    r"""Names are taken when an `include` pattern is found in them, or there is none, and no `exclude` pattern is.

    Patterns are searched, not anchored: `^` and `$` anchor them.

    >>> PathFilter.of(include=r"^encoder\.", exclude=r"bias$").accepts("encoder.0.weight")
    True
    """

    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, *, include: Pattern | Iterable[Pattern] = (), exclude: Pattern | Iterable[Pattern] = ()) -> Self:
        """Compile the patterns; raises `RuleError` for one that is not a regular expression."""
        return cls(compile_all(include, role="include"), compile_all(exclude, role="exclude"))

    def accepts(self, name: str) -> bool:
        """Say whether a tensor of this name takes part."""
        wanted = not self.include or any(pattern.search(name) for pattern in self.include)
        return wanted and not any(pattern.search(name) for pattern in self.exclude)

    def select(self, names: Iterable[str]) -> Selection:
        """Sort names into those that take part and those that do not, in the order given."""
        kept: list[str] = []
        left_out: list[str] = []
        busy: set[re.Pattern[str]] = set()
        for name in names:
            wanted = [pattern for pattern in self.include if pattern.search(name)]
            refused = [pattern for pattern in self.exclude if pattern.search(name)]
            busy.update(wanted, refused)
            (left_out if refused or (self.include and not wanted) else kept).append(name)
        idle = [pattern.pattern for pattern in (*self.include, *self.exclude) if pattern not in busy]
        return Selection(tuple(kept), tuple(left_out), tuple(idle))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)
