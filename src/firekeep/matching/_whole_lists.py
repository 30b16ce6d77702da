"""Renames that give all elements of a list other numbers, in their order: layers.6 to layers.11, wanted as layers.0 to layers.5."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from firekeep.entry import TensorEntry
from firekeep.matching._alignment import align, sides_of
from firekeep.matching._lists import Numbers, Side, find_renumbering, spell
from firekeep.matching._words import MatchOptions, Want
from firekeep.matching._wrappers import common_lead

_MOST = 32
"""Rules that are proposed at once, one for each element."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The rules, and what is true if they are right."""

    rules: tuple[str, ...]
    told: str


def find_whole_lists(wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions) -> Shift | None:
    """Look for lists that agree in all but their numbers, of which one side may be a part of a longer one.

    There is one rule for each element, in an order in which none takes the number of an element that is still to be renamed.
    """
    lead = common_lead([offer.name for offer in offers])
    for off, on in dict.fromkeys((("", ""), (lead, ""), (lead, common_lead([want.name for want in wants])))):
        found = _parts(wants, offers, options, off=off, on=on)
        if (shift := _shift(found, {offer.name for offer in offers}, off=off, on=on)) is not None:
            return shift
    return None


def find_fitting_lists(wants: Sequence[Want], offers: Sequence[TensorEntry]) -> Shift | None:
    """Look for lists of which more elements fit under other numbers, and in one way only: some were put in, taken out or reshaped."""
    model, file = sides_of(wants, offers)
    found: list[_Part] = []
    for parent in sorted(model.lists.keys() & file.lists.keys(), key=lambda name: (name.count("."), name)):
        inside = any(parent.startswith(f"{other.mine}." if other.mine else "") for other in found)
        made = None if inside else align(model, file, parent, parent)
        if made is not None and made.shifted and made.moved and len(made.sure) == made.most:
            found.append(_Part(parent, parent, made.moved))
    return _shift(found, {offer.name for offer in offers})


def _shift(found: Sequence[_Part], names: AbstractSet[str], *, off: str = "", on: str = "") -> Shift | None:
    rules = [rule for part in found for rule in _rules(off + part.theirs, part.numbers, names)]
    if not found or len(rules) > _MOST:
        return None
    first, *others = found
    theirs, mine = list(first.numbers.values()), list(first.numbers)
    told = f"{spell(off + first.theirs, theirs)} of the file are {spell(on + first.mine, mine)} of the model"
    return Shift(tuple(rules), f"{told}, and other lists likewise" if others else told)


@dataclass(frozen=True, slots=True)
class _Part:
    """A list of the model, that of the file which has its elements under other numbers, and which is which."""

    mine: str
    theirs: str
    numbers: Numbers


def _parts(
    wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions, *, off: str, on: str
) -> list[_Part]:
    model = Side(
        [want.name.removeprefix(on) for want in wants],
        [want.shape for want in wants],
        frozenset(path.removeprefix(on) for path in options.modules),
    )
    file = Side(
        [offer.name.removeprefix(off) for offer in offers],
        [offer.shape for offer in offers],
        frozenset(path.removeprefix(off) for path in options.submodules),
    )
    return [_Part(mine, theirs, numbers) for mine, (theirs, numbers) in find_renumbering(model, file).parts.items()]


def _rules(theirs: str, numbers: Numbers, names: AbstractSet[str]) -> Iterator[str]:
    """Spell one rule for each number that changes: lower numbers are given from the first on, higher ones from the last on."""
    start = rf"^{re.escape(theirs)}\." if theirs else "^"
    before = (theirs + "." if theirs else "").replace("\\", "\\\\").replace("$", "$$")
    lower = [(own, other) for own, other in sorted(numbers.items()) if own < other]
    higher = [(own, other) for own, other in sorted(numbers.items(), reverse=True) if own > other]
    for own, other in (*lower, *higher):
        if spell(theirs, [other]) in names:  # a tensor in a list of tensors
            yield rf"{start}{other}$=>{before}{own}"
        else:
            yield rf"{start}{other}\.=>{before}{own}."
