"""What is left of names when all is taken away that matching overlooks: a quick look at whether two sides have any names in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from firekeep.entry import TensorEntry
from firekeep.matching._draft import shortened
from firekeep.matching._words import Want
from firekeep.matching._wrappers import INNER, LEADING

_OVERLOOKED = frozenset((*LEADING, *INNER, "default"))
_VARIANT = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_DIGITS = re.compile(r"[0-9]+")

Skeletons = frozenset[str]


def skeletons_of(offers: Iterable[TensorEntry]) -> Skeletons:
    """Give the names without numbers, words of wrappers, and what looks like a variant of an enum."""
    return frozenset(_skeletons(offer.name for offer in offers))


def may_meet(wants: Iterable[Want], skeletons: Skeletons) -> bool:
    """Say whether a plan could find any want among tensors of these skeletons. It may say so of too many, never of too few."""
    return not skeletons.isdisjoint(_skeletons(name for want in wants for name in _names(want)))


def _names(want: Want) -> Iterator[str]:
    yield want.name
    yield from want.spellings
    if want.short is not None:
        yield want.short
        yield from (shortened(want.name, want.short, spelling) for spelling in want.spellings)


def _skeletons(names: Iterable[str]) -> Iterator[str]:
    for numberless in {_DIGITS.sub("", name) for name in names}:
        *outer, last = numberless.split(".")
        kept = [word for word in outer if word and word not in _OVERLOOKED and not _VARIANT.fullmatch(word)]
        yield ".".join((*kept, last))
