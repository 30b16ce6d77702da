"""Tensors of layers from one convention to another, lazily."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, RuleError
from firekeep.rules.layout._names import Names
from firekeep.rules.layout._pieces import Group, Home, listed, tell
from firekeep.rules.layout._row import PLUS, SIDES, Field, Homeless
from firekeep.slots import Convention, Layer
from firekeep.views import joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """Tensors as another convention has them, and how they came about.

    `origins` maps every new name to the old ones, `steps` those that changed to what was done. `no_counterpart` are old names of
    what the target convention has no use for, `problems` those of what it cannot hold, with reasons: neither is among `entries`.
    `without_id` are new names of tensors that were split or joined of some with parameter ids, and so have none.
    """

    entries: tuple[TensorEntry, ...]
    origins: Mapping[str, tuple[str, ...]]
    steps: Mapping[str, str]
    no_counterpart: Mapping[str, str]
    problems: Mapping[str, str]
    without_id: tuple[str, ...] = ()


@dataclass(slots=True)
class _Made:
    """A tensor of the target, what it was made of and how, and where it goes."""

    entry: TensorEntry
    origins: tuple[str, ...]
    step: str
    order: tuple[int, int]
    lost_id: bool = False


@dataclass(slots=True)
class _Reasons:
    no_counterpart: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def translate(
    entries: Sequence[TensorEntry],
    layers: Sequence[Layer],
    *,
    source: Convention,
    target: Convention,
    sums: Literal["add", "refuse"] = "add",
) -> Translation:
    """Give tensors the names, axes and joints they have in another convention; nothing is drawn.

    `layers` are called as in the source convention. A tensor that belongs to none of them passes as it is. The order is that of the
    sources. Two biases that the target has merged are added, and a merged one goes back to the first of them, the other being zeros;
    `sums="refuse"` makes a problem of both, for what does not add up as biases do. The one thing that is read is a bias which the
    target has no place for and which is of no account if it is all zeros. Raises `RuleError` where two tensors would have one name.
    """
    names = Names(layers, source=source, target=target)
    groups: dict[str, Group] = {}
    made: list[_Made] = []
    reasons = _Reasons()
    for position, entry in enumerate(entries):
        claim = None if source == target else names.claim(entry.name)
        if claim is not None:
            group = groups.setdefault(claim.layer.path, Group(claim.layer, claim.row, source=source, sums=sums))
            group.add(Home(entry, position, claim.field))
        elif source != target and (fault := names.fault(entry.name)) is not None:
            reasons.problems[entry.name] = fault
        else:
            made.append(_pass_on(entry, position, names))
    for group in groups.values():
        made.extend(_translate_group(group, names, reasons))
    made.sort(key=lambda one: one.order)
    _refuse_collisions(made)
    return Translation(
        entries=tuple(one.entry for one in made),
        origins={one.entry.name: one.origins for one in made},
        steps={one.entry.name: one.step for one in made if one.step},
        no_counterpart=reasons.no_counterpart,
        problems=reasons.problems,
        without_id=tuple(one.entry.name for one in made if one.lost_id),
    )


def _pass_on(entry: TensorEntry, position: int, names: Names) -> _Made:
    path, _, last = entry.name.rpartition(".")
    place = names.place(path)
    name = entry.name if place is None or not path else f"{place}.{last}"
    step = "" if name == entry.name else "renamed"
    return _Made(entry.renamed(name) if step else entry, (entry.name,), step, (position, 0))


def _translate_group(group: Group, names: Names, reasons: _Reasons) -> Iterable[_Made]:
    refusal = group.row.refused.get(names.target)
    try:
        group.adapt(names.target)
    except RuleError as error:
        refusal = error.message
    if refusal is not None:
        reasons.problems.update((home.entry.name, refusal) for home in group.homes.values())
        return
    blocked = _sort_out_homeless(group, names, reasons)
    place = names.place(group.layer.path)
    prefix = group.layer.path if place is None else place
    for order, one in enumerate(group.row.of(names.target)):
        name = f"{prefix}.{one.name}" if prefix else one.name
        try:
            found = _make(group, one, name, order)
        except FirekeepError as error:
            for entry in group.entries_of(one.parts):
                reasons.problems.setdefault(entry.name, error.message)
            continue
        if found is not None and blocked.isdisjoint(found.origins):
            yield found


def _sort_out_homeless(group: Group, names: Names, reasons: _Reasons) -> set[str]:
    """Say of parts without a place why; gives the names of tensors that are of use for others of their parts, and must not be."""
    target = names.target
    housed = group.row.parts(target)
    used = {home.entry.name for part, home in group.homes.items() if not housed.isdisjoint((part, *part.split(PLUS)))}
    blocked = set()
    for part, home in group.homes.items():
        if not housed.isdisjoint((part, *part.split(PLUS))):
            continue
        name = home.entry.name
        why = group.row.homeless.get(part) or Homeless("the other convention's layer has no such tensor")
        state = why.state or (why.zero and group.is_zero(part))
        if not state:
            reasons.problems[name] = why.reason.format(side=SIDES[target])
            blocked.add(name)
        elif name not in used:
            reason = f"all zeros, and {SIDES[target]} has no place for it" if why.zero else why.reason
            reasons.no_counterpart[name] = reason.format(side=SIDES[target])
    return blocked


def _make(group: Group, target: Field, name: str, order: int) -> _Made | None:
    """Make one tensor of the target of the parts there are; None where there are none of its."""
    direct = group.homes.get(target.parts[0])
    if direct is not None and direct.field.parts == target.parts and direct.field.axis == target.axis:
        entry = _reform(group, direct, target)
        turned = "" if direct.field.form == target.form else target.form.words or direct.field.form.words
        step = " and ".join(filter(None, ("" if name == entry.name else "renamed", turned)))
        entry = entry if name == entry.name else entry.renamed(name)
        return _Made(entry, (direct.entry.name,), step, (direct.position, order))
    pieces = [group.piece(part) for part in target.parts]
    found = [piece for piece in pieces if piece is not None]
    if not found:
        return None
    if len(found) < len(pieces):
        missing = [part for part, piece in zip(target.parts, pieces, strict=True) if piece is None]
        raise RuleError(f"{target.name} is joined of {len(pieces)} parts, and there is no {' and no '.join(missing)}")
    whole = _join([piece.entry for piece in found], target, name)
    _check_rank(whole, target)
    homes = list({id(home): home for piece in found for home in piece.homes}.values())
    return _Made(
        target.form.there(whole),
        tuple(dict.fromkeys(home.entry.name for home in homes)),
        tell(found, homes, target),
        (min(home.position for home in homes), order),
        any(home.entry.param_id is not None for home in homes),
    )


def _join(pieces: Sequence[TensorEntry], target: Field, name: str) -> TensorEntry:
    if len(pieces) == 1:
        return replace(pieces[0], name=name, param_id=None)
    extents = {entry.shape[target.axis] if len(entry.shape) > target.axis else 0 for entry in pieces}
    if len(extents) > 1:
        raise RuleError(f"{target.name} is joined of parts of one size, and these have {sorted(extents)}")
    return joined(pieces, axis=target.axis, name=name)


def _reform(group: Group, home: Home, after: Field) -> TensorEntry:
    before = home.field
    if after.rank is not None:
        _check_rank(group.back(home), after)
    if before.form == after.form:
        return home.entry
    return after.form.there(group.back(home))


def _check_rank(entry: TensorEntry, one: Field) -> None:
    if one.rank is not None and len(entry.shape) != one.rank:
        raise RuleError(f"its shape is {list(entry.shape)}: {one.why}")


def _refuse_collisions(made: Iterable[_Made]) -> None:
    seen: dict[str, _Made] = {}
    for one in made:
        other = seen.setdefault(one.entry.name, one)
        if other is not one:
            raise RuleError(
                f"the layout gives {listed(list(other.origins))} and {listed(list(one.origins))} one name, {one.entry.name!r}",
                remedy="Leave one of them out with exclude.",
            )
