"""A file with the same model in it twice, of which no more than one can be meant."""

from __future__ import annotations

import re

from firekeep.applying._attempt import Attempt
from firekeep.errors import RuleError
from firekeep.matching import Pair
from firekeep.supply import Supply
from firekeep.wording import some

_MOST_TOLD = 4


def refuse_twins(tried: Attempt, supply: Supply) -> None:
    """Refuse to take one of several parts of a file that all have what the model wants, where only a part's name speaks for the one.

    A model and its moving average, saved as `{"model": ..., "ema": ...}`, are such. Names that the model has itself, prefix and all,
    are no choice of ours and nothing is said of them.
    """
    lead = _lead(tried)
    if not lead:
        return
    twins = _twins(tried, lead)
    if not twins:
        return
    before = f"{supply.part}." if supply.part else ""
    parts = [f"{before}{part}" for part in _unlike(lead, twins)]
    raise RuleError(
        f"{len(parts)} parts of the file have all {len(tried.plan.pairs)} tensors that the model takes of it, in the same shapes: "
        f"{some(parts, _MOST_TOLD)}. Which of them is meant, nothing tells",
        path=supply.where,
        remedy=_remedy(parts, supply),
    )


def _remedy(parts: list[str], supply: Supply) -> str:
    if supply.keyed:
        return f"Choose one, top_level_key={parts[0]!r}."
    prefix = re.escape(f"{parts[0]}.")
    return f'Choose one with a rename that leaves its names as the model has them, rename=[r"^{prefix}=>"].'


def _lead(tried: Attempt) -> str:
    """Give what was taken off the file's names to make the model's, with the dot; "" where that is not one thing for all."""
    wrapped = [pair for pair in tried.plan.pairs if "wrapper" in pair.via]
    lead = next((lead for pair in wrapped if (lead := _off(tried, pair))), "")
    if not lead or not all(_source(tried, pair).startswith(lead) for pair in tried.plan.pairs):
        return ""
    return lead


def _source(tried: Attempt, pair: Pair) -> str:
    return tried.sources.get(pair.offer.name, pair.offer.name)


def _off(tried: Attempt, pair: Pair) -> str:
    name = _source(tried, pair)
    return name.removesuffix(pair.want.name) if name.endswith(f".{pair.want.name}") else ""


def _twins(tried: Attempt, lead: str) -> list[str]:
    """Give the other prefixes under which there are tensors of all these names and shapes."""
    wanted = {_source(tried, pair).removeprefix(lead): pair.offer.shape for pair in tried.plan.pairs}
    free = {tried.sources.get(offer.name, offer.name): offer.shape for offer in tried.plan.unused}
    first = next(iter(wanted))
    prefixes = [name.removesuffix(first) for name in free if name.endswith(f".{first}")]
    return [
        prefix
        for prefix in prefixes
        if not prefix.startswith(lead) and all(free.get(prefix + name) == shape for name, shape in wanted.items())
    ]


def _unlike(lead: str, twins: list[str]) -> list[str]:
    """Give the prefixes without dots, and without the words that all of them end in."""
    parts = [prefix[:-1].split(".") for prefix in (lead, *twins)]
    while all(len(words) > 1 for words in parts) and len({words[-1] for words in parts}) == 1:
        parts = [words[:-1] for words in parts]
    return [".".join(words) for words in parts]
