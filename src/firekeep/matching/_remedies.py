"""What would make a load work: tried, not guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.matching._plan import plan
from firekeep.matching._rewrites import find_rewrites
from firekeep.matching._words import MatchOptions, Plan, Want
from firekeep.rules import KeyRemapper
from firekeep.wording import count

_TRIED = 3
"""Renames that are tried, the ones with most names behind them first."""

_REWRITES = 12
"""Renames within names that are tried, likewise."""

_HEADS = 4
"""Beginnings that are remembered for one end of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something that would change the outcome.

    `python` and `cli` spell it for a call and for the command line; `gain` is for how many more tensors a place would be found.
    """

    reason: str
    python: str
    cli: str | None = None
    gain: int = 0

    def __str__(self) -> str:
        spelled = self.python if self.cli is None else f"{self.python}, or on the command line {self.cli}"
        return f"{self.reason}: {spelled}"


def find_remedies(
    made: Plan,
    wants: Sequence[Want],
    offers: Sequence[TensorEntry],
    *,
    options: MatchOptions = MatchOptions(),  # noqa: B008
    renamed: bool = False,
) -> tuple[Remedy, ...]:
    """Try what could find more tensors of the file for the model, and give what does, the best first.

    Each is one that was followed in a plan of its own, and found a place for more tensors than `made` did. With `renamed`
    the offers have been through rename rules, to which others are added.
    """
    if not made.missing or not made.unused:
        return ()
    found = list(_matching(made, wants, offers, options)) or list(_renaming(made, wants, offers, options))
    if sum(remedy.gain for remedy in found) < min(len(made.missing), len(made.unused)):
        found = sorted((*found, *_rewriting(made, wants, offers, options)), key=lambda remedy: -remedy.gain)[:1]
    if renamed:
        found = [_after_renames(remedy) for remedy in found]
    return tuple(sorted(found, key=lambda remedy: -remedy.gain))


def _matching(
    made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Iterator[Remedy]:
    if options.match == "exact":
        tried = plan(wants, offers, options=replace(options, match="auto"))
        gain = len(tried.pairs) - len(made.pairs)
        if gain > 0:
            did = "; ".join(tried.steps[:2])
            yield Remedy(reason=_gain(gain, did), python="match='auto'", cli="without --exact", gain=gain)


def _renaming(
    made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Iterator[Remedy]:
    enough = min(len(made.missing), len(made.unused)) / 2
    for rule, reason in _rules(made, enough / 2):
        try:
            names = KeyRemapper.of([rule]).rename(offer.name for offer in offers).names
        except RuleError:  # two names would become one
            continue
        tried = plan(wants, [offer.renamed(names[offer.name]) for offer in offers], options=options)
        gain = len(tried.pairs) - len(made.pairs)
        if gain >= enough:  # a rule for a few of many is not what went wrong
            yield Remedy(reason=_gain(gain, reason), python=f"rename=[{_python(rule)}]", cli=_shell(rule), gain=gain)
            return


def _rewriting(
    made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Iterator[Remedy]:
    """Put together renames within names, each of which makes more names equal, and follow them in a plan."""
    shapes = {want.name: want.shape for want in wants}
    names: Mapping[str, str] = {offer.name: offer.name for offer in offers}
    rules: list[str] = []
    most = _equal(offers, names, shapes)
    for rule in find_rewrites(made.missing, made.unused)[:_REWRITES]:
        tried = _renamed(offers, [*rules, rule])
        if tried is not None and (equal := _equal(offers, tried, shapes)) > most:
            rules, most, names = [*rules, rule], equal, tried
    if not rules:
        return
    found = plan(wants, [offer.renamed(names[offer.name]) for offer in offers], options=options)
    gain = len(found.pairs) - len(made.pairs)
    if gain >= min(len(made.missing), len(made.unused)) / 2:
        old, new = next((old, new) for old, new in names.items() if old != new and new in shapes)
        reason = f"{old!r} of the file is {new!r} of the model, and others likewise"
        python = f"rename=[{', '.join(map(_python, rules))}]"
        yield Remedy(reason=_gain(gain, reason), python=python, cli=" ".join(map(_shell, rules)), gain=gain)


def _renamed(offers: Sequence[TensorEntry], rules: Sequence[str]) -> Mapping[str, str] | None:
    try:
        return KeyRemapper.of(rules).rename(offer.name for offer in offers).names
    except RuleError:  # two names would become one
        return None


def _equal(offers: Sequence[TensorEntry], names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(shapes.get(names[offer.name]) == offer.shape for offer in offers)


def _after_renames(remedy: Remedy) -> Remedy:
    if not remedy.python.startswith("rename=["):
        return remedy
    added = remedy.python.replace("rename=[", "rename=[..., ", 1)
    return replace(remedy, reason=f"after the renames, {remedy.reason}", python=added)


def _gain(gain: int, reason: str) -> str:
    return f"{reason}; {count(gain, 'more tensor')} would be loaded with"


def _rules(made: Plan, least: float) -> Iterator[tuple[str, str]]:
    """Give renames of the beginnings of names that would make most missing names of unused ones."""
    for (theirs, mine), names in _heads(made.missing, made.unused).most_common(_TRIED):
        if names < least or (theirs and mine and names < 2):  # one equal end of a name says little
            continue
        pattern = rf"^{re.escape(theirs)}\." if theirs else "^"
        replacement = mine.replace("\\", "\\\\").replace("$", "$$") + ("." if mine else "")
        if "=>" in pattern + replacement:
            continue
        yield f"{pattern}=>{replacement}", _compare(theirs, mine)


def _compare(theirs: str, mine: str) -> str:
    if not mine:
        return f"names of the file begin with {f'{theirs}.'!r}, those of the model do not"
    if not theirs:
        return f"names of the model begin with {f'{mine}.'!r}, those of the file do not"
    return f"names begin with {f'{theirs}.'!r} in the file, with {f'{mine}.'!r} in the model"


def _heads(missing: Iterable[Want], unused: Iterable[TensorEntry]) -> Counter[tuple[str, str]]:
    """Count which beginnings stand before equal ends of names: of each unused name the longest end that a missing one has."""
    ends: dict[str, list[str]] = {}
    for want in missing:
        for head, tail in _splits(want.name):
            heads = ends.setdefault(tail, [])
            if len(heads) < _HEADS:
                heads.append(head)
    counts: Counter[tuple[str, str]] = Counter()
    for offer in unused:
        for head, tail in _splits(offer.name):
            if tail in ends:
                counts.update((head, other) for other in ends[tail] if other != head)
                break
    return counts


def _splits(name: str) -> Iterator[tuple[str, str]]:
    yield "", name
    cursor = name.find(".")
    while cursor >= 0:
        yield name[:cursor], name[cursor + 1 :]
        cursor = name.find(".", cursor + 1)


def _python(rule: str) -> str:
    return f'r"{rule}"' if '"' not in rule and not rule.endswith("\\") else repr(rule)


def _shell(rule: str) -> str:
    quoted = rule.replace("'", "'\\''")
    return f"--rename '{quoted}'"
