"""Patterns and rename rules of a load that met nothing: often a slip of the pen, which neither strictness nor a list of names tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firekeep.rules import PRESETS, PathFilter, Renaming
from firekeep.slots import Slot
from firekeep.wording import count, quote, some

_MANY = 4
"""Rules that are told one by one."""


def choose_slots(chosen: PathFilter, slots: Iterable[Slot]) -> tuple[set[str], list[str]]:
    """Give the paths that a filter takes, and what is to be told of patterns that were found in none."""
    if not chosen:
        return {slot.path for slot in slots}, []
    selection = chosen.select(slots)
    unwanted = set(PathFilter(exclude=chosen.exclude).select(()).idle)
    notes = [
        f"{'exclude' if pattern in unwanted else 'include'} {quote(pattern)} met no tensor of the model"
        for pattern in dict.fromkeys(selection.idle)
    ]
    return set(selection.kept), notes


def tell_idle_rules(renaming: Renaming, *, side: str) -> Iterator[str]:
    """Say which rules were found in no name, and which names of a table are not there; not of presets that did something."""
    served = _served({rule for rule, hits in renaming.hits if hits})
    idle = list(dict.fromkeys(rule for rule, hits in renaming.hits if not hits and rule not in served))
    if len(idle) > _MANY:
        yield f"{count(len(idle), 'rename')} met no name of the {side}: {some(idle)}"
    else:
        yield from (f"rename {quote(rule)} met no name of the {side}" for rule in idle)
    if renaming.unmet:
        names = count(len(renaming.unmet), "name")
        yield f"{names} of the table of renames met no name of the {side}: {some(renaming.unmet)}"


def _served(busy: set[str]) -> set[str]:
    """Give the rules of presets of which one was found: others in them are for other members of a family."""
    presets = [{f"{pattern}=>{new}" for pattern, new in preset.rules} for preset in PRESETS.values()]
    return {rule for rules in presets if busy & rules for rule in rules}
