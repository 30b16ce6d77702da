"""Tensors of layers from one convention to another, lazily."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, RuleError
from firekeep.rules.layout._names import Names
from firekeep.rules.layout._row import FORMS, Field, Homeless, Row
from firekeep.slots import Convention, Layer
from firekeep.views import joined, sliced


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
class _Home:
    """Where a part of a layer is: in which entry, the how-manieth, under which field of the source."""

    entry: TensorEntry
    position: int
    field: Field


@dataclass(slots=True)
class _Made:
    """A tensor of the target, what it was made of and how, and where it goes."""

    entry: TensorEntry
    origins: tuple[str, ...]
    step: str
    order: tuple[int, int]
    lost_id: bool = False


@dataclass(slots=True)
class _Group:
    """The tensors of one layer, by the parts that they hold."""

    layer: Layer
    row: Row
    homes: dict[str, _Home] = field(default_factory=dict)

    def add(self, home: _Home) -> None:
        for part in home.field.parts:
            other = self.homes.setdefault(part, home)
            if other is not home:
                raise RuleError(
                    f"{other.entry.name!r} and {home.entry.name!r} are both the {home.field.name} of {self.layer.path!r}",
                    remedy="Leave one of them out with exclude.",
                )


@dataclass(slots=True)
class _Reasons:
    no_counterpart: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def translate(
    entries: Sequence[TensorEntry], layers: Sequence[Layer], *, source: Convention, target: Convention
) -> Translation:
    """Give tensors the names, axes and joints they have in another convention; nothing is drawn.

    `layers` are called as in the source convention. A tensor that belongs to none of them passes as it is. The order is that of the
    sources. Raises `RuleError` where two tensors would have one name.
    """
    names = Names(layers, source=source, target=target)
    groups: dict[str, _Group] = {}
    made: list[_Made] = []
    reasons = _Reasons()
    for position, entry in enumerate(entries):
        claim = None if source == target else names.claim(entry.name)
        if claim is not None:
            group = groups.setdefault(claim.layer.path, _Group(claim.layer, claim.row))
            group.add(_Home(entry, position, claim.field))
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


def _translate_group(group: _Group, names: Names, reasons: _Reasons) -> Iterable[_Made]:
    homes = {id(home): home for home in group.homes.values()}.values()
    refusal = group.row.refused.get(names.target)
    if refusal is not None:
        reasons.problems.update((home.entry.name, refusal) for home in homes)
        return
    fields = group.row.fields[names.target]
    _sort_out_homeless(group, fields, reasons)
    place = names.place(group.layer.path)
    prefix = group.layer.path if place is None else place
    for order, one in enumerate(fields):
        name = f"{prefix}.{one.name}" if prefix else one.name
        try:
            found = _make(group, one, name, order)
        except FirekeepError as error:
            for part in one.parts:
                if part in group.homes:
                    reasons.problems.setdefault(group.homes[part].entry.name, error.message)
            continue
        if found is not None:
            yield found


def _sort_out_homeless(group: _Group, fields: Sequence[Field], reasons: _Reasons) -> None:
    housed = {part for one in fields for part in one.parts}
    for part, home in group.homes.items():
        if part not in housed:
            why = group.row.homeless.get(part) or Homeless("the other convention's layer has no such tensor")
            (reasons.no_counterpart if why.state else reasons.problems)[home.entry.name] = why.reason


def _make(group: _Group, target: Field, name: str, order: int) -> _Made | None:
    """Make one tensor of the target of the parts there are; None where there are none of its."""
    homes = [group.homes.get(part) for part in target.parts]
    found = [home for home in homes if home is not None]
    if not found:
        return None
    if len(found) < len(homes):
        missing = [part for part, home in zip(target.parts, homes, strict=True) if home is None]
        raise RuleError(f"{target.name} is joined of {len(homes)} parts, and there is no {' and no '.join(missing)}")
    sources = tuple(dict.fromkeys(home.entry.name for home in found))
    first = found[0]
    place = (min(home.position for home in found), order)
    if first.field.parts == target.parts and first.field.axis == target.axis:
        entry = _reform(first.entry, first.field, target)
        turned = "transposed" if first.field.form != target.form else ""
        step = " and ".join(filter(None, ("" if name == entry.name else "renamed", turned)))
        return _Made(entry if name == entry.name else entry.renamed(name), sources, step, place)
    pieces = [_piece(home, part) for home, part in zip(found, target.parts, strict=True)]
    whole = (
        joined(pieces, axis=target.axis, name=name) if len(pieces) > 1 else replace(pieces[0], name=name, param_id=None)
    )
    _check_rank(whole, target)
    turned = ", transposed" if any(home.field.form != target.form for home in found) else ""
    roles = list(dict.fromkeys(home.field.name for home in found))
    verb = "split from" if len(found) == 1 else "joined from"
    lost = any(home.entry.param_id is not None for home in found)
    return _Made(FORMS[target.form][0](whole), sources, f"{verb} {_listed(roles)}{turned}", place, lost)


def _reform(entry: TensorEntry, before: Field, after: Field) -> TensorEntry:
    if after.rank is not None:
        _check_rank(FORMS[before.form][1](entry), after)
    if before.form == after.form:
        return entry
    return FORMS[after.form][0](FORMS[before.form][1](entry))


def _check_rank(entry: TensorEntry, one: Field) -> None:
    if one.rank is not None and len(entry.shape) != one.rank:
        raise RuleError(f"its shape is {list(entry.shape)}: {one.why}")


def _piece(home: _Home, part: str) -> TensorEntry:
    """Cut one part out of a tensor, in PyTorch's way round."""
    one = home.field
    entry = FORMS[one.form][1](home.entry)
    if len(one.parts) == 1:
        return entry
    if len(entry.shape) <= one.axis or entry.shape[one.axis] % len(one.parts):
        raise RuleError(f"its shape {list(entry.shape)} cannot be cut into {len(one.parts)} equal parts")
    extent = entry.shape[one.axis] // len(one.parts)
    start = one.parts.index(part) * extent
    return sliced(entry, axis=one.axis, start=start, stop=start + extent)


def _refuse_collisions(made: Iterable[_Made]) -> None:
    seen: dict[str, _Made] = {}
    for one in made:
        other = seen.setdefault(one.entry.name, one)
        if other is not one:
            raise RuleError(
                f"the layout gives {_listed(list(other.origins))} and {_listed(list(one.origins))} one name, {one.entry.name!r}",
                remedy="Leave one of them out with exclude.",
            )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
