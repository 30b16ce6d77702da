"""Pairs the wants of a model with the tensors of a file: by equal names, then by steps that are certain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.garbage import collector_paused
from firekeep.matching import _lists, _wrappers
from firekeep.matching._draft import Both, Draft, Found, Reading
from firekeep.matching._shifts import find_unsure
from firekeep.matching._words import MatchOptions, Pair, Plan, Want
from firekeep.wording import count, some

_VARIANT = re.compile(r"(?<=\.)[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*\.")
"""A segment in the middle of a name that looks like the variant of an enum: Linear, BaseConv."""

_PLAIN = Reading()
_BARE = Reading(_wrappers.bare, _wrappers.bare, ("wrapper",))
_UNLISTED = Reading(_wrappers.unlisted, _wrappers.unlisted, ("wrapper",))
_BARE_UNLISTED = Reading(_wrappers.bare_unlisted, _wrappers.bare_unlisted, ("wrapper",))


def plan(
    wants: Sequence[Want],
    offers: Sequence[TensorEntry],
    *,
    options: MatchOptions = MatchOptions(),  # noqa: B008
    spell: Callable[[], None] | None = None,
) -> Plan:
    """Pair wants and offers by name and shape; raises `RuleError` when a name stands twice on one side.

    With `match="auto"`, in this order: equal names; the layer's other spelling; enum variants left out; other numbers in a list, decided
    for the list as a whole and before equal names in it count; the words of known wrappers. A step beyond the equal name is taken only
    where it gives one tensor to one want, of the same shape; else the candidates are listed. `spell` is called before other names of the
    wants are looked at, and may still add them.
    """
    _refuse_twins("the model", [want.name for want in wants])
    _refuse_twins("the file", [offer.name for offer in offers])
    with collector_paused():
        exact = _all_exact(wants, offers)
        if spell is not None and not exact:
            spell()
        if exact or options.match == "exact":
            return _settled(_exact(wants, offers, options))
        return _settled(_best(wants, offers, options))


def _refuse_twins(side: str, names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    twins = list(dict.fromkeys(name for name in names if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    raise RuleError(f"{side} has {count(len(twins), 'name')} more than once: {some(twins)}")


def _all_exact(wants: Sequence[Want], offers: Sequence[TensorEntry]) -> bool:
    """Say whether every want has a tensor of its very name and shape, so that no other name of it is looked for."""
    shapes = {offer.name: offer.shape for offer in offers}
    return all(shapes.get(want.name) == want.shape for want in wants)


def _exact(wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions) -> Draft:
    draft = Draft(Both(wants, offers, options))
    places = {offer.name: place for place, offer in enumerate(offers)}
    draft.found = {want: Found(places[one.name], ("exact",)) for want, one in enumerate(wants) if one.name in places}
    draft.taken = {found.offer for found in draft.found.values()}
    return draft


def _best(wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions) -> Draft:
    """Read the names as they are, or without a wrapper around the whole of one side where that gives more tensors their place.

    A wrapped model may have parts with the wrapper's name, so that some names are equal by chance.
    """
    both = Both(wants, offers, options)
    drafts: list[tuple[int, Draft]] = []
    for reading in (_PLAIN, *_unwrappings(wants, offers)):
        draft = Draft(both)
        draft.read(reading, first=True)
        drafts.append((draft.fitting, draft))
        if draft.fitting == len(wants):
            return draft
    further = list(_further(wants, offers))
    for _, draft in drafts:
        for reading in further:
            if len(draft.found) < len(wants) and len(draft.taken) < len(offers):
                draft.read(reading)
    return max(drafts, key=lambda known: (known[1].fitting, known[0]))[1]


def _unwrappings(wants: Sequence[Want], offers: Sequence[TensorEntry]) -> Iterator[Reading]:
    theirs = _wrappers.common_lead([offer.name for offer in offers])
    mine = _wrappers.common_lead([want.name for want in wants])
    for lead in _leads(theirs):
        yield Reading(offered=partial(_unlead, lead=lead), via=("wrapper",))
    for lead in _leads(mine):
        yield Reading(wanted=partial(_unlead, lead=lead), via=("wrapper",))


def _leads(lead: str) -> Iterator[str]:
    words = lead.split(".")[:-1]
    for length in range(1, len(words) + 1):
        yield ".".join(words[:length]) + "."


def _unlead(name: str, *, lead: str) -> str:
    return name.removeprefix(lead)


def _further(wants: Sequence[Want], offers: Sequence[TensorEntry]) -> Iterator[Reading]:
    wrapped = any(_wrappers.bare(one.name) != one.name for side in (wants, offers) for one in side)
    if any(_VARIANT.search(offer.name) for offer in offers):
        yield Reading(offered=_unvaried, via=("variant",))
        if wrapped:
            yield _BARE
            yield Reading(lambda name: _unvaried(_wrappers.bare(name)), _wrappers.bare, ("wrapper", "variant"))
    elif wrapped:
        yield _BARE
    if any(_wrappers.has_list(one.name) for side in (wants, offers) for one in side):
        yield _UNLISTED
        if wrapped:
            yield _BARE_UNLISTED


def _unvaried(name: str) -> str:
    return _VARIANT.sub("", name)


def _settled(draft: Draft) -> Plan:
    """Sort what was found by what can be done with it, and say how it was found."""
    for want, found in draft.odd.items():
        if want not in draft.found and found.offer not in draft.taken:
            draft.found[want] = found
            draft.taken.add(found.offer)
    pairs: list[Pair] = []
    mismatched: list[Pair] = []
    clashes: list[Pair] = []
    unreadable: list[Pair] = []
    for place in sorted(draft.found):
        found = draft.found[place]
        pair = Pair(draft.both.wants[place], draft.both.offers[found.offer], found.via)
        _heap(pair, pairs, mismatched, clashes, unreadable).append(pair)
    made = Plan(
        pairs=tuple(pairs),
        missing=tuple(want for place, want in enumerate(draft.both.wants) if place not in draft.found),
        unused=tuple(offer for place, offer in enumerate(draft.both.offers) if place not in draft.taken),
        mismatched=tuple(mismatched),
        clashes=tuple(clashes),
        unreadable=tuple(unreadable),
        steps=tuple(_steps(draft)),
        ambiguities=(
            *draft.lists.values(),
            *(doubt for want, doubt in draft.doubts.items() if want not in draft.found),
        ),
        offered=len(draft.both.offers),
    )
    doubted = {parent: doubt for one in draft.renumberings for parent, doubt in one.doubts.items()}
    unsure, moved = find_unsure(made, doubted, draft.both.options)
    return replace(made, unsure=unsure, hints=tuple(moved))


def _heap(
    pair: Pair, pairs: list[Pair], mismatched: list[Pair], clashes: list[Pair], unreadable: list[Pair]
) -> list[Pair]:
    if pair.want.shape != pair.offer.shape:
        return mismatched
    if pair.offer.problem is None and pair.offer.dtype is pair.want.dtype is not None:
        return pairs
    if pair.offer.problem is not None or pair.offer.dtype is None:
        return unreadable
    return pairs if fits(pair.offer.dtype, pair.want.dtype) else clashes


def fits(given: DType, wanted: DType | None) -> bool:
    """Say whether numbers of one dtype may become those of another: whole into whole, fractions into fractions, 0 and 1 into bool."""
    if wanted is None or given == wanted:
        return True
    whole = ("int", "uint")
    if wanted.kind == "bool":
        return given.kind == "bool" or given.name == "U8"
    if wanted.kind in whole:
        return given.kind in whole
    return wanted.kind == given.kind and wanted.kind != "quantized"


def _steps(draft: Draft) -> Iterator[str]:
    used = [
        (draft.both.wants[want], draft.both.offers[found.offer].name, found.via) for want, found in draft.found.items()
    ]
    yield from _wrappers.describe((name, want.name) for want, name, via in used if "wrapper" in via)
    spelled = [(want, name) for want, name, via in used if "spelling" in via]
    if spelled:
        yield f"{count(len(spelled), 'name')} found under the layer's other spelling ({_example(*spelled[0])})"
    varied = [(want, name) for want, name, via in used if "variant" in via]
    if varied:
        yield f"variants of enums left out of {count(len(varied), 'name')} ({_example(*varied[0])})"
    yield from dict.fromkeys(told for one in draft.renumberings for told in _lists.describe(one))


def _example(want: Want, name: str) -> str:
    return f"{name} of the file is {want.name}"
