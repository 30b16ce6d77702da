"""Which saved state goes to which parameter of a live optimizer: by id, else by name, never by order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firekeep.bridges._states import OptimizerState, ParamState, Restoration
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError
from firekeep.records import _across, _lbfgs
from firekeep.records._families import family_named, family_of, needs
from firekeep.records._file_params import FileLayout, FileParam
from firekeep.records._groups import plan_groups
from firekeep.records._optimizer_read import Saved, SavedParam, SavedState
from firekeep.records._optimizer_write import STATE
from firekeep.records._stand_ins import as_number, put_back
from firekeep.records._states import Fields, settle
from firekeep.rules import KeyRemapper
from firekeep.rules.layout import moved
from firekeep.slots import Layer
from firekeep.wording import quote, some


@dataclass(slots=True)
class Planned:
    """A restoration on its way. `homes` are the live parameters of the file, by the id of the saved one that each was found for."""

    saved: Saved
    live: OptimizerState
    files: FileLayout
    unfilled: Collection[str] = ()
    """Parameters that did not get the weights which their states belong to."""
    other: str | None = None
    """Why nothing of the record can be what the optimizer keeps."""
    homes: dict[int, FileParam] = field(default_factory=dict)
    told: dict[str, SavedState] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    stateless: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    orphaned: list[str] = field(default_factory=list)
    gaps: dict[str, None] = field(default_factory=dict)
    """What of two states of optax only one has, beside the moments of single parameters."""
    lost: list[str] = field(default_factory=list)
    """Those of them that had a state, or take gradients that no step would see."""
    renamed: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    """The place that each group of the optimizer which takes over options had among those of the record."""
    groups_kept: dict[int, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    options_back: list[str] = field(default_factory=list)


def plan_restoration(
    saved: Saved,
    live: OptimizerState,
    layers: tuple[Layer, ...],
    remapper: KeyRemapper,
    *,
    unfilled: Collection[str] = (),
) -> Planned:
    """Pair states with parameters, bring them into the live optimizer's form, and check that its step can take them."""
    told = tuple(moved(saved.told, _renamed(saved, remapper))) if saved.told else ()
    files = FileLayout.of(live.params, layers, saved.layout, live.convention, told)
    planned = Planned(saved=saved, live=live, files=files, unfilled=unfilled)
    _match(planned, remapper)
    if saved.kind is None:
        planned.notes.append(
            "the record does not say of what class, nor with which options: the optimizer's own are kept"
        )
        planned.groups_kept |= dict.fromkeys(range(len(live.groups)), "the record does not say with which options")
    _plan_options(planned)
    planned.other = _other_kind(saved, live)
    if planned.other is not None:
        _drop_all(planned, planned.other)
    elif saved.is_global:
        _plan_global(planned)
    else:
        _plan_params(planned)
        _across.one_count(live, planned.states, planned.dropped, planned.changed)
        planned.extra = _across.plan_loose(saved, live, planned.states, planned.changed, planned.notes, planned.gaps)
    return planned


def _plan_options(planned: Planned) -> None:
    saved, live = planned.saved, planned.live
    if _across.is_optax(live.base) and _across.is_optax(saved.base):
        _across.compare_options(saved, live, planned.changed)
    else:
        plan_groups(
            saved,
            live,
            planned.told,
            planned.groups,
            planned.groups_kept,
            planned.notes,
            planned.changed,
            planned.options_back,
            planned.places,
        )


def _match(planned: Planned, remapper: KeyRemapper) -> None:
    """Find the live parameter of each saved one."""
    saved, files = planned.saved, planned.files
    known = _saved_params(saved)
    renamed = _renamed(saved, remapper)
    by_id = {int(home.param_id): home for home in files.params} if planned.live.has_ids else {}
    by_name = files.by_name()
    taken: set[str] = set()
    for one in known:
        if (home := by_id.get(one.param_id)) is not None:
            planned.homes[one.param_id] = home
            taken.add(home.name)
    for one in known:
        if one.param_id in planned.homes or one.path is None:
            continue
        home = by_name.get(renamed[one.path])
        if home is not None and home.name not in taken:
            planned.homes[one.param_id] = home
            taken.add(home.name)
    for one in known:
        home = planned.homes.get(one.param_id)
        if home is None:
            planned.orphaned.append(one.label())
            if _matters(planned, one, renamed):
                planned.lost.append(one.label())
        elif one.path is not None and home.name != one.path:
            planned.renamed[one.path] = home.name
        meant = None if one.path is None else renamed[one.path]
        if home is not None and meant in by_name and home.name != meant:
            told = (
                f"{quote(str(one.path))} would be {quote(str(meant))} by its name, and is {quote(home.name)} by its id"
            )
            planned.changed.append(f"{told}, which was followed")
    for state in saved.states.values():
        for path in _paths(planned, state):
            planned.told.setdefault(path, state)


def _matters(planned: Planned, one: SavedParam, renamed: Mapping[str, str]) -> bool:
    """Say whether a run without a parameter of the record is another one: Burn keeps states for ever, those of layers long gone too."""
    saved, live = planned.saved, planned.live
    if saved.kind is None:
        return False
    states = [state for state in saved.states.values() if one.param_id in state.ids]
    if one.tensors or one.scalars or any(state.state for state in states):
        return True
    names = {renamed.get(name, name) for name in (one.path, *(state.path for state in states)) if name is not None}
    return not _across.is_optax(live.base) and names.isdisjoint(live.frozen)


def _renamed(saved: Saved, remapper: KeyRemapper) -> Mapping[str, str]:
    names = {one.path for one in _saved_params(saved) if one.path is not None}
    return remapper.rename(sorted(names)).names if names else {}


def _saved_params(saved: Saved) -> list[SavedParam]:
    """List the parameters of the file, those too of which only firekeep's part of it speaks."""
    known = dict(saved.params)
    for state in saved.states.values():
        for param_id, name in zip(state.ids, state.names, strict=False):
            if param_id not in known:
                known[param_id] = SavedParam(param_id, path=name)
    return list(known.values())


def _paths(planned: Planned, state: SavedState) -> list[str]:
    """Give the live parameter that a saved one has become; none where its parts were found in several."""
    found = {home.origins for param_id in state.ids if (home := planned.homes.get(param_id)) is not None}
    return list(found.pop()) if len(found) == 1 else []


def _other_kind(saved: Saved, live: OptimizerState) -> str | None:
    """Say why nothing of the record can be what the live optimizer keeps, or give None."""
    if (why := _across.why_not(saved, live)) is not None:
        return why
    if saved.is_global and live.base != "LBFGS":
        return f"the record is of L-BFGS, and the optimizer is {live.kind}"
    if live.base == "LBFGS" and not saved.is_global and (saved.kind is not None or saved.params):
        return f"the record is of {saved.kind or 'another optimizer'}, and the optimizer is {live.kind}"
    if saved.kind is None or saved.kind == live.kind:
        return None
    if _across.is_optax(saved.base) and _across.is_optax(live.base):
        return None  # the states themselves tell what fits
    mine, theirs = family_of(live.kind, live.base, ()), family_named(saved.family)
    if theirs is not None and mine is theirs:
        return None
    if saved.base and saved.base == live.base:
        return None
    return f"its state is that of {saved.kind}, and the optimizer is {live.kind}"


def _drop_all(planned: Planned, why: str) -> None:
    planned.groups.clear()
    by_home = {home.name: param_id for param_id, home in planned.homes.items()}
    for home in planned.files.params:
        for path in home.origins if home.name in by_home else ():
            told = planned.told.get(path)
            if told is None or told.state or planned.saved.is_global:
                planned.dropped[path] = why
            else:
                planned.stateless.append(path)
    if planned.saved.is_global and not planned.saved.states:
        planned.dropped.update((one.path, why) for one in planned.live.params)


def _plan_global(planned: Planned) -> None:
    """Plan L-BFGS, whose one state hangs at the first parameter and is of use for all parameters together or not at all."""
    saved, live = planned.saved, planned.live
    order = saved.order or tuple(int(home.param_id) for home in planned.files.params)
    homes = planned.homes if saved.order else {int(home.param_id): home for home in planned.files.params}
    if unfilled := [one.path for one in live.params if one.path in planned.unfilled]:
        why = f"L-BFGS keeps vectors over all parameters together, and {some(unfilled)} did not get the weights of the checkpoint"
        planned.dropped.update((one.path, why) for one in live.params)
        return
    pieces = [_lbfgs.Piece(homes[one].name, homes[one].shape) for one in order if one in homes]
    first = min(live.params, key=lambda one: one.position)
    others = [one.path for one in live.params if one is not first]
    if len(pieces) < len(order) or len(pieces) != len(planned.files.params):
        why = "L-BFGS keeps vectors over all parameters together, and the record's are not those of the optimizer"
        planned.dropped.update((one.path, why) for one in live.params)
        return
    try:
        state = _lbfgs.read(saved.tensors, saved.scalars, saved.rest, pieces, live.params, planned.files)
    except FirekeepError as error:
        planned.dropped.update((one.path, error.message) for one in live.params)
        return
    if state:
        planned.states[first.path] = state
        if saved.order and _order_of(saved, homes) != [one.path for one in _lbfgs.in_order(live.params)]:
            planned.changed.append("L-BFGS sums over all parameters, and their order in the optimizer is another one")
        planned.stateless += others
    else:
        planned.stateless += [one.path for one in live.params]


def _order_of(saved: Saved, homes: Mapping[int, FileParam]) -> list[str]:
    """List the live parameters in the order in which the saved optimizer had them."""
    states = sorted(saved.states.values(), key=lambda one: one.position)
    return [name for one in states if one.ids[0] in homes for name in homes[one.ids[0]].origins]


def _plan_params(planned: Planned) -> None:
    fields = Fields(planned.saved.tensors)
    for param_id, saved in planned.saved.params.items():
        if (home := planned.homes.get(param_id)) is not None:
            fields.add(saved, home)
    back = fields.take_back(planned.files)
    found = {path for home in planned.homes.values() for path in home.origins}
    for one in planned.live.params:
        if one.path in found:
            _plan_param(planned, one, fields, back)


def _plan_param(
    planned: Planned, one: ParamState, fields: Fields, back: Mapping[str, Mapping[str, TensorEntry]]
) -> None:
    told = planned.told.get(one.path)
    if (why := fields.problems.get(one.path)) is not None:
        planned.dropped[one.path] = why
        return
    crossed = one.path in planned.files.crossed
    if crossed and told is not None and _keeps_more(fields, told):
        planned.dropped[one.path] = (
            "what is kept of it beside its moments lies as the layer has it that it was taken of"
        )
        return
    same = planned.saved.convention == planned.live.convention and not crossed
    if same and told is not None and told.state and told.shape != one.shape:
        planned.dropped[one.path] = f"its shape was {list(told.shape)}, and is {list(one.shape)} now"
        return
    if same and told is not None and told.state and (why := _turned_otherwise(planned, told)) is not None:
        planned.dropped[one.path] = why
        return
    if one.path in planned.unfilled:
        planned.dropped[one.path] = "its weights were not taken from the checkpoint"
        return
    options = {**planned.live.groups[one.group], **planned.groups.get(one.group, {})}
    try:
        state = settle(planned.saved, planned.live, one, told, back.get(one.path, {}), fields, options)
        if state:
            state = _across.adapt(planned.saved, planned.live, one, state, planned.changed, planned.gaps)
    except FirekeepError as error:
        planned.dropped[one.path] = error.message
        return
    if not state:
        planned.stateless.append(one.path)
    elif (why := unfit(planned.live, one, state, options)) is not None:
        planned.dropped[one.path] = why
    else:
        planned.states[one.path] = state
        planned.changed += _roundings(planned, one, told)


def _keeps_more(fields: Fields, told: SavedState) -> bool:
    """Say whether tensors are kept that no field of Burn's holds, which are not turned round."""
    start = f"{STATE}{told.param_id}."
    return any(name.startswith(start) and len(entry.shape) > 1 for name, entry in fields.tensors.items())


def _turned_otherwise(planned: Planned, told: SavedState) -> str | None:
    """Say that a layer is of another kind now, so that it would lie the other way round: of a square one no shape tells it."""
    turned = told.turned or (False,) * len(told.ids)
    for param_id, was in zip(told.ids, turned, strict=False):
        home = planned.homes.get(param_id)
        if home is not None and len(home.shape) == 2 and home.is_turned != was:
            lies = "turned round" if was else "as it is"
            return f"the record has it {lies}, and would have the layer that is there now otherwise"
    return None


def _roundings(planned: Planned, one: ParamState, told: SavedState | None) -> list[str]:
    """Say what the numbers of a state that comes back were rounded by."""
    if told is not None and told.dtype != one.dtype.name:
        return [f"{quote(one.path)} was {told.dtype}, and is {one.dtype} now, and so are its moments"]
    if planned.saved.family == "muon" and planned.saved.layout == "burn":
        return [f"{quote(one.path)}: Burn keeps the momentum of Muon in another scale, so it was rounded"]
    return []


def unfit(live: OptimizerState, one: ParamState, state: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Say why the step of a known class could not take a state, or give None."""
    wanted = needs(live.base, one.shape)
    if wanted is None:
        return None
    for key, shape in wanted(options).items():
        value = state.get(key)
        if value is None:
            return f"{live.kind} needs a {key!r} with these options, and the record has none"
        if shape is None:
            if as_number(value) is None:
                return f"its {key!r} is {_held(value)}, where a number is due"
        elif not isinstance(value, TensorEntry) or value.shape != shape:
            return f"its {key!r} is {_held(value)}, where the shape {list(shape)} is due"
        elif value.require().kind != one.dtype.kind:
            return f"its {key!r} is {value.dtype}, and the parameter {one.dtype}"
    held = state.get("momentum_buffer")  # of SGD, that takes one or none
    if live.base == "SGD" and held is not None and (not isinstance(held, TensorEntry) or held.shape != one.shape):
        return f"its 'momentum_buffer' is {_held(held)}, where the shape {list(one.shape)} is due"
    return None


def _held(value: Any) -> str:
    return f"of shape {list(value.shape)}" if isinstance(value, TensorEntry) else type(value).__name__


def restoration_of(planned: Planned) -> Restoration:
    """Give what is to be put into the optimizer."""
    if _across.is_optax(planned.live.base):
        return Restoration(states=planned.states, groups={}, extra=planned.extra)
    same = planned.saved.kind == planned.live.kind
    extra = planned.saved.extra if same and planned.saved.extra else {}
    return Restoration(states=planned.states, groups=planned.groups, extra=put_back(extra, planned.saved.tensors.get))


__all__: Sequence[str] = ("Planned", "plan_restoration", "restoration_of", "unfit")
