"""Would a record go into what another record was taken of? Told from the two alone, without a model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.bridges._states import OptimizerState, ParamState
from firekeep.dtypes import BY_NAME
from firekeep.errors import FormatError
from firekeep.folding import natural
from firekeep.ids import ParamId
from firekeep.records._describe import SCHEDULER
from firekeep.records._families import family_named, family_of_fields
from firekeep.records._groups import plan_groups
from firekeep.records._optimizer_read import Saved, SavedState
from firekeep.records._optimizer_record import OptimizerRecord
from firekeep.records._optimizer_report import OptimizerReport
from firekeep.records._optimizer_write import STATE
from firekeep.records._scheduler_record import LrSchedulerRecord
from firekeep.records._stand_ins import put_back
from firekeep.report import LoadReport
from firekeep.schedulers import SchedulerReport, find_level
from firekeep.tagged import decode
from firekeep.wording import count, quote, some

COUNTERS = frozenset(
    (
        *("last_epoch", "_step_count", "_last_lr", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter"),
        *("_get_lr_called_within_step", "_is_initial", "lr_lambdas", "_scale_fn_custom"),
        *("scale", "_scale", "_growth_tracker", "n_averaged"),
    )
)
"""What moves in the state of a scheduler; the rest are settings."""

_VECTORS = ("d", "prev_flat_grad", "history_s.0")


@dataclass(slots=True)
class _Param:
    """A parameter as a file has it, and all that is kept of it. `state` is what firekeep wrote of the parameter of the model."""

    param_id: int
    label: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    rank: int | None = None
    state: SavedState | None = None

    @property
    def is_empty(self) -> bool:
        return not self.shapes and not self.numbers and not (self.state is not None and self.state.state)


def _params(saved: Saved) -> dict[int, _Param]:
    found = {
        one.param_id: _Param(
            one.param_id,
            one.label(),
            {name: entry.shape for name, entry in one.tensors.items()},
            set(one.scalars),
            one.rank,
        )
        for one in saved.params.values()
    }
    for state in saved.states.values():
        for param_id, name in zip(state.ids, state.names, strict=False):
            one = found.setdefault(param_id, _Param(param_id, name))
            one.state = state
            start = f"{STATE}{state.param_id}."
            for key, entry in saved.tensors.items():
                if key.startswith(start):
                    one.shapes[key.removeprefix(start)] = entry.shape
    return found


def compare_optimizers(record: OptimizerRecord, like: OptimizerRecord) -> OptimizerReport:
    """Say what would come back of a record in the optimizer that another one was taken of: by ids, else by names, never by order.

    Both have to lie in the same layout; where they do not, every state is reported as dropped.
    """
    saved, other = record.saved(), like.saved()
    mine, theirs = _params(saved), _params(other)
    pairs = _paired(mine, theirs)
    target = other.kind or "the optimizer"
    dropped: dict[str, str] = {}
    if (why := _other_kind(saved, other)) is not None:
        dropped = {one.label: why for one in theirs.values() if one.param_id in pairs}
    elif saved.is_global:
        dropped = _global_faults(saved, other, pairs, mine, theirs)
    changed = _conflicts(pairs, theirs)
    restored_groups, kept_groups, notes = _groups(saved, other, pairs, theirs, changed)
    restored, stateless, fresh = [], [], []
    for param_id, one in theirs.items():
        own = pairs.get(param_id)
        if one.label in dropped:
            continue
        if own is None:
            fresh.append(one.label)
        elif not saved.is_global and (why := _fault(own, one, kept_groups)) is not None:
            dropped[one.label] = why
        elif own.is_empty and not saved.is_global:
            stateless.append(one.label)
        else:
            restored.append(one.label)
            changed += _roundings(own, one)
    used = {own.param_id for own in pairs.values()}
    return OptimizerReport(
        target=target,
        restored=_sorted(restored),
        stateless=_sorted(stateless),
        fresh=_sorted(fresh),
        dropped={name: dropped[name] for name in _sorted(dropped)},
        orphaned=_sorted(one.label for one in mine.values() if one.param_id not in used),
        groups_restored=restored_groups,
        groups_kept=kept_groups,
        renamed={own.label: theirs[key].label for key, own in pairs.items() if own.label != theirs[key].label},
        changed=tuple(changed),
        notes=notes,
        dry_run=True,
    )


def _conflicts(pairs: Mapping[int, _Param], theirs: Mapping[int, _Param]) -> list[str]:
    """Tell of parameters that are one by their id and another by their name."""
    labels = {one.label for one in theirs.values()}
    return [
        f"{quote(own.label)} is so by its name, and {quote(theirs[key].label)} by its id, which is followed"
        for key, own in pairs.items()
        if own.label != theirs[key].label and own.label in labels
    ]


def _roundings(own: _Param, one: _Param) -> list[str]:
    """Say that the numbers of a state would be cast with those of its parameter."""
    if own.state is None or one.state is None or own.state.dtype == one.state.dtype or not own.state.state:
        return []
    return [f"{quote(one.label)} was {own.state.dtype}, and is {one.state.dtype} now, and so are its moments"]


def _paired(mine: Mapping[int, _Param], theirs: Mapping[int, _Param]) -> dict[int, _Param]:
    """Map ids of the other record to the parameters of this one."""
    pairs = {param_id: mine[param_id] for param_id in theirs if param_id in mine}
    taken = set(pairs)
    by_label = {one.label: one for one in mine.values() if one.param_id not in taken}
    for param_id, one in theirs.items():
        if param_id not in pairs and (own := by_label.pop(one.label, None)) is not None:
            pairs[param_id] = own
    return pairs


def _other_kind(saved: Saved, other: Saved) -> str | None:
    if saved.layout != other.layout:
        return f"it lies in the layout {saved.layout!r}, and what it is compared with in {other.layout!r}"
    if saved.is_global != other.is_global:
        return f"the record is of {_kind(saved)}, and the optimizer is {_kind(other)}"
    if saved.kind == other.kind:
        return None
    if saved.base and saved.base == other.base:
        return None
    if not {one.name for one in _families(saved)} & {one.name for one in _families(other)}:
        return f"its state is that of {_kind(saved)}, and the optimizer is {_kind(other)}"
    return None


def _families(saved: Saved) -> list[Any]:
    if saved.kind is not None:
        known = family_named(saved.family)
        return [] if known is None else [known]
    return family_of_fields({name for one in saved.params.values() for name in one.fields()})


def _kind(saved: Saved) -> str:
    if saved.kind is not None or saved.is_global:
        return saved.kind or "L-BFGS"
    return " or ".join(one.name for one in _families(saved)) or "another kind"


def _global_faults(
    saved: Saved,
    other: Saved,
    pairs: Mapping[int, _Param],
    mine: Mapping[int, _Param],
    theirs: Mapping[int, _Param],
) -> dict[str, str]:
    same = len(pairs) == len(mine) == len(theirs)
    shapes = all(
        saved.tensors[name].shape == other.tensors[name].shape
        for name in _VECTORS
        if name in saved.tensors and name in other.tensors
    )
    if same and shapes:
        return {}
    why = "L-BFGS keeps vectors over all parameters together, and the record's are not those of the optimizer"
    return {one.label: why for key, one in theirs.items() if key in pairs}


def _fault(own: _Param, one: _Param, kept_groups: Mapping[int, str]) -> str | None:
    """Say why a state could not be taken over by what the other record was taken of."""
    if own.state is not None and one.state is not None and own.state.shape != one.state.shape:
        return f"its shape was {list(own.state.shape)}, and is {list(one.state.shape)} now"
    if None not in (own.rank, one.rank) and own.rank != one.rank:
        return f"it had {own.rank} axes when it was saved, and has {one.rank} now"
    if (kinds := _kinds(own, one)) is not None:
        return kinds
    for name, shape in one.shapes.items():
        if name in own.shapes and own.shapes[name] != shape:
            return f"its {name!r} has shape {list(own.shapes[name])}, and {list(shape)} is due"
    options_stay = one.state is None or one.state.group in kept_groups
    lacking = [
        name for name in (*one.shapes, *sorted(one.numbers)) if name not in own.shapes | dict.fromkeys(own.numbers)
    ]
    if lacking and options_stay and not own.is_empty:
        return f"the optimizer keeps {some(lacking)} of it, and the record does not"
    return None


def _kinds(own: _Param, one: _Param) -> str | None:
    """Say that the parameter holds another kind of numbers now, such as complex ones."""
    if own.state is None or one.state is None or not own.state.state:
        return None
    was, now = BY_NAME[own.state.dtype], BY_NAME[one.state.dtype]
    return None if was.kind == now.kind else f"its parameter was {was}, and is {now} now"


def _groups(
    saved: Saved, other: Saved, pairs: Mapping[int, _Param], theirs: Mapping[int, _Param], changed: list[str]
) -> tuple[tuple[int, ...], dict[int, str], tuple[str, ...]]:
    """Say which groups get their options back, by the rule of a real restoration."""
    notes: list[str] = []
    if saved.kind is None:
        notes.append("the record does not say of what class, nor with which options: the optimizer's own are kept")
    if saved.kind is None or other.kind is None:
        return (), {}, tuple(notes)
    live = OptimizerState(
        kind=other.kind,
        base=other.base,
        groups=tuple(_options(one) for one in other.groups),
        params=tuple(_as_live(state) for state in other.states.values()),
    )
    told = {
        one.state.path: pairs[key].state
        for key, one in theirs.items()
        if one.state is not None and key in pairs and pairs[key].state is not None
    }
    restored: dict[int, dict[str, Any]] = {}
    kept: dict[int, str] = {}
    found = {path: state for path, state in told.items() if state is not None}
    plan_groups(saved, live, found, restored, kept, notes, changed)
    return tuple(sorted(restored)), kept, tuple(notes)


def _options(told: Any) -> dict[str, Any]:
    """Give the options of a group, but for the rate: schedules move it, and it says nothing of what the group is."""
    return {key: value for key, value in put_back(told, lambda _name: None).items() if key != "lr"}


def _as_live(state: SavedState) -> ParamState:
    return ParamState(
        path=state.path,
        param_id=ParamId(state.param_id),
        dtype=BY_NAME[state.dtype],
        shape=state.shape,
        group=state.group,
        position=state.position,
        state={},
    )


def compare_with_model(record: OptimizerRecord, loaded: LoadReport) -> OptimizerReport:
    """Say what would come back of a record in an optimizer of a model, whose weights a report says how to load.

    The report is that of the weights that were saved with the record: a moment goes where its parameter goes. What class the optimizer
    is, and how its groups are, no model tells.
    """
    saved = record.saved()
    mine = _params(saved)
    names = {one.file_name: one.name for one in loaded.renamed}
    unused, wrong = set(loaded.unused), {one.name: one.message for one in loaded.errors}
    restored, dropped, stateless, orphaned = [], dict[str, str](), [], []
    for one in mine.values():
        name = names.get(one.label, one.label)
        if name in wrong:
            dropped[name] = wrong[name]
        elif one.label in unused:
            orphaned.append(one.label)
        elif one.is_empty and not saved.is_global:
            stateless.append(name)
        else:
            restored.append(name)
    return OptimizerReport(
        target=saved.kind or "the optimizer",
        restored=_sorted(restored),
        stateless=_sorted(stateless),
        fresh=_sorted(name for name in loaded.missing if name not in dropped),
        dropped={name: dropped[name] for name in _sorted(dropped)},
        orphaned=_sorted(orphaned),
        renamed={old: new for old, new in names.items() if any(one.label == old for one in mine.values())},
        notes=("a model does not tell the class of its optimizer, nor its groups",),
        dry_run=True,
    )


def _sorted(names: Any) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural))


def compare_schedulers(record: LrSchedulerRecord, like: LrSchedulerRecord) -> SchedulerReport:
    """Say what would come back of a record in the schedule that another one was taken of."""
    mine, theirs = _state_of(record), _state_of(like)
    if theirs is None:
        return _compare_counters(record, like)
    if mine is None:
        why = "the record has Burn's counters alone" if record.scalars else "the record has no state of it"
        return SchedulerReport(scheduler=theirs["kind"], refused=(("state", why),), unknown=tuple(record.scalars))
    kind = str(theirs["kind"])
    if mine["kind"] != kind:
        why = f"the record is of {mine['kind']}, and this is {kind}"
        return SchedulerReport(scheduler=kind, source="firekeep", refused=(("kind", why),))
    if len(mine["groups"]) != len(theirs["groups"]):
        told = count(len(mine["groups"]), "group")
        why = f"the record has {told} of parameters, and the optimizer {len(theirs['groups'])}"
        return SchedulerReport(scheduler=kind, source="firekeep", refused=(("groups", why),))
    held, wanted = dict(_flat(mine["state"])), dict(_flat(theirs["state"]))
    return SchedulerReport(
        scheduler=kind,
        source="firekeep",
        restored=tuple(name for name in held if name in wanted),
        missing=tuple(name for name in wanted if name not in held),
        unknown=tuple(name for name in held if name not in wanted),
        changed=tuple(
            f"{name} is {_short(value)} from the record; the other has {_short(wanted[name])}"
            for name, value in held.items()
            if name in wanted and name.rpartition(".")[2] not in COUNTERS and value != wanted[name]
        ),
    )


def _state_of(record: LrSchedulerRecord) -> dict[str, Any] | None:
    text = record.metadata.get(SCHEDULER)
    told = None if text is None else decode(text)
    if text is None:
        return None
    if not (isinstance(told, dict) and isinstance(told.get("state"), dict) and isinstance(told.get("groups"), list)):
        raise FormatError(f"the metadata of {SCHEDULER!r} is not the state of a scheduler")
    return {"kind": "", **told}


def _flat(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Give the values of a state, and those of schedules within it."""
    for key, value in state.items():
        if key == "_schedulers" and isinstance(value, list):
            for place, child in enumerate(value):
                yield from _flat(child, f"{prefix}{place}.") if isinstance(child, dict) else ()
        else:
            yield f"{prefix}{key}", value


def _compare_counters(record: LrSchedulerRecord, like: LrSchedulerRecord) -> SchedulerReport:
    found, note = find_level(record.scalars, like.scalars)
    wrong = [
        (name, f"{found[name].kind}, where {scalar.kind} is due")
        for name, scalar in like.scalars.items()
        if name in found and found[name].kind != scalar.kind
    ]
    return SchedulerReport(
        scheduler="the schedule",
        restored=tuple(name for name in like.scalars if name in found and name not in dict(wrong)),
        missing=tuple(name for name in like.scalars if name not in found),
        refused=tuple(wrong),
        unknown=tuple(name for name in found if name not in like.scalars),
        notes=(*((note,) if note else ()), "Burn keeps no settings: it goes on with those that it was built with"),
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
