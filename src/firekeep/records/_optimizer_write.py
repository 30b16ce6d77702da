"""An optimizer as the contents of a file: Burn's fields where Burn has the optimizer, and beside them what only PyTorch knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from firekeep.bridges._states import OptimizerState, ParamState
from firekeep.entry import TensorEntry
from firekeep.formats import Contents
from firekeep.garbage import collector_paused
from firekeep.layouts import LAYOUT, UNSPECIFIED
from firekeep.records import _lbfgs
from firekeep.records._families import Family, family_of
from firekeep.records._file_params import FileLayout, FileParam
from firekeep.records._kinds import RANK, RECORD
from firekeep.records._moments import centered_average, fitted, momentum_of, scaled
from firekeep.records._stand_ins import as_number, names_in, take_out
from firekeep.rules.layout import LAYERS, tell_reader, write_layers
from firekeep.scalars import Scalar
from firekeep.slots import Convention, Layer
from firekeep.tagged import encode

OPTIMIZER = "firekeep.optimizer"
"""The metadata key of an optimizer's class and the options of its groups."""

STATE = "firekeep.state."
"""Begins the keys of what only firekeep reads, before the id of a parameter: metadata, and tensors that Burn has no field for."""

VERSION = 1


@dataclass(slots=True)
class _Made:
    """A file on its way. `parts` are tensors by the name of their parameter in the file, in the order of Burn's fields."""

    parts: dict[str, list[TensorEntry]] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def add(self, home: FileParam, name: str, entry: TensorEntry) -> None:
        part = TensorEntry(name, entry.dtype, entry.shape, entry.blob, home.param_id, entry.problem)
        self.parts.setdefault(home.name, []).append(part)


def write_state(taken: OptimizerState, *, layout: Convention | None, layers: tuple[Layer, ...]) -> Contents:
    """Lay out an optimizer; nothing is drawn but numbers."""
    with collector_paused():
        made = _write_state(taken, layout, layers)
    if layout is None or taken.convention is None:
        return made
    told = write_layers(tell_reader(layers, source=taken.convention, target=layout))
    return made if told is None else replace(made, metadata={**made.metadata, LAYERS: told})


def _write_state(taken: OptimizerState, layout: Convention | None, layers: tuple[Layer, ...]) -> Contents:
    files = FileLayout.of(taken.params, layers, layout, taken.convention)
    family = family_of(taken.kind, taken.base, {key for one in taken.params for key in names_in(one.state)})
    made = _Made()
    homes: dict[str, list[FileParam]] = {}
    for home in files.params:
        for name in home.origins:
            homes.setdefault(name, []).append(home)
    told: dict[str, Any] = {}
    first: list[TensorEntry] = []
    if family is not None and family.name == "lbfgs":
        first, told = _lbfgs.write(taken, files, made.scalars)
    else:
        _write_fields(taken, family, files, homes, made)
    _write_rest(taken, family, homes, made, is_global=bool(told))
    stateful = {one.path for one in taken.params if one.state}
    for home in files.params if not told else ():
        made.metadata[str(int(home.param_id))] = home.name
        if (family is not None and not family.fields()[1:]) or not stateful.isdisjoint(home.origins):
            made.scalars[f"{int(home.param_id)}.{RANK}"] = Scalar("uint", len(home.shape))
    entries = [*first, *(entry for home in files.params for entry in made.parts.get(home.name, ()))]
    about = _about(taken, family, told, entries)
    made.metadata[OPTIMIZER] = encode(about, path="optimizer")
    made.metadata[RECORD] = "optimizer"
    if layout != "burn":
        made.metadata[LAYOUT] = layout or UNSPECIFIED
    return Contents(entries=entries, metadata=made.metadata, scalars=made.scalars)


def _about(
    taken: OptimizerState, family: Family | None, told: Mapping[str, Any], entries: list[TensorEntry]
) -> dict[str, Any]:
    """Say what the optimizer is, and with which options; tensors that it keeps of no parameter are added to `entries`."""
    owner = next((one.param_id for one in taken.params), None)  # Burn refuses tensors without an id

    def keep(path: str, entry: TensorEntry) -> str:
        entries.append(replace(entry, name=f"firekeep.{path}", param_id=owner))
        return f"firekeep.{path}"

    return {
        "version": VERSION,
        "class": taken.kind,
        "base": taken.base,
        "family": None if family is None else family.name,
        **({} if taken.convention == "torch" else {"convention": taken.convention}),
        "groups": [take_out(dict(one), f"groups.{place}", _inline) for place, one in enumerate(taken.groups)],
        "extra": take_out(dict(taken.extra), "extra", keep),
        **told,
    }


def _inline(_path: str, _entry: TensorEntry) -> None:
    """Keep tensors of options in the text: they are numbers, or small."""


def _write_fields(
    taken: OptimizerState,
    family: Family | None,
    files: FileLayout,
    homes: Mapping[str, list[FileParam]],
    made: _Made,
) -> None:
    """Write Burn's fields, one kind of them after the other: so tensors that are joined in the file find each other."""
    if family is None:
        return
    by_name = files.by_name()
    for name, entries in _fields(taken, family, files, homes):
        for entry in files.lay_out(entries) if family.name != "adafactor" else entries:
            if (home := by_name.get(entry.name)) is not None:
                made.add(home, f"{int(home.param_id)}.{name}", entry)
    if family.time is not None:
        for one in taken.params:
            time = as_number(one.state.get(family.time[1], taken.groups[one.group].get("step")))
            for home in homes[one.path] if time is not None and one.state else ():
                made.scalars[f"{int(home.param_id)}.{family.time[0]}"] = Scalar("uint", int(time or 0))


def _fields(
    taken: OptimizerState, family: Family, files: FileLayout, homes: Mapping[str, list[FileParam]]
) -> Iterator[tuple[str, list[TensorEntry]]]:
    """Give the tensors of each of Burn's fields, called like their parameters."""
    for moment in family.moments:
        found = []
        for one in taken.params:
            entry = _moment(taken, family, moment.field, moment.key, one, files)
            if entry is None:
                continue
            if family.name == "adafactor":
                if (entry := fitted(entry, moment.field, one, homes[one.path])) is None:
                    continue
                found.append(replace(entry, name=homes[one.path][0].name))
            else:
                found.append(entry.renamed(one.path))
        yield moment.field, found


def _moment(
    taken: OptimizerState, family: Family, name: str, key: str, one: ParamState, files: FileLayout
) -> TensorEntry | None:
    """Give one field of one parameter as it lies in PyTorch, or None where there is none that Burn would read as what it is."""
    options = taken.groups[one.group]
    if name == "centered.avg":  # Burn keeps what follows from the rest; a checkpoint that goes back to PyTorch does not
        return centered_average(one.state) if files.layout == "burn" else None
    if family.name == "adafactor":
        return _factor(name, one)
    entry = one.state.get(key)
    if not isinstance(entry, TensorEntry) or entry.shape != one.shape:
        return None
    if (
        family.name == "muon"
    ):  # Burn sums where PyTorch averages, and no rounding may come between a run and its own checkpoint
        return scaled(entry, by=1 / (1 - momentum_of(options))) if files.layout == "burn" else None
    return entry


def _factor(name: str, one: ParamState) -> TensorEntry | None:
    key = "row_var" if name == "second_moment" else "col_var"
    if len(one.shape) < 2:
        key = "variance" if name == "second_moment" else ""
    entry = one.state.get(key)
    return entry if isinstance(entry, TensorEntry) else None


def _write_rest(
    taken: OptimizerState,
    family: Family | None,
    homes: Mapping[str, list[FileParam]],
    made: _Made,
    *,
    is_global: bool,
) -> None:
    """Write what lies beside Burn's fields: of each parameter the shape of its state, and tensors that no field holds."""
    fields = _field_of(family)
    for one in taken.params:
        own = str(int(one.param_id))
        home = FileParam(name=homes[one.path][0].name, param_id=one.param_id, shape=one.shape, origins=(one.path,))
        held = {entry.name.partition(".")[2] for place in homes[one.path] for entry in made.parts.get(place.name, ())}

        def keep(path: str, entry: TensorEntry, own: str = own, home: FileParam = home, held: set[str] = held) -> str:
            name = fields.get((path, len(home.shape) < 2))
            if name in held:
                return str(name)
            made.add(home, f"{STATE}{own}.{path}", entry)
            return f"{STATE}{own}.{path}"

        made.metadata[f"{STATE}{own}"] = encode(
            {
                "path": one.path,
                "ids": [int(place.param_id) for place in homes[one.path]],
                "names": [place.name for place in homes[one.path]],
                "dtype": one.dtype.name,
                "shape": list(one.shape),
                "group": one.group,
                "position": one.position,
                "state": {} if is_global else take_out(dict(one.state), "", keep),
                **({"turned": turned} if any(turned := [place.is_turned for place in homes[one.path]]) else {}),
            },
            path=one.path,
        )


def _field_of(family: Family | None) -> dict[tuple[str, bool], str]:
    """Map keys, of parameters that are no matrices or that are, to Burn's fields."""
    if family is None:
        return {}
    if family.name == "adafactor":
        return {
            ("row_var", False): "second_moment",
            ("col_var", False): "column_second_moment",
            ("variance", True): "second_moment",
        }
    return {(one.key, flat): one.field for one in family.moments if not one.derived for flat in (True, False)}
