"""Burn's fields, and what firekeep wrote beside them, as the state that a live optimizer keeps of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from firekeep.bridges._states import OptimizerState, ParamState
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError
from firekeep.records._families import Family, family_named, family_of, family_of_fields
from firekeep.records._file_params import FileLayout, FileParam
from firekeep.records._moments import momentum_of, scaled
from firekeep.records._optimizer_read import Saved, SavedParam, SavedState
from firekeep.records._optimizer_write import STATE
from firekeep.records._stand_ins import number, put_back
from firekeep.rules import Losses, can_cast, cast
from firekeep.scalars import Scalar
from firekeep.views import permuted

_FACTORS = ("second_moment", "column_second_moment")


class Fields:
    """Tensors of Burn's fields of saved parameters, called like the live ones that they were found for.

    `problems` says of live parameters why theirs cannot be taken.
    """

    def __init__(self, tensors: Mapping[str, TensorEntry]) -> None:
        self.problems: dict[str, str] = {}
        self.tensors = tensors
        self.scalars: dict[str, dict[str, Scalar]] = {}
        self._by_field: dict[str, list[TensorEntry]] = {}
        self._factors: dict[str, dict[str, TensorEntry]] = {}

    def add(self, saved: SavedParam, home: FileParam) -> None:
        """Take the fields of one parameter."""
        why = None
        if saved.rank is not None and saved.rank != len(home.shape):
            why = f"it had {saved.rank} axes when it was saved, and has {len(home.shape)} now"
        for name, entry in saved.tensors.items():
            if name in _FACTORS:
                turned = permuted(entry, (1, 0)) if home.is_turned and len(entry.shape) == 2 else entry
                for path in home.origins if home.is_whole else ():
                    self._factors.setdefault(path, {})[name] = turned
                continue
            if entry.shape != home.shape:
                why = f"its {name!r} has shape {list(entry.shape)}, and the parameter {list(home.shape)}"
                continue
            self._by_field.setdefault(name, []).append(entry.renamed(home.name))
        for path in home.origins:
            if why is not None:
                self.problems.setdefault(path, why)
            self._add_scalars(path, saved.scalars)

    def _add_scalars(self, path: str, scalars: Mapping[str, Scalar]) -> None:
        known = self.scalars.setdefault(path, dict(scalars))
        if known != scalars:
            self.problems.setdefault(path, "its parts have made different numbers of steps")

    def take_back(self, files: FileLayout) -> dict[str, dict[str, TensorEntry]]:
        """Give the tensors by path of the live parameter and field, as they lie in PyTorch."""
        made: dict[str, dict[str, TensorEntry]] = {}
        by_name = files.by_name()
        for name, entries in self._by_field.items():
            back, problems = files.take_back(entries)
            for entry in back:
                made.setdefault(entry.name, {})[name] = entry
            for place, why in problems.items():
                for path in by_name[place].origins:
                    self.problems.setdefault(path, why)
        turned = {path for home in files.params if home.is_turned for path in home.origins}
        for path, factors in self._factors.items():
            if path in turned:
                rows, columns = (factors.get(name) for name in _FACTORS)
                factors = {name: one for name, one in zip(_FACTORS, (columns, rows), strict=True) if one is not None}
            made.setdefault(path, {}).update(factors)
        return made


def settle(
    saved: Saved,
    live: OptimizerState,
    one: ParamState,
    told: SavedState | None,
    fields: Mapping[str, TensorEntry],
    held: Fields,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Give the state of a live parameter: with the keys and types it was saved with, or those that its class gives it."""
    scalars = held.scalars.get(one.path, {})
    if told is None:
        state = _of_burn(live, one, fields, scalars, options)
        return {key: _cast(value, None, one) for key, value in state.items()}
    family = family_named(saved.family)

    def find(name: str) -> TensorEntry | None:
        if name.startswith(STATE):
            return held.tensors.get(name)
        entry = fields.get(name)
        return entry if entry is None else _unscaled(entry, family, options, saved)

    state = put_back(told.state, find)
    if not isinstance(state, dict):
        raise FormatError("what the record keeps of it is no state")
    return {key: _cast(value, told.dtype, one) for key, value in state.items()}


def _unscaled(entry: TensorEntry, family: Family | None, options: Mapping[str, Any], saved: Saved) -> TensorEntry:
    if family is not None and family.name == "muon" and saved.layout == "burn":
        return scaled(entry, by=1 - momentum_of(options))
    return entry


def _cast(value: Any, saved_as: str | None, one: ParamState) -> Any:
    """Give floats of the saved parameter's dtype that of the live one; those of another dtype were kept so on purpose."""
    if isinstance(value, list):
        return [_cast(item, saved_as, one) for item in value]
    if not isinstance(value, TensorEntry) or not value.shape or value.dtype == one.dtype:
        return value
    meant = saved_as is None or (value.require().name == saved_as and one.dtype.name != saved_as)
    return cast(value, one.dtype, Losses()) if meant and can_cast(value, one.dtype) else value


def _of_burn(
    live: OptimizerState,
    one: ParamState,
    fields: Mapping[str, TensorEntry],
    scalars: Mapping[str, Scalar],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Make a state of nothing but Burn's fields."""
    names = [*fields, *scalars]
    if not names:
        return {}
    candidates = family_of_fields(names)
    mine = family_of(live.kind, live.base, one.state)
    family = mine if mine in candidates else None
    if family is None:
        meant = " or ".join(sorted({found.name for found in candidates})) or "no known optimizer"
        raise FormatError(
            f"its fields {', '.join(map(repr, names))} are those of {meant}, and the optimizer is {live.kind}"
        )
    state: dict[str, Any] = {}
    if family.time is not None:
        if family.time[0] not in scalars:
            raise FormatError(f"it has no {family.time[0]!r}, so it is not known how many steps it has made")
        time = int(scalars[family.time[0]])
        if time < 0:
            raise FormatError(f"its {family.time[0]!r} says that it has made {time} steps")
        state[family.time[1]] = number(float(time)) if live.base else time
    elif family.name == "rmsprop":
        state["step"] = number(0.0)  # PyTorch counts, and uses the number for nothing
    for moment in family.moments:
        if moment.derived or moment.field not in fields:
            continue
        key, entry = moment.key, fields[moment.field]
        if family.name == "adafactor" and len(one.shape) < 2:
            key = "variance"
        if family.name == "muon":
            entry = scaled(entry, by=1 - momentum_of(options))
        state[key] = replace(entry, name=one.path)
    return state
