"""Which tensors take part, by name, by what owns them, or by a predicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from firekeep.errors import RuleError
from firekeep.rules._patterns import Pattern, compile_pattern
from firekeep.slots import Slot

if TYPE_CHECKING:
    from inspect import Signature

Predicate = Callable[..., object]
"""A function of one `Place`, or of a path and its containers as one text, as Burn's are."""

Wanted: TypeAlias = "Pattern | Predicate | PathFilter"
"""A regular expression, a filter, or a predicate."""

_GLOB = re.compile(r"(\*\*|\*|\?)")
_GLOBS = {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a predicate may ask about a tensor. All but the path are empty where only its name is known.

    `containers` names what owns each part of the path ("Struct:Net", "Vec"), `owner` the type that owns the tensor ("Linear"), and
    `kind` is the kind of its layer ("linear").
    """

    path: str
    containers: tuple[str, ...] = ()
    kind: str = ""
    owner: str = ""

    @classmethod
    def of(cls, where: str | Slot | Place) -> Place:
        """Take a name, or a place in a model."""
        if isinstance(where, str):
            return cls(path=where)
        if isinstance(where, Place):
            return where
        kind = "" if where.layer is None else where.layer.kind
        return cls(path=where.path, containers=where.containers, kind=kind, owner=where.owner)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a filter made of a list of names. `idle` are the patterns that no name matched, as they were written."""

    kept: tuple[str, ...]
    left_out: tuple[str, ...]
    idle: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Names:
    """Whole names."""

    names: frozenset[str]

    def __str__(self) -> str:
        listed = sorted(self.names)
        return repr(listed[0]) if len(listed) == 1 else f"one of {', '.join(map(repr, listed)) or 'no names'}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A function to ask; `both` where it takes the containers as a text of their own."""

    function: Predicate
    both: bool

    def __call__(self, place: Place) -> bool:
        if self.both:
            return bool(self.function(place.path, ".".join(place.containers)))
        return bool(self.function(place))

    def __str__(self) -> str:
        return f"{getattr(self.function, '__qualname__', type(self.function).__name__)}()"


Criterion = Any  # a compiled pattern, _Names, _Asked or a PathFilter: a union of them would be a circle


@dataclass(frozen=True, slots=True)
class PathFilter:
    r"""Names are taken when an `include` pattern is found in them, or there is none, and no `exclude` pattern is.

    Patterns are searched, not anchored: `^` and `$` anchor them. Filters are joined by `|` and `&` and turned round by `~`, may stand
    among the patterns of another, and an empty one takes everything.

    >>> PathFilter.of(include=r"^encoder\.", exclude=r"bias$").accepts("encoder.0.weight")
    True
    >>> print(PathFilter.of(include="weight$") & ~PathFilter.exact("head.weight"))
    (/weight$/) and (all but 'head.weight')
    """

    include: tuple[Criterion, ...] = ()
    exclude: tuple[Criterion, ...] = ()
    every: tuple[PathFilter, ...] = ()

    @classmethod
    def of(cls, *, include: Wanted | Iterable[Wanted] = (), exclude: Wanted | Iterable[Wanted] = ()) -> Self:
        """Take regular expressions, predicates and filters; raises `RuleError` for what is none of them."""
        return cls(_criteria(include, role="include"), _criteria(exclude, role="exclude"))

    @classmethod
    def exact(cls, *names: str) -> Self:
        """Take tensors by their whole names."""
        for name in names:
            if not isinstance(name, str):
                raise RuleError(f"exact: {name!r} is {type(name).__name__}, where a name is due")
        return cls((_Names(frozenset(names)),))

    @classmethod
    def glob(cls, *patterns: str) -> Self:
        """Take whole names by wildcards: `*` and `?` stay between two dots, `**` goes past them."""
        return cls(tuple(compile_pattern(_translate(pattern), role="glob") for pattern in patterns))

    @classmethod
    def where(cls, predicate: Predicate) -> Self:
        """Take what a function says yes to; it is given a `Place`, or, where it has two parameters, the path and the containers."""
        return cls((_asked(predicate, role="where"),))

    def accepts(self, where: str | Slot | Place) -> bool:
        """Say whether a tensor of this name, or in this place of a model, takes part."""
        return not self or _accepts(self, Place.of(where))

    def select(self, names: Iterable[str | Slot | Place]) -> Selection:
        """Sort names into those that take part and those that do not, in the order given."""
        kept: list[str] = []
        left_out: list[str] = []
        busy: set[object] = set()
        for name in names:
            place = Place.of(name)
            (kept if _judge(self, place, busy) else left_out).append(place.path)
        return Selection(tuple(kept), tuple(left_out), tuple(_idle(self, busy)))

    def __or__(self, other: PathFilter) -> PathFilter:
        if not isinstance(other, PathFilter):
            return NotImplemented
        if not self or not other:
            return PathFilter()
        return PathFilter((*_alternatives(self), *_alternatives(other)))

    def __and__(self, other: PathFilter) -> PathFilter:
        if not isinstance(other, PathFilter):
            return NotImplemented
        if not self or not other:
            return self or other
        return PathFilter(every=(*_conditions(self), *_conditions(other)))

    def __invert__(self) -> PathFilter:
        if self.include and not self.exclude and not self.every:
            return PathFilter(exclude=self.include)
        if self.exclude and not self.include and not self.every:
            return PathFilter(self.exclude)
        return PathFilter(exclude=(self,))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude or self.every)

    def __str__(self) -> str:
        wanted = " or ".join(map(_written, self.include))
        unwanted = " or ".join(map(_written, self.exclude))
        text = (
            f"{wanted}, but not {unwanted}"
            if wanted and unwanted
            else wanted or (f"all but {unwanted}" if unwanted else "")
        )
        parts = ([text] if text else []) + list(map(str, self.every))
        if len(parts) > 1:
            return " and ".join(f"({part})" for part in parts)
        return parts[0] if parts else "everything"


def _criteria(given: Wanted | Iterable[Wanted], *, role: str) -> tuple[Criterion, ...]:
    if isinstance(given, str | re.Pattern | PathFilter) or (callable(given) and not isinstance(given, Iterable)):
        given = (given,)
    if not isinstance(given, Iterable):
        raise RuleError(f"{role}: {given!r} is {type(given).__name__}, where regular expressions are due")
    return tuple(_criterion(each, role=role) for each in given)


def _criterion(given: object, *, role: str) -> Criterion:
    if isinstance(given, PathFilter):
        return given
    if not isinstance(given, str | re.Pattern) and callable(given):
        return _asked(given, role=role)
    return compile_pattern(given, role=role)  # type: ignore[arg-type]


def _asked(predicate: object, *, role: str) -> _Asked:
    import inspect

    if not callable(predicate):
        raise RuleError(f"{role}: {predicate!r} is {type(predicate).__name__}, where a function is due")
    try:
        signature = inspect.signature(predicate)
    except (TypeError, ValueError):  # built-in functions without one
        return _Asked(predicate, both=False)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(each.kind in kinds and each.default is each.empty for each in signature.parameters.values())
    for count, both in ((2, True), (1, False)):
        if needed <= count and _takes(signature, count):
            return _Asked(predicate, both=both and needed == count)
    raise RuleError(
        f"{role}: the predicate {_Asked(predicate, both=False)} takes {needed} values",
        remedy="A predicate takes one Place, or a path and its containers.",
    )


def _takes(signature: Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _accepts(chosen: PathFilter, place: Place) -> bool:
    if chosen.include and not any(_meets(each, place) for each in chosen.include):
        return False
    if any(_meets(each, place) for each in chosen.exclude):
        return False
    return all(_accepts(each, place) for each in chosen.every)


def _meets(criterion: Criterion, place: Place) -> bool:
    if isinstance(criterion, re.Pattern):
        return criterion.search(place.path) is not None
    if isinstance(criterion, _Names):
        return place.path in criterion.names
    return _accepts(criterion, place) if isinstance(criterion, PathFilter) else bool(criterion(place))


def _judge(chosen: PathFilter, place: Place, busy: set[object]) -> bool:
    """Do what `_accepts` does without stopping early, and note what was met."""
    wanted = [each for each in chosen.include if _met(each, place, busy)]
    refused = [each for each in chosen.exclude if _met(each, place, busy)]
    others = [each for each in chosen.every if not _judge(each, place, busy)]
    return not refused and not others and bool(wanted or not chosen.include)


def _met(criterion: Criterion, place: Place, busy: set[object]) -> bool:
    if isinstance(criterion, PathFilter):
        return _judge(criterion, place, busy)
    found = _meets(criterion, place)
    if found:
        busy.add((criterion, place.path) if isinstance(criterion, _Names) else criterion)
    return found


def _idle(chosen: PathFilter, busy: set[object]) -> Iterable[str]:
    for each in (*chosen.include, *chosen.exclude, *chosen.every):
        if isinstance(each, PathFilter):
            yield from _idle(each, busy)
        elif isinstance(each, _Names):
            yield from (name for name in sorted(each.names) if (each, name) not in busy)
        elif each not in busy:
            yield each.pattern if isinstance(each, re.Pattern) else str(each)


def _alternatives(chosen: PathFilter) -> tuple[Criterion, ...]:
    return chosen.include if not chosen.exclude and not chosen.every else (chosen,)


def _conditions(chosen: PathFilter) -> tuple[PathFilter, ...]:
    return chosen.every if not chosen.include and not chosen.exclude else (chosen,)


def _written(criterion: Criterion) -> str:
    if isinstance(criterion, re.Pattern):
        return f"/{criterion.pattern}/"
    return f"({criterion})" if isinstance(criterion, PathFilter) else str(criterion)


def _translate(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise RuleError(f"glob: {pattern!r} is {type(pattern).__name__}, where text is due")
    parts = _GLOB.split(pattern)
    return r"\A" + "".join(_GLOBS.get(part) or re.escape(part) for part in parts) + r"\Z"
