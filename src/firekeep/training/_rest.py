"""What of a training state has no file of its own: counters, values, places in the data, random generators."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.bridges import torch as torch_bridge
from firekeep.errors import FirekeepError, FormatError, RuleError, ScalarError
from firekeep.formats import Contents
from firekeep.opened import OpenedFile
from firekeep.scalars import Scalar
from firekeep.sections import Section
from firekeep.training._facts import changes, environment
from firekeep.training._frozen import frozen_changes, frozen_of
from firekeep.training._nested import pack, unpack
from firekeep.training._parts import Restoring, check_state, has_state
from firekeep.training._rng import check_rng, plan_rng, put_rng, take_rng, unknown_generators
from firekeep.wording import some

KEY = "firekeep.training"
VERSION = 1

_PARTS = {"version": int, "step": int, "epoch": int, "metrics": dict, "values": dict, "data": dict, "facts": dict}


_DEEP = 8
"""How many datasets around one another are looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What comes back of it. `step` and `epoch` are None where the checkpoint does not say them."""

    step: int | None = None
    epoch: int | None = None
    rng: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_NO_VALUE = "the checkpoint has no value of this name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The part of a state that is none of models, optimizers and schedules."""

    metrics: MutableMapping[str, Any]
    values: MutableMapping[str, Any]
    data: Mapping[str, Any]
    rng: bool
    generators: Mapping[str, Any]
    models: Mapping[str, Any] = field(default_factory=dict)
    """Models of PyTorch, whose modules may keep more than tensors."""
    averages: Mapping[str, Any] = field(default_factory=dict)
    """Averages of such."""
    frozen: bool = False
    """Whether parameters are to take gradients or none as they did when they were saved."""

    def __post_init__(self) -> None:
        for name, one in self.data.items():
            if not has_state(one) and not _has_position(one) and not _has_epoch(one):
                raise RuleError(
                    f"{name}: a {type(one).__name__} does not say where in the data it is",
                    remedy="Wrap a DataLoader in firekeep.training.ResumableLoader (one that shuffles needs "
                    "sampler=ResumableSampler(len(dataset), seed=...) in place of shuffle=True), or give an object with state_dict().",
                )

    def section(self, *, step: int, epoch: int, unkept: Mapping[str, str]) -> Section:
        """Take all of it: numbers as scalars too, for who looks into the file. What is `unkept` has its name there, for the restore."""
        tree: dict[str, Any] = {
            "version": VERSION,
            "step": int(step),
            "epoch": int(epoch),
            "metrics": dict(self.metrics),
            "values": dict(self.values),
            "data": {name: _place_of(one) for name, one in self.data.items()},
            "facts": environment(),
            "frozen": frozen_of(self.models),
        }
        modules = {**self.models, **self.averages}
        if extra := {name: held for name, one in modules.items() if (held := torch_bridge.extra_state(one))}:
            tree["extra"] = extra
        if unkept:
            tree["unkept"] = dict(unkept)
        if self.rng:
            tree["rng"] = take_rng(self.generators)
        entries, metadata = pack(tree, key=KEY)
        scalars = {"step": Scalar.of(step), "epoch": Scalar.of(epoch), **_numbers(self.metrics)}
        return Section("state", Contents(entries=entries, metadata=metadata, scalars=scalars))

    def plan(self, opened: OpenedFile | None, restoring: Restoring) -> Planned:
        """Decide what comes back, and change nothing. A checkpoint of Burn has no such section: all of it starts as it is."""
        if opened is None or KEY not in opened.metadata:
            why = "the checkpoint does not have it"
            places = {**dict.fromkeys(self.data, why), **({"rng": why} if self.rng else {})}
            restoring.fresh |= {"step and epoch": why, **places}
            return Planned()
        tree = _checked(unpack(opened, key=KEY), opened)
        dropped: dict[str, str] = {}
        restored = self._plan_data(tree["data"], restoring, dropped)
        restoring.fresh |= {f"values[{name!r}]": _NO_VALUE for name in self.values if name not in tree["values"]}
        other_data = [f"{name}: {why}" for name in restored for why in _changes(self.data[name], tree["data"][name])]
        rng = self._plan_rng(tree.get("rng"), restoring, dropped)
        extra = self._plan_extra(tree.get("extra", {}), restoring, dropped)

        unkept = tree.get("unkept", {})
        other = list(frozen_changes(self.models, tree.get("frozen", {}), restoring))

        def put() -> None:
            self.metrics.clear()
            self.metrics.update(tree["metrics"])
            self.values.update(tree["values"])
            for name, states in extra.items():
                torch_bridge.set_extra_state({**self.models, **self.averages}[name], states)
            for one in other if self.frozen else ():
                one.undo(self.models[one.model])
            for name in restored:
                _go_to(self.data[name], tree["data"][name])
            if rng:
                put_rng(tree["rng"], self.generators)  # last, since what comes before may have drawn

        restoring.steps.append(put)
        return Planned(
            step=tree["step"],
            epoch=tree["epoch"],
            rng=rng,
            data=restored,
            values=tuple(map(str, tree["values"])),
            dropped=dropped,
            changed=(
                *other_data,
                *(told for one in other if not self.frozen for told in one.told()),
                *(f"{name} ({what}) was not kept, and is what it was made with" for name, what in unkept.items()),
                *changes(tree["facts"]),
            ),
            notes=(
                *(told for one in other if self.frozen for told in one.undone()),
                *(f"{name}: {told}" for name in restored for told in _remarks(self.data[name], tree["data"][name])),
            ),
        )

    def _plan_data(self, saved: Mapping[str, Any], restoring: Restoring, dropped: dict[str, str]) -> tuple[str, ...]:
        restored = []
        for name, one in self.data.items():
            if name not in saved:
                restoring.refuse(name, "the checkpoint has no place in the data of this name")
                continue
            try:
                _check_place(one, saved[name])
            except FirekeepError as error:
                restoring.refuse(name, f"{error.message}. {error.remedy}" if error.remedy else error.message)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                restoring.refuse(name, f"it is no state of a {type(one).__name__}: {error!r}")
            else:
                restored.append(name)
        dropped |= {name: "the state has no data of this name" for name in saved if name not in self.data}
        return tuple(restored)

    def _plan_rng(
        self, saved: Mapping[str, Any] | None, restoring: Restoring, dropped: dict[str, str]
    ) -> tuple[str, ...]:
        if not self.rng or saved is None:
            if self.rng:
                restoring.fresh["rng"] = "the checkpoint was saved without it"
            elif saved is not None:
                dropped["rng"] = "the state was made with rng=False"
            return ()
        try:
            check_rng(saved, self.generators)
        except FirekeepError as error:
            restoring.refuse("rng", error.message)
            return ()
        restored, fresh, unused = plan_rng(saved, self.generators)
        restoring.fresh |= fresh | unknown_generators(self._owners(), self.generators)
        dropped |= unused
        return restored

    def _owners(self) -> dict[str, object]:
        """Give what may have generators of its own: modules, and datasets that keep no state; a loader's follows from the epoch."""
        owners: dict[str, object] = {}
        for name, one in self.models.items():
            owners |= {f"{name}.{path}" if path else name: module for path, module in torch_bridge.modules_of(one)}
        for name, one in self.data.items():
            held, path = getattr(one, "loader", one), name
            for _ in range(_DEEP):
                held, path = getattr(held, "dataset", None), f"{path}.dataset"
                if held is None or has_state(held):
                    break
                owners[path] = held
        return owners

    def _plan_extra(
        self, saved: Mapping[str, Mapping[str, Any]], restoring: Restoring, dropped: dict[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Give modules back what they keep besides tensors; they are told apart by path, after the renames."""
        live = {name: torch_bridge.extra_state(one) for name, one in {**self.models, **self.averages}.items()}
        found: dict[str, dict[str, Any]] = {}
        for name, states in saved.items():
            renamed = restoring.rename.rename(list(states)).names
            found[name] = {renamed[path]: state for path, state in states.items()}
            gone = [path for path in found[name] if path not in live.get(name, {})]
            dropped |= {f"{name}.{path}": "no module of this name keeps an extra state" for path in gone}
        for name, states in live.items():
            missing = [path for path in states if path not in found.get(name, {})]
            restoring.fresh |= {f"{name}.{path}": "the checkpoint has no extra state of it" for path in missing}
        return {name: states for name, states in found.items() if name in live}


def _has_epoch(one: Any) -> bool:
    return callable(getattr(one, "set_epoch", None)) and isinstance(getattr(one, "epoch", None), int)


def _has_position(one: Any) -> bool:
    """Say whether it is an iterator as Grain's are."""
    return callable(getattr(one, "get_state", None)) and callable(getattr(one, "set_state", None))


def _place_of(one: Any) -> Any:
    if has_state(one):
        return dict(one.state_dict())
    return {"position": one.get_state()} if _has_position(one) else {"epoch": one.epoch}


def _check_place(one: Any, place: Any) -> None:
    if has_state(one):
        check_state(one, place)
    elif _has_position(one):
        if type(place["position"]) is not type(one.get_state()):
            raise TypeError(f"its position is a {type(place['position']).__name__}")
    else:
        int(place["epoch"])


def _changes(one: Any, place: Any) -> tuple[str, ...]:
    """Ask what is of the same state and yet other data: a ResumableLoader and its sampler know, and so may others."""
    return tuple(one.changes(place)) if has_state(one) and callable(getattr(one, "changes", None)) else ()


def _remarks(one: Any, place: Any) -> tuple[str, ...]:
    return tuple(one.remarks(place)) if has_state(one) and callable(getattr(one, "remarks", None)) else ()


def _go_to(one: Any, place: Mapping[str, Any]) -> None:
    if has_state(one):
        one.load_state_dict(place)
    elif _has_position(one):
        one.set_state(place["position"])
    else:
        one.set_epoch(place["epoch"])


def _are_names(listed: Any) -> bool:
    return isinstance(listed, list) and all(isinstance(name, str) for name in listed)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Scalar]:
    made = {}
    for name, value in metrics.items():
        try:
            scalar = Scalar.of(value)
        except ScalarError:
            continue
        if scalar.kind != "float" or math.isfinite(scalar.value):
            made[f"metric.{name}"] = scalar
    return made


def _checked(tree: dict[str, Any], opened: OpenedFile) -> dict[str, Any]:
    if isinstance(tree.get("version"), int) and tree["version"] > VERSION:
        raise FormatError(
            f"the training state has version {tree['version']}, and this firekeep knows up to {VERSION}",
            path=opened.path,
            remedy="Read it with a newer firekeep.",
        )
    parts = [name for name, kind in _PARTS.items() if not isinstance(tree.get(name), kind)]
    parts += [name for name in ("rng", "extra", "frozen", "unkept") if not isinstance(tree.get(name, {}), dict)]
    extra = tree.get("extra")
    frozen = tree.get("frozen")
    parts += ["frozen"] if isinstance(frozen, dict) and not all(map(_are_names, frozen.values())) else []
    parts += ["extra"] if isinstance(extra, dict) and not all(isinstance(one, dict) for one in extra.values()) else []
    if parts:
        raise FormatError(f"the training state is damaged: {some(parts)}", path=opened.path)
    return tree
