"""A file with the same model in it twice, of which no more than one can be meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from firekeep.applying._attempt import Attempt
from firekeep.applying._job import LoadJob
from firekeep.errors import FirekeepError, RuleError
from firekeep.matching import Pair, Plan, Policy, Remedy
from firekeep.rules import KeyRemapper
from firekeep.supply import Supply
from firekeep.wording import some

_MOST_TOLD = 4

Try = Callable[[Supply, LoadJob], Attempt]
"""Matches the model with a supply."""


def refuse_twins(tried: Attempt, supply: Supply, job: LoadJob, again: Try) -> None:
    """Refuse to take one of several parts of a file that all have what the model wants, where only a part's name speaks for the one.

    A model and its moving average, saved as `{"model": ..., "ema": ...}`, are such. Names that the model has itself, prefix and all,
    are no choice of ours and nothing is said of them, nor of a part that was chosen by a rename of its prefix.
    """
    lead = _lead(tried)
    twins = _twins(tried, lead) if lead else []
    if not twins or _is_chosen(tried, twins):
        return
    wanted = {pair.want.name: _source(tried, pair).removeprefix(lead) for pair in tried.plan.pairs}
    parts = _Parts(supply, job, again, wanted)
    prefixes = [lead, *twins]
    shown = _unlike(prefixes)
    ways = (
        way for prefix, part in zip(prefixes, shown, strict=True) if (way := parts.way_to(prefix, part)) is not None
    )
    way = next(ways, None)
    raise RuleError(
        f"{len(shown)} parts of the file have all {len(tried.plan.pairs)} tensors that the model takes of it, in the same shapes: "
        f"{some([parts.before + part for part in shown], _MOST_TOLD)}. Which of them is meant, nothing tells",
        path=supply.where,
        remedy="Save the one that is meant in a file of its own." if way is None else f"Choose one, {way}.",
    )


def _is_chosen(tried: Attempt, twins: list[str]) -> bool:
    """Say whether a rename changed all names that are taken, and none of the other parts."""
    renamed = {source for name, source in tried.sources.items() if source != name}
    taken = {_source(tried, pair) for pair in tried.plan.pairs}
    return taken <= renamed and not any(source.startswith(tuple(twins)) for source in renamed)


def propose_parts(tried: Attempt, supply: Supply, job: LoadJob, again: Try) -> Iterator[Remedy]:
    """Give for each of several parts of a file that all have what the model wants what takes it, where no name of the file was known."""
    if not tried.plan.nothing or job.match == "exact":
        return
    wanted = {want.name: want.shape for want in tried.plan.missing}
    free = {tried.sources.get(offer.name, offer.name): offer.shape for offer in tried.plan.unused}
    prefixes = _prefixes(free, wanted)
    if len(prefixes) < 2:
        return
    parts = _Parts(supply, job, again, {name: name for name in wanted})
    shown = _unlike(prefixes)
    told = some([parts.before + part for part in shown], _MOST_TOLD)
    for prefix, part in list(zip(prefixes, shown, strict=True))[:_MOST_TOLD]:
        way = parts.way_to(prefix, part)
        if way is not None:
            reason = f"{len(shown)} parts of the file have all that the model wants, {told}; {parts.before + part!r} is taken with"
            yield Remedy(reason=reason, python=way, gain=len(wanted))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Looks for what takes one part of the supply and nothing else: `wanted` maps the model's names to those within each part."""

    supply: Supply
    job: LoadJob
    again: Try
    wanted: Mapping[str, str]

    @property
    def before(self) -> str:
        return f"{self.supply.part}." if self.supply.part else ""

    def way_to(self, prefix: str, part: str) -> str | None:
        """Spell what makes a load take the tensors under a prefix, tried before it is said; None where nothing does."""
        words = prefix[:-1].split(".")
        for key in dict.fromkeys((part, *(".".join(words[:number]) for number in range(1, len(words) + 1)))):
            if (more := self._by_key(self.before + key, prefix)) is not None:
                return ", ".join((f"top_level_key={self.before + key!r}", *more))
        others = ", ..." if self.job.remapper.rules else ""
        for lead in dict.fromkeys((prefix, f"{part}.")):
            rule = f"^{re.escape(lead)}=>"
            remapper = KeyRemapper.of([rule, *self.job.remapper.rules], names=self.job.remapper.names)
            if (more := self._works(self.supply, replace(self.job, remapper=remapper), prefix)) is not None:
                return ", ".join(
                    (f'rename=[r"{rule}"{others}]' if '"' not in rule else f"rename=[{rule!r}{others}]", *more)
                )
        return None

    def _by_key(self, key: str, prefix: str) -> list[str] | None:
        if self.supply.part_at is None:
            return None
        try:
            supply = self.supply.part_at(key)
        except FirekeepError:
            return None
        return self._works(supply, self.job, prefix)

    def _works(self, supply: Supply, job: LoadJob, prefix: str) -> list[str] | None:
        """Give what has to be allowed besides for a load to take all of the part and nothing else; None where it does not."""
        try:
            tried = self.again(supply, job)
            needed = _refused(tried.plan, job.policy)
            if needed and set(needed) <= set(job.switches):
                job = replace(job, policy=_allowing(job.policy, needed))
                tried = self.again(supply, job)
        except FirekeepError:
            return None
        before = f"{supply.part}." if supply.part else ""
        taken = {pair.want.name: before + _source(tried, pair) for pair in tried.plan.pairs}
        due = {name: self.before + prefix + inner for name, inner in self.wanted.items()}
        lead = _lead(tried)
        inside = all(name.startswith(self.before + prefix) for name in taken.values())
        if (
            not inside
            or not due.items() <= taken.items()
            or tried.plan.refusals(job.policy)
            or (lead and _twins(tried, lead))
        ):
            return None
        return [job.switches[kind] for kind in needed]


def _refused(plan: Plan, policy: Policy) -> list[str]:
    left = {
        "missing": plan.missing and policy.missing == "error",
        "unused": plan.unused and policy.unused == "error",
        "shape": plan.mismatched and policy.shape == "error",
    }
    return [kind for kind, refused in left.items() if refused]


def _allowing(policy: Policy, kinds: Iterable[str]) -> Policy:
    return Policy(
        missing="allow" if "missing" in kinds else policy.missing,
        unused="allow" if "unused" in kinds else policy.unused,
        shape="allow" if "shape" in kinds else policy.shape,
    )


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
    return [prefix for prefix in _prefixes(free, wanted) if not prefix.startswith(lead)]


def _prefixes(free: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Give the prefixes, with the dot, under which all these names are there with these shapes."""
    first = next(iter(wanted))
    prefixes = [name.removesuffix(first) for name in free if name.endswith(f".{first}")]
    return [prefix for prefix in prefixes if all(free.get(prefix + name) == shape for name, shape in wanted.items())]


def _unlike(prefixes: list[str]) -> list[str]:
    """Give the prefixes without dots, and without the words that all of them end in."""
    parts = [prefix[:-1].split(".") for prefix in prefixes]
    while all(len(words) > 1 for words in parts) and len({words[-1] for words in parts}) == 1:
        parts = [words[:-1] for words in parts]
    return [".".join(words) for words in parts]
