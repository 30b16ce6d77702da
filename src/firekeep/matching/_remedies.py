"""What would make a load work: tried, not guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.folding import is_number
from firekeep.matching._order import exchanges_alike
from firekeep.matching._plan import plan
from firekeep.matching._rewrites import find_lone_rewrites, find_rewrites
from firekeep.matching._whole_lists import find_fitting_lists, find_whole_lists
from firekeep.matching._words import MatchOptions, Plan, Want
from firekeep.rules import KeyRemapper
from firekeep.wording import count

_TRIED = 3
"""Renames that are tried, the ones with most names behind them first."""

_REWRITES = 12
"""Renames within names that are tried, likewise."""

_SLASHES = "/=>."

_NORMS = (("gamma", "beta"), ("weight", "bias"))
"""What the scale and the shift of a norm are called, in turn."""

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
    if (parted := _parting(made, wants, offers, options)) is not None:
        return (_after_renames(parted) if renamed else parted,)
    found = (
        list(_matching(made, wants, offers, options))
        or list(_renumbering(made, wants, offers, options))
        or list(_renaming(made, wants, offers, options))
    )
    if sum(remedy.gain for remedy in found) < min(len(made.missing), len(made.unused)):
        found = sorted((*found, *_rewriting(made, wants, offers, options)), key=lambda remedy: -remedy.gain)[:1]
    found = found or list(_rewriting_few(made, wants, offers, options))
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


def _renumbering(
    made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Iterator[Remedy]:
    """Give elements of lists the numbers of the model, in their order: all of a part of a longer one, or those that fit in one way."""
    shift = find_whole_lists(wants, offers, options) if made.ambiguities else None
    if shift is None and made.mismatched:
        shift = find_fitting_lists(wants, offers)
    if shift is None:
        return
    tried = _followed(shift.rules, wants, offers, options)
    gain = 0 if tried is None else len(tried.pairs) - len(made.pairs)
    if gain > 0:
        yield Remedy(
            reason=_gain(gain, f"if {shift.told}"),
            python=f"rename=[{', '.join(map(_python, shift.rules))}]",
            cli=" ".join(map(_shell, shift.rules)),
            gain=gain,
        )


def _followed(
    rules: Sequence[str], wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Plan | None:
    """Plan with other renames; None where two names would become one, or alike tensors would change places."""
    names = _renamed(offers, rules)
    if names is None:
        return None
    sources = {new: options.sources.get(old, old) for old, new in names.items()}
    tried = plan(
        wants, [offer.renamed(names[offer.name]) for offer in offers], options=replace(options, sources=sources)
    )
    before = {new: old for old, new in names.items()}
    found = ((before[pair.offer.name], pair.want.name) for pair in tried.found)
    return None if exchanges_alike(found) else tried


def _renaming(
    made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Iterator[Remedy]:
    enough = min(len(made.missing), len(made.unused)) / 2
    for rule, reason in _rules(made, enough / 2):
        tried = _followed([rule], wants, offers, options)
        if tried is None:
            continue
        gain = len(tried.pairs) - len(made.pairs)
        if gain >= enough:  # a rule for a few of many is not what went wrong
            yield Remedy(reason=_gain(gain, reason), python=f"rename=[{_python(rule)}]", cli=_shell(rule), gain=gain)
            return


def _parting(made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions) -> Remedy | None:
    """Try dots for the slashes that names of the file have and none of the model, and what else is wanting then."""
    if not all("/" in offer.name for offer in made.unused) or any("/" in want.name for want in wants):
        return None
    names = _renamed(offers, [_SLASHES])
    if names is None:
        return None
    others = [offer.renamed(names[offer.name]) for offer in offers]
    tried = plan(wants, others, options=options)
    gain = len(tried.pairs) - len(made.pairs)
    rules = [_python(_SLASHES)], [_shell(_SLASHES)]
    for further in find_remedies(tried, wants, others, options=options)[:1]:
        if further.python.startswith("rename=[") and further.cli is not None:
            gain += further.gain
            rules[0].append(further.python.removeprefix("rename=[").removesuffix("]"))
            rules[1].append(further.cli)
    if gain <= 0:
        return None
    reason = "parts of names are set off by slashes in the file, by dots in the model"
    return Remedy(
        reason=_gain(gain, reason), python=f"rename=[{', '.join(rules[0])}]", cli=" ".join(rules[1]), gain=gain
    )


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
    found = _followed(rules, wants, offers, options)
    gain = 0 if found is None else len(found.pairs) - len(made.pairs)
    if gain >= min(len(made.missing), len(made.unused)) / 2:
        old, new = next((old, new) for old, new in names.items() if old != new and new in shapes)
        reason = f"{old!r} of the file is {new!r} of the model, and others likewise"
        python = f"rename=[{', '.join(map(_python, rules))}]"
        yield Remedy(reason=_gain(gain, reason), python=python, cli=" ".join(map(_shell, rules)), gain=gain)


def _rewriting_few(
    made: Plan, wants: Sequence[Want], offers: Sequence[TensorEntry], options: MatchOptions
) -> Iterator[Remedy]:
    """Rename single vectors within their parts where nothing else is wrong, and nothing is left over then."""
    gain = len(made.missing)
    if gain != len(made.unused) or len(made.pairs) + gain != len(wants):
        return
    for rules in (find_lone_rewrites(made.missing, made.unused), *_of_norms(made)):
        found = _followed(rules, wants, offers, options) if rules else None
        if found is not None and len(found.pairs) == len(wants) and not (found.unused or found.ambiguities):
            break
    else:
        return
    old = made.unused[0].name
    new = (_renamed([made.unused[0]], rules) or {})[old]
    python = f"rename=[{', '.join(map(_python, rules))}]"
    reason = f"{old!r} of the file is {new!r} of the model by its place and shape{', and others likewise' if gain > 1 else ''}"
    yield Remedy(reason=_gain(gain, reason), python=python, cli=" ".join(map(_shell, rules)), gain=gain)


def _of_norms(made: Plan) -> Iterator[list[str]]:
    """Give rules for what norms call their two tensors, from the names of the file to those of the model."""
    if any(len(shape) != 1 for shape in (*(want.shape for want in made.missing), *(one.shape for one in made.unused))):
        return
    ends = {offer.name.rpartition(".")[2] for offer in made.unused}
    for theirs, mine in ((_NORMS[0], _NORMS[1]), (_NORMS[1], _NORMS[0])):
        yield [rf"\.{old}$=>.{new}" for old, new in zip(theirs, mine, strict=True) if old in ends]


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
    """Give renames of the beginnings of names that would make most missing names of unused ones.

    Where as many names speak for another beginning on either side, nothing tells which was meant. Nor is one element of a list given
    the number of another.
    """
    counts = _heads(made.missing, made.unused)
    most = _most(counts)
    for (theirs, mine), names in counts.most_common(_TRIED):
        if names < least or (theirs and mine and names < 2):  # one equal end of a name says little
            continue
        if most[0, theirs] != (names, 1) or most[1, mine] != (names, 1) or _moves_element(theirs, mine):
            continue
        pattern = rf"^{re.escape(theirs)}\." if theirs else "^"
        replacement = mine.replace("\\", "\\\\").replace("$", "$$") + ("." if mine else "")
        if "=>" in pattern + replacement:
            continue
        yield f"{pattern}=>{replacement}", _compare(theirs, mine)


def _most(counts: Counter[tuple[str, str]]) -> Mapping[tuple[int, str], tuple[int, int]]:
    """Give for each beginning, of the file (0) or of the model (1), how many names speak for its best rename, and the number of such."""
    most: dict[tuple[int, str], tuple[int, int]] = {}
    for heads, names in counts.items():
        for known in enumerate(heads):
            highest, number = most.get(known, (0, 0))
            if names >= highest:
                most[known] = (names, number + 1 if names == highest else 1)
    return most


def _moves_element(theirs: str, mine: str) -> bool:
    """Say whether both beginnings end in numbers that differ."""
    old, new = theirs.rpartition(".")[2], mine.rpartition(".")[2]
    return old != new and is_number(old) and is_number(new)


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
