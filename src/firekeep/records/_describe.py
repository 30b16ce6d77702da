"""What a record holds, for people: parameters by path and not by id, options and counters as values and not as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError
from firekeep.folding import some_alike
from firekeep.formats import Contents
from firekeep.layouts import UNSPECIFIED
from firekeep.opened import OpenedFile
from firekeep.records._families import family_of_fields
from firekeep.records._kinds import RANK, RECORD, kind_of
from firekeep.records._optimizer_read import Saved, read_state
from firekeep.records._optimizer_write import OPTIMIZER, STATE
from firekeep.records._stand_ins import as_number, put_back
from firekeep.rules.layout import LAYERS
from firekeep.tagged import TensorAt, decode, join_tensors, split_tensors
from firekeep.wording import count

SCHEDULER = "firekeep.scheduler"
"""The metadata key of the whole state of a scheduler of PyTorch's."""
TRAINING = "firekeep.training"
"""That of what a training state has no other file for."""
VALUES = "firekeep.values"
"""That of a part that is nothing but a state dict."""

_FRESH = (2**64 - 1, 2**32 - 1)
_COUNTERS = {
    "current_iter": "cosine",
    "remaining_iters": "linear",
    "previous_lr": "exponential",
    "iter_idx": "step",
    "step": "noam or sequential",
}
SAVE = "firekeep.step"
"""The metadata key by which the files of a step in Burn's layout say of which save they are; it tells nothing of the record."""
_OPTIONS_SHOWN = (None, False)
"""Values of options that say what is not asked for: they are not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamDescription:
    """What an optimizer keeps of one parameter.

    `tensors` maps its fields, as the file calls them, to the names of tensors; `numbers` its counters to their values. `group` is None
    where the file does not say it. `shape` is that of the parameter in its model.
    """

    path: str
    param_id: int
    group: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int | float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "path": self.path,
            "param_id": self.param_id,
            "group": self.group,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "tensors": dict(self.tensors),
            "numbers": dict(self.numbers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDescription:
    """What a file is a record of: "optimizer", "scheduler", "module", "training" (the rest of a run) or "values" (a state dict).

    `of` is the class of what was recorded, None where the file does not say it. `values` are options, counters and states as plain data,
    in which `<tensor NAME>` stands for a tensor. `consumed` are keys of metadata and scalars that are told by all this.
    """

    kind: str
    of: str | None = None
    layout: str | None = None
    params: tuple[ParamDescription, ...] = ()
    groups: tuple[Mapping[str, Any], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    consumed: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Say in a few words what the record is of."""
        what = {
            "optimizer": "record of an optimizer",
            "scheduler": "record of a scheduler",
            "module": "record of a model",
            "training": "state of a training run",
            "values": "state dict of an object",
        }[self.kind]
        return f"{what} ({self.of})" if self.of else what

    @property
    def summary(self) -> str:
        """Say it with what it holds."""
        if self.kind == "optimizer":
            states = sum(bool(one.tensors or one.numbers) for one in self.params)
            held = f"{count(states, 'state')} of {count(len(self.params), 'parameter')}"
            return f"{self.title}: {held if self.params else 'no parameters'}"
        if self.kind == "training":
            return f"{self.title}: step {self.values.get('step', '?')}, epoch {self.values.get('epoch', '?')}"
        return self.title

    def shown_names(self) -> dict[str, str]:
        """Map names of tensors to names that begin with the path of their parameter, where no two become one."""
        made = {tensor: f"{one.path}.{name}" for one in self.params for name, tensor in one.tensors.items()}
        return made if len(set(made.values())) == len(made) else {}

    def told(self) -> dict[str, Any]:
        """Give what stands in it besides tensors, in the order people ask for it: class, counters, groups with their options."""
        if self.kind != "optimizer":
            return {**({"class": self.of} if self.of else {}), **self.values}
        made: dict[str, Any] = {"class": self.of or "not said by the file", "layout": self.layout}
        without = [one.path for one in self.params if not one.tensors and not one.numbers]
        if without and not self.values:  # what L-BFGS keeps is of all parameters together
            made["without a state"] = _labels(without)
        made |= _together(self.params)
        made |= self.values
        for place, options in enumerate(self.groups):
            names = [one.path for one in self.params if one.group == place]
            told = {key: value for key, value in options.items() if not any(value is one for one in _OPTIONS_SHOWN)}
            made[f"group {place}, {count(len(names), 'parameter')}"] = {
                **({"of": _labels(names)} if names else {}),
                **told,
            }
        return made

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "kind": self.kind,
            "of": self.of,
            "layout": self.layout,
            "params": [one.to_dict() for one in self.params],
            "groups": [dict(one) for one in self.groups],
            "values": dict(self.values),
            "notes": list(self.notes),
        }


def describe_record(opened: OpenedFile) -> RecordDescription | None:
    """Say what an open burnpack file is a record of; None for weights of which the file does not say that they are one.

    Raises `FormatError` for a record that contradicts itself.
    """
    if opened.format != "burnpack":
        return None
    metadata = opened.metadata
    try:
        if TRAINING in metadata:
            return _of_values("training", decode(metadata[TRAINING]), TRAINING)
        if VALUES in metadata:
            return _of_values("values", decode(metadata[VALUES]), VALUES)
        kind = "scheduler" if SCHEDULER in metadata else kind_of(opened.keys(), metadata, opened.scalars)
        if kind == "scheduler":
            return _of_scheduler(opened)
        if kind == "optimizer":
            return _of_optimizer(opened)
    except FirekeepError as error:
        raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place
    return RecordDescription(kind="module", consumed=frozenset((RECORD,))) if metadata.get(RECORD) == "module" else None


def _of_values(kind: str, told: Any, key: str) -> RecordDescription:
    held = told.get("values") if isinstance(told, dict) else None
    values = _spelled(held) if isinstance(held, dict) else {}
    return RecordDescription(kind=kind, values=values, consumed=frozenset((SAVE, key)))


def _of_scheduler(opened: OpenedFile) -> RecordDescription:
    text = opened.metadata.get(SCHEDULER)
    if text is None:
        return RecordDescription(kind="scheduler", notes=tuple(_guessed(opened)))
    told = decode(text)
    if not isinstance(told, dict) or not isinstance(told.get("state"), dict):
        return RecordDescription(kind="scheduler", notes=(f"the metadata of {SCHEDULER!r} is not the state of one",))
    held = told.get("tensors")
    numbers = {path: one[1] for path, one in held.items() if _is_number(one)} if isinstance(held, dict) else {}
    return RecordDescription(
        kind="scheduler",
        of=str(told.get("kind", "")) or None,
        values=_spelled(told["state"], numbers),
        notes=() if opened.scalars else ("Burn has no such schedule: it would find nothing in this file",),
        consumed=frozenset((SAVE, SCHEDULER)),
    )


def _is_number(one: object) -> bool:
    return isinstance(one, list) and len(one) == 2 and isinstance(one[1], int | float)


def _guessed(opened: OpenedFile) -> Iterator[str]:
    """Say which of Burn's schedules have such counters."""
    for name, scalar in opened.scalars.items():
        if (kind := _COUNTERS.get(name.rpartition(".")[2])) is not None:
            fresh = ", not started" if kind == "cosine" and scalar.value in _FRESH else ""
            yield f"{name} is the counter of a schedule of Burn's: {kind}{fresh}"


def _of_optimizer(opened: OpenedFile) -> RecordDescription:
    contents = Contents(
        entries=list(opened.container.entries.values()),
        metadata=dict(opened.metadata),
        scalars=dict(opened.scalars),
    )
    saved = read_state(contents, where=opened.path)
    if saved.kind is not None or saved.is_global:
        notes: tuple[str, ...] = ()
    else:
        known = family_of_fields({name for one in saved.params.values() for name in one.fields()})
        notes = (f"its fields are those of {' or '.join(one.name for one in known)}",) if known else ()
    return RecordDescription(
        kind="optimizer",
        of=saved.kind or ("L-BFGS" if saved.is_global else None),
        layout=saved.layout or UNSPECIFIED,
        params=tuple(_params(saved)),
        groups=tuple(_spelled(put_back(one, lambda _name: None)) for one in saved.groups),
        values={name: scalar.value for name, scalar in saved.scalars.items()} if saved.is_global else {},
        notes=notes,
        consumed=frozenset(_consumed(opened, is_global=saved.is_global)),
    )


def _consumed(opened: OpenedFile, *, is_global: bool) -> Iterator[str]:
    yield from ("firekeep.layout", LAYERS, SAVE, OPTIMIZER, RECORD)
    yield from (key for key in opened.metadata if key.startswith(STATE) or key.isdecimal())
    yield from (key for key in opened.scalars if is_global or key.partition(".")[0].isdecimal())


def _params(saved: Saved) -> Iterator[ParamDescription]:
    """Give the parameters of the model as firekeep wrote them down, else those of the file."""
    if not saved.states:
        for one in saved.params.values():
            yield ParamDescription(
                path=one.label(),
                param_id=one.param_id,
                tensors={name: f"{one.param_id}.{name}" for name in one.tensors},
                numbers={name: _plain(scalar.value) for name, scalar in one.scalars.items() if name != RANK},
            )
        return
    for state in sorted(saved.states.values(), key=lambda one: one.position):
        tensors, numbers = {}, _numbers(state.state)
        for param_id in state.ids:
            part = saved.params.get(param_id)
            prefix = "" if len(state.ids) == 1 else f"{state.names[state.ids.index(param_id)]}."
            for name in part.tensors if part is not None else ():
                tensors[f"{prefix}{name}"] = f"{param_id}.{name}"
        start = f"{STATE}{state.param_id}."
        tensors |= {name.removeprefix(start): name for name in saved.tensors if name.startswith(start)}
        yield ParamDescription(
            path=state.path,
            param_id=state.param_id,
            group=state.group,
            dtype=state.dtype,
            shape=state.shape,
            tensors=tensors,
            numbers=numbers,
        )


def _numbers(state: Any) -> dict[str, int | float]:
    """Give the numbers of a state, those that are kept as tensors of rank 0 too."""
    if not isinstance(state, Mapping):
        return {}
    found = {}
    for key, value in state.items():
        if isinstance(value, TensorAt):
            if not value.path.startswith("="):
                continue
            value = put_back(value, lambda _name: None)
        if isinstance(value, bool) or (number := as_number(value)) is None:
            continue
        found[str(key)] = _plain(number)
    return found


def _labels(names: list[str]) -> str:
    """List names, alike ones as one."""
    return some_alike(names)


def _plain(number: Any) -> int | float:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _together(params: tuple[ParamDescription, ...]) -> dict[str, Any]:
    """Give counters of parameters as one number where they agree."""
    made: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in params for name in one.numbers):
        held = {one.path: one.numbers[name] for one in params if name in one.numbers}
        made[name] = next(iter(held.values())) if len(set(held.values())) == 1 else held
    return made


def _spelled(value: Any, numbers: Mapping[str, Any] = {}) -> Any:
    """Give plain data with the names of tensors, or their values where they are known, in the place of stand-ins."""
    value, entries = split_tensors(value, lambda leaf: isinstance(leaf, TensorEntry | TensorAt))
    shown = {}
    for place, leaf in entries.items():
        if isinstance(leaf, TensorEntry):
            shown[place] = as_number(leaf) if not leaf.shape else f"<tensor {list(leaf.shape)}>"
        else:
            assert isinstance(leaf, TensorAt)  # noqa: S101 - the predicate above
            shown[place] = numbers.get(leaf.path, f"<tensor {leaf.path}>")
    return join_tensors(value, shown)
