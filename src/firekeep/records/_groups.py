"""Options of groups: a live group takes those of the saved one that has the same parameters in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firekeep.bridges._states import OptimizerState
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError
from firekeep.records._optimizer_read import Saved, SavedState
from firekeep.records._stand_ins import as_number, put_back
from firekeep.wording import middle, quote

_MACHINE = ("foreach", "fused", "capturable", "differentiable")
"""Options that say how a step is computed, and not what: those of the live optimizer stay."""
_SCHEDULED = ("lr", "betas", "momentum")
"""Options that a schedule of learning rates moves: where there is one that began with the same rate, they say nothing of their own."""
_OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum")
"""Keys that schedules put into groups, for themselves."""
_LONG = 1024


def plan_groups(
    saved: Saved,
    live: OptimizerState,
    told: Mapping[str, SavedState],
    restored: dict[int, dict[str, Any]],
    kept: dict[int, str],
    notes: list[str],
    changed: list[str] | None = None,
    back: list[str] | None = None,
    places: dict[int, int] | None = None,
) -> None:
    """Decide for each live group whether it takes over options; `restored` and `kept` are filled, and what else there is to say.

    `back` is told the options that were set otherwise for this run, and become what they were when they were saved. `places` is filled
    with the place that each group which takes over options had.

    Two groups correspond where all parameters that are in the record and in the optimizer lie in both or in neither. So a group that
    has gained or lost parameters keeps its options, and one that was split or joined does not get any.
    """
    if saved.kind is None:
        return
    inside: dict[int, set[int]] = {place: set() for place in range(len(live.groups))}
    around: dict[int, set[int]] = {}
    for one in live.params:
        if (state := told.get(one.path)) is not None:
            inside[one.group].add(state.group)
            around.setdefault(state.group, set()).add(one.group)
    for place, origins in inside.items():
        if saved.kind != live.kind:
            kept[place] = f"they were those of {saved.kind}"
        elif not origins:
            kept[place] = "none of its parameters is in the record"
        elif len(origins) > 1:
            kept[place] = f"its parameters were in the groups {_listed(origins)}"
        elif len(around[next(iter(origins))]) > 1:
            group = next(iter(origins))
            kept[place] = f"the parameters of group {group} are in the groups {_listed(around[group])} now"
        elif not 0 <= next(iter(origins)) < len(saved.groups):
            kept[place] = "the record lacks its options"
        else:
            told_of = saved.groups[next(iter(origins))]
            if places is not None:
                places[place] = next(iter(origins))
            restored[place] = _options(told_of, live.groups[place], place, notes, notes if changed is None else changed)
            if back is not None:
                prefix = "" if len(live.groups) == 1 else f"group {place}: "
                back += [f"{prefix}{one}, as it was saved" for one in _set_back(restored[place], live.groups[place])]


def _options(told: Any, live: Mapping[str, Any], place: int, notes: list[str], changed: list[str]) -> dict[str, Any]:
    options = put_back(told, lambda _name: None)
    if not isinstance(options, dict):
        raise FormatError(f"what the record says of group {place} are no options")
    made = {key: value for key, value in options.items() if key not in _MACHINE}
    changed += [
        f"group {place}: {key} was {_told(options.get(key))} and stays {_told(live.get(key))}, and may round in another way"
        for key in _MACHINE
        if (key in options and key in live and options[key] != live[key])
        or bool(options.get(key)) != bool(live.get(key))
    ]
    changed += [
        f"group {place}: the record does not say {quote(key)}, which stays {_told(value)}"
        for key, value in live.items()
        if key not in options and key not in (*_MACHINE, *_OF_SCHEDULES)
    ]
    notes += [
        f"group {place}: {quote(key)} is {_told(value)} again, which this optimizer was made without"
        for key, value in made.items()
        if key not in live and key not in ("lr", *_OF_SCHEDULES)
    ]
    changed += [
        f"group {place}: {key} was a {_form(value)} and is a {_form(live[key])} now, with which steps round in another way"
        for key, value in made.items()
        if key in live
        and as_number(value) is not None
        and _form(value) != _form(live[key])
        and as_number(live[key]) is not None
    ]
    notes += [
        f"group {place}: {key} is {_told(value)} again, not {_told(live[key])}"
        for key, value in made.items()
        if key in live and _differ(value, live[key])
    ]
    return made


def _set_back(saved: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """List the options that the live group has otherwise, but for those that a schedule is about to move anyway."""
    began = "initial_lr" in saved and "initial_lr" in live and not _differ(saved["initial_lr"], live["initial_lr"])
    return [
        f"{key}: {_told(live[key])} -> {_told(value)}"
        for key, value in saved.items()
        if key in live and _differ(value, live[key]) and not (began and key in _SCHEDULED)
    ]


def _differ(first: Any, second: Any) -> bool:
    if isinstance(first, TensorEntry) or isinstance(second, TensorEntry):
        return as_number(first) != as_number(second)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):  # (0.9, 0.999) is what [0.9, 0.999] is
        return len(first) != len(second) or any(map(_differ, first, second))
    return bool(first != second)


def _told(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _LONG:
        return f"an integer of {value.bit_length():,} bits"  # Python does not spell any
    return middle(repr(as_number(value) if isinstance(value, TensorEntry) else value), 60)


def _form(value: Any) -> str:
    return "tensor" if isinstance(value, TensorEntry) else "number"


def _listed(places: set[int]) -> str:
    return " and ".join(map(str, sorted(places)))
