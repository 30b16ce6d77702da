"""Groups of parameters, chosen by id or path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from firekeep.ids import ParamId
from firekeep.module._errors import ModuleError
from firekeep.module._walk import Tree, walk

_Test = Callable[[ParamId | None, str | None], bool]


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """A set of parameters, told by what they are called or by their ids, and combined like any set.

    `|` is either, `&` both, `-` the first without the second, `~` all others; nothing is dropped on the way. A group of an empty list
    has nothing in it. A group told by paths holds no parameter whose path is not given, and its opposite holds each.

    >>> decayed = ParamGroup.regex(r"weight$") - ParamGroup.containing("norm")
    >>> decayed.matches(path="block.0.fc.weight"), decayed.matches(path="block.0.norm.weight")
    (True, False)
    """

    _test: _Test
    _text: str

    @classmethod
    def all(cls) -> ParamGroup:
        """Every parameter."""
        return cls(lambda _, __: True, "all")

    @classmethod
    def none(cls) -> ParamGroup:
        """No parameter."""
        return cls(lambda _, __: False, "none")

    @classmethod
    def ids(cls, ids: Iterable[ParamId]) -> ParamGroup:
        """Those with one of these ids."""
        wanted = frozenset(ids)
        return cls(lambda param_id, _: param_id in wanted, f"ids({len(wanted)})")

    @classmethod
    def of(cls, module: Tree) -> ParamGroup:
        """Those that a module holds now, told by their ids."""
        return cls.ids(visited.param.id for visited in walk(module))

    @classmethod
    def paths(cls, paths: Iterable[str]) -> ParamGroup:
        """Those with exactly one of these paths."""
        if isinstance(paths, str):
            paths = (paths,)
        wanted = frozenset(paths)
        return cls(lambda _, path: path in wanted, f"paths({', '.join(sorted(wanted))})")

    @classmethod
    def regex(cls, *patterns: str | re.Pattern[str]) -> ParamGroup:
        """Those in whose path at least one pattern is found, anywhere."""
        try:
            compiled = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise ModuleError(f"{error.pattern!r} is not a regular expression: {error}") from error
        text = ", ".join(repr(pattern.pattern) for pattern in compiled)
        return cls(
            lambda _, path: path is not None and any(pattern.search(path) for pattern in compiled), f"regex({text})"
        )

    @classmethod
    def containing(cls, *parts: str) -> ParamGroup:
        """Those in whose path at least one of these texts stands."""
        text = ", ".join(map(repr, parts))
        return cls(lambda _, path: path is not None and any(part in path for part in parts), f"containing({text})")

    @classmethod
    def predicate(cls, function: Callable[[str], bool]) -> ParamGroup:
        """Those whose path a function says yes to."""
        return cls(lambda _, path: path is not None and bool(function(path)), f"predicate({function!r})")

    def matches(self, *, param_id: ParamId | None = None, path: str | None = None) -> bool:
        """Whether the parameter of this id and path is in the group; either may be unknown."""
        return self._test(param_id, path)

    def __or__(self, other: ParamGroup) -> ParamGroup:
        mine, theirs = self._test, other._test
        return ParamGroup(lambda param_id, path: mine(param_id, path) or theirs(param_id, path), f"({self} | {other})")

    def __and__(self, other: ParamGroup) -> ParamGroup:
        mine, theirs = self._test, other._test
        return ParamGroup(lambda param_id, path: mine(param_id, path) and theirs(param_id, path), f"({self} & {other})")

    def __sub__(self, other: ParamGroup) -> ParamGroup:
        mine, theirs = self._test, other._test
        return ParamGroup(
            lambda param_id, path: mine(param_id, path) and not theirs(param_id, path), f"({self} - {other})"
        )

    def __invert__(self) -> ParamGroup:
        mine = self._test
        return ParamGroup(lambda param_id, path: not mine(param_id, path), f"~{self}")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"ParamGroup({self})"
