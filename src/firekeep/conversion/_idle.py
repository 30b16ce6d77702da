"""What is to be told of the rename rules of a conversion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firekeep.errors import RuleError
from firekeep.rules import KeyRemapper, Renaming
from firekeep.rules.layout import without_collections
from firekeep.wording import count, quote, some


def idle_notes(renaming: Renaming, remapper: KeyRemapper) -> Iterator[str]:
    """Say which rules were found in no name, and which new names have holes."""
    idle = [rule for rule, hits in renaming.hits if not hits]
    yield from (f"the rename {quote(rule)} was found in no name" for rule in idle)
    if renaming.unmet:
        yield f"{count(len(renaming.unmet), 'name')} of the table of renames met no tensor: {some(renaming.unmet)}"
    if (idle or renaming.unmet) and (found := _found_without(list(renaming.names), renaming, remapper)):
        yield (
            f"without the collections 'params' and 'batch_stats', with which names of Linen begin, {some(found)} would be found: "
            "write them into the patterns, as in '^params\\.'"
        )
    if holed := [renaming.names[name] for name in renaming.holed]:
        yield f"the renames leave {count(len(holed), 'name')} with nothing before, between or behind dots: {some(holed)}"


def _found_without(names: Sequence[str], renaming: Renaming, remapper: KeyRemapper) -> list[str]:
    """Give what met no name and would meet one if Linen's collections were not part of the names."""
    try:
        bare = without_collections(names)
        if all(old == new for old, new in bare.items()):
            return []
        after = remapper.rename(bare.values())
    except RuleError:
        return []
    rules = zip(renaming.hits, after.hits, strict=True)
    met = [rule for (rule, hits), (_, others) in rules if not hits and others]
    return met + [name for name in renaming.unmet if name not in after.unmet]
