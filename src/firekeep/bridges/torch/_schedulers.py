"""Schedulers, gradient scalers and averages of PyTorch: their whole state as text, and Burn's counters where Burn has the schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils

from firekeep import tagged
from firekeep.bridges.torch import _burn_schedules as burn
from firekeep.errors import FirekeepError, FormatError
from firekeep.scalars import Scalar
from firekeep.schedulers import LEARNER, SchedulerError, SchedulerReport, find_level

KEY = "firekeep.scheduler"
"""The metadata key of the whole state."""

_DRIVEN = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum")
_PER_GROUP = ("base_lrs", "_last_lr", "max_lrs", "min_lrs", "base_momentums", "max_momentums", "lr_lambdas")
_TAKEN = ("_schedulers", "lr_lambdas", "_scale_fn_custom")
"""Keys that PyTorch takes out of a state without asking whether they are there."""
_COUNTERS = frozenset(
    (
        *("last_epoch", "_step_count", "_last_lr", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter"),
        *("_get_lr_called_within_step", "_is_initial", "lr_lambdas", "_scale_fn_custom"),
        *("scale", "_growth_tracker", "n_averaged"),
    )
)
"""What moves; the rest are settings."""
_DTYPES = {
    str(one).removeprefix("torch."): one for one in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
}
_DTYPES |= {str(one).removeprefix("torch."): one for one in (torch.int64, torch.int32)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What a record keeps of a scheduler: Burn's scalars, if it has such a schedule, and text for all the rest."""

    kind: str
    scalars: Mapping[str, Scalar]
    metadata: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """What is not kept, or not for Burn, and why."""


def owns(obj: object) -> bool:
    """Say whether an object is a scheduler, a gradient scaler or an averaged model."""
    known = (lr_scheduler.LRScheduler, torch.amp.GradScaler, swa_utils.AveragedModel)
    return isinstance(obj, known)


def scheduler_state(scheduler: Any) -> SchedulerState:
    """Take the state of a scheduler; see the door."""
    kind, notes = _kind(scheduler), []
    state, tensors = tagged.split_tensors(_state_of(scheduler), _is_tensor)
    groups, more = tagged.split_tensors(_driven(scheduler), _is_tensor, path="groups")
    payload = {
        "kind": kind,
        "state": state,
        "groups": groups,
        "tensors": {path: _plain(kind, path, tensor) for path, tensor in {**tensors, **more}.items()},
    }
    try:
        text = tagged.encode(payload)
    except FirekeepError as error:
        raise SchedulerError(f"the state of {kind} cannot be kept: {error.message}", remedy=error.remedy) from None
    scalars: dict[str, Scalar] = {}
    if isinstance(scheduler, lr_scheduler.LRScheduler):
        try:
            scalars = burn.scalars_of(scheduler)
        except SchedulerError as error:
            notes.append(f"not for Burn: {error.message}")
    notes += _functions(scheduler)
    return SchedulerState(kind=kind, scalars=scalars, metadata={KEY: text}, notes=tuple(notes))


def restore_scheduler(
    scheduler: Any, scalars: Mapping[str, Scalar], metadata: Mapping[str, str] | None = None
) -> SchedulerReport:
    """Bring a scheduler back; see the door."""
    held = metadata or {}
    for key in (KEY, f"{LEARNER}{KEY}"):
        if key in held:
            return _restore_whole(scheduler, held[key])
    return _restore_counters(scheduler, scalars)


# Taking


def _kind(scheduler: Any) -> str:
    if isinstance(scheduler, torch.amp.GradScaler):
        return "GradScaler"
    name = type(scheduler).__name__
    children = _children(scheduler)
    return f"{name}({', '.join(map(_kind, children))})" if children else name


def _children(scheduler: Any) -> tuple[Any, ...]:
    return tuple(getattr(scheduler, "_schedulers", ()))


def _family(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for child in _children(scheduler):
        yield from _family(child)


def _state_of(scheduler: Any) -> dict[str, Any]:
    if isinstance(scheduler, swa_utils.AveragedModel):
        return {"n_averaged": int(scheduler.n_averaged)}
    try:
        state: dict[str, Any] = scheduler.state_dict()
    except AttributeError as error:  # PyTorch looks into the __dict__ of callables, which not all have
        raise SchedulerError(
            f"{_kind(scheduler)} gives no state: {error}",
            remedy="Give it a plain function, or an object whose class keeps its state in a __dict__.",
        ) from None
    return state


def _driven(scheduler: Any) -> list[dict[str, Any]]:
    """Give what schedulers put into the groups of the optimizer: without it, none would go on as it was."""
    optimizer = getattr(scheduler, "optimizer", None)
    momentum = any(getattr(one, "cycle_momentum", False) for one in _family(scheduler))
    made = []
    for group in [] if optimizer is None else optimizer.param_groups:
        values = {key: group[key] for key in _DRIVEN if key in group}
        if momentum and "betas" in group:
            values["beta1"] = group["betas"][0]
        elif momentum and "momentum" in group:
            values["momentum"] = group["momentum"]
        made.append(values)
    return made


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _plain(kind: str, path: str, tensor: Any) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.dim() or name not in _DTYPES:
        raise SchedulerError(
            f"the state of {kind} has a tensor of {name} and shape {list(tensor.shape)} at {path!r}, and its record holds numbers only",
            remedy="Keep it as numbers (tolist()), or in the model.",
        )
    return [name, tensor.item()]


def _functions(scheduler: Any) -> list[str]:
    """Say which functions of a scheduler are code, which no file holds, or may have a state that PyTorch does not see."""
    notes = []
    for one in _family(scheduler):
        callables = [*getattr(one, "lr_lambdas", ()), getattr(one, "_scale_fn_custom", None)]
        if any(hasattr(function, "__self__") for function in callables if function is not None):
            notes.append(f"{type(one).__name__} calls a method, and the state of its object is not in the record")
    return notes


# Bringing back: the whole state


@dataclass(slots=True)
class _Sifting:
    """What a saved state is compared with: the one there is."""

    groups: int
    restored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def sift(self, scheduler: Any, saved: Any, prefix: str = "") -> dict[str, Any]:
        """Give what of a saved state the scheduler has a place for, and note the rest."""
        live = _state_of(scheduler)
        if not isinstance(saved, dict):
            self.refused.append((prefix or "state", f"{type(saved).__name__}, and no state"))
            return {}
        kept: dict[str, Any] = {}
        self.missing += [f"{prefix}{key}" for key in live if key not in saved]
        self.refused += [(f"{prefix}{key}", "not in the record") for key in _TAKEN if key in live and key not in saved]
        foreign = not type(scheduler).__module__.startswith("torch.")  # it knows itself what it takes
        for key, value in saved.items():
            name = f"{prefix}{key}"
            if key == "_schedulers" and key in live:
                children = _children(scheduler)
                parts = value if isinstance(value, list) and len(value) == len(children) else [None] * len(children)
                kept[key] = [
                    self.sift(child, part, f"{prefix}{place}.")
                    for place, (child, part) in enumerate(zip(children, parts, strict=True))
                ]
            elif key not in live and not foreign:
                self.unknown.append(name)
            else:
                self._take(scheduler, key, name, value, live.get(key), kept)
        return kept

    def _take(self, scheduler: Any, key: str, name: str, value: Any, live: Any, kept: dict[str, Any]) -> None:
        fault = self._fault(scheduler, key, value, live)
        if fault:
            self.refused.append((name, fault))
            return
        kept[key] = _like(live, value)
        self.restored.append(name)
        if key not in _COUNTERS and live is not None and not _same(kept[key], live):
            self.changed.append(
                f"{name} is {_short(kept[key])} from the record; the scheduler was built with {_short(live)}"
            )

    def _fault(self, scheduler: Any, key: str, value: Any, live: Any) -> str:
        if key in _PER_GROUP and not (isinstance(value, list) and len(value) == self.groups):
            return f"not one value for each of the optimizer's {self.groups} groups"
        if (
            key == "_milestones"
            and isinstance(live, list)
            and not (isinstance(value, list) and len(value) == len(live))
        ):
            return f"not {len(live)} milestones"
        if key == "lr_lambdas":
            return _function_fault(value, live)
        if key == "_scale_fn_custom" and live is None and value is not None:
            own = getattr(scheduler, "_scale_fn_custom", None)
            return (
                ""
                if own is None and value is None
                else "the state of an object, where this scheduler has a function or none"
            )
        own = (
            not type(scheduler).__module__.startswith("torch.") or key == "default_min_lr"
        )  # may be None now and not then
        if live is None or _fits(value, live) or (value is None and own):
            return ""
        return f"{type(value).__name__}, where {type(live).__name__} is due"


def _restore_whole(scheduler: Any, text: str) -> SchedulerReport:
    kind = _kind(scheduler)
    payload = _payload(text)
    if payload["kind"] != kind:
        why = f"the record is of {payload['kind']}, and this is {kind}"
        return SchedulerReport(scheduler=kind, source="firekeep", refused=(("kind", why),))
    optimizer = getattr(scheduler, "optimizer", None)
    live = [] if optimizer is None else optimizer.param_groups
    saved = payload["groups"]
    if len(saved) != len(live):
        why = f"the record has {len(saved)} groups of parameters, and the optimizer {len(live)}"
        return SchedulerReport(scheduler=kind, source="firekeep", refused=(("groups", why),))
    if isinstance(scheduler, torch.amp.GradScaler) and bool(payload["state"]) != scheduler.is_enabled():
        why = f"the scaler of the record was {'on' if payload['state'] else 'off'}, and this one is not"
        return SchedulerReport(scheduler=kind, source="firekeep", refused=(("enabled", why),))
    sifting = _Sifting(len(live))
    state = sifting.sift(scheduler, payload["state"])
    sifting.refused += _group_faults(saved, live)
    report = SchedulerReport(
        scheduler=kind,
        source="firekeep",
        restored=() if sifting.refused else tuple(sifting.restored),
        missing=tuple(sifting.missing),
        refused=tuple(sifting.refused),
        unknown=tuple(sifting.unknown),
        changed=() if sifting.refused else tuple(sifting.changed),
        notes=tuple(_code_notes(scheduler)),
    )
    if report.refused:
        return replace(report, notes=())
    _load(scheduler, state)
    for values, group in zip(saved, live, strict=True):
        for key, value in values.items():
            _put(group, key, value)
    return report


def _payload(text: str) -> dict[str, Any]:
    payload = tagged.decode(text)
    shape = {"kind": str, "state": dict, "groups": list, "tensors": dict}
    if not isinstance(payload, dict) or any(not isinstance(payload.get(key), kind) for key, kind in shape.items()):
        raise FormatError(f"the metadata of {KEY!r} is not the state of a scheduler")
    tensors = {path: _number(path, parts) for path, parts in payload["tensors"].items()}
    return {**payload, **{key: tagged.join_tensors(payload[key], tensors) for key in ("state", "groups")}}


def _number(path: str, parts: Any) -> Any:
    if not (isinstance(parts, list) and len(parts) == 2 and parts[0] in _DTYPES and type(parts[1]) in (int, float)):
        raise FormatError(f"{path!r} in the metadata of {KEY!r} is no tensor of one number")
    return torch.tensor(parts[1], dtype=_DTYPES[parts[0]])


def _load(scheduler: Any, state: dict[str, Any]) -> None:
    if isinstance(scheduler, swa_utils.AveragedModel):
        scheduler.n_averaged.fill_(state["n_averaged"])
    elif state or not isinstance(scheduler, torch.amp.GradScaler):
        before = dict(_state_of(scheduler))
        try:
            scheduler.load_state_dict(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            scheduler.load_state_dict(before)
            raise FormatError(f"{_kind(scheduler)} does not take the state of the record: {error}") from error


def _fits(value: Any, live: Any) -> bool:
    """Say whether a value may stand where another one does: numbers for numbers, else the same kind."""
    if _is_number(value) and _is_number(live):
        return True
    if isinstance(value, list | tuple) and isinstance(live, list | tuple):
        return not live or all(_fits(one, live[0]) for one in value)
    if isinstance(live, Counter):  # of milestones
        return isinstance(value, dict) and all(type(one) is int for one in (*value, *value.values()))
    if type(value) is dict and type(live) is dict:
        return all(_fits(value[key], live[key]) for key in value.keys() & live.keys())
    return type(value) is type(live)


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or (_is_tensor(value) and not value.dim())


def _like(live: Any, value: Any) -> Any:
    """Give a number as a tensor where there is one now, and the other way round."""
    if _is_tensor(live) and _is_number(value):
        return torch.as_tensor(value).to(dtype=live.dtype, device=live.device)
    if _is_tensor(value) and not _is_tensor(live):
        return value.item()
    if (
        isinstance(value, list)
        and isinstance(live, list)
        and live
        and (_is_tensor(live[0]) or any(map(_is_tensor, value)))
    ):
        return [_like(live[min(place, len(live) - 1)], one) for place, one in enumerate(value)]
    return value


def _same(value: Any, live: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(live, list | tuple):
        return len(value) == len(live) and all(map(_same, value, live))
    return bool(value == live)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _function_fault(value: list[Any], live: list[Any]) -> str:
    for place, (saved, own) in enumerate(zip(value, live, strict=True)):
        if saved is not None and not isinstance(saved, dict):
            return f"{type(saved).__name__} as the state of a function"
        if saved and own is None:
            return f"function {place} was an object with a state, and is a plain function now"
        if saved is None and own:
            return f"function {place} is an object with a state, and was a plain function"
    return ""


def _group_faults(saved: list[Any], live: list[dict[str, Any]]) -> list[tuple[str, str]]:
    faults = []
    for place, (values, group) in enumerate(zip(saved, live, strict=True)):
        if not isinstance(values, dict):
            faults.append((f"groups.{place}", "no values of a group"))
            continue
        for key, value in values.items():
            home = {"beta1": "betas"}.get(key, key)
            if key not in (*_DRIVEN, "momentum", "beta1") or not _is_number(value):
                faults.append((f"groups.{place}.{key}", "nothing that a scheduler puts into a group"))
            elif home not in group and key not in _DRIVEN:
                faults.append((f"groups.{place}.{key}", f"the optimizer has no {home!r}"))
    return faults


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    if key == "beta1":
        group["betas"] = (_like(group["betas"][0], value), *group["betas"][1:])
    elif _is_tensor(group.get(key)):
        group[key].fill_(value.item() if _is_tensor(value) else value)
    else:
        group[key] = value.item() if _is_tensor(value) else value


def _code_notes(scheduler: Any) -> Iterator[str]:
    for one in _family(scheduler):
        if hasattr(one, "lr_lambdas"):
            yield f"the functions of {type(one).__name__} are code: it goes on with those it was built with"


# Bringing back: Burn's counters


def _restore_counters(scheduler: Any, scalars: Mapping[str, Scalar]) -> SchedulerReport:
    kind = _kind(scheduler)
    nothing = "the record has no state of it by firekeep, nor counters by Burn"
    if not isinstance(scheduler, lr_scheduler.LRScheduler):
        return SchedulerReport(scheduler=kind, refused=(("state", nothing),), unknown=tuple(scalars))
    try:
        twin = burn.twin(scheduler)
    except SchedulerError as error:
        why = f"the record has Burn's counters alone, and {error.message}" if scalars else nothing
        return SchedulerReport(scheduler=kind, refused=(("state", why),), unknown=tuple(scalars))
    found, note = find_level(scalars, twin.to_record_scalars())
    report, rates = burn.take_scalars(scheduler, found)
    report = replace(report, scheduler=kind, notes=(note,) if note else ())
    if not report.ok:
        return report
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        _put(group, "lr", rate)
    for one in _family(scheduler):
        one._last_lr = [  # noqa: SLF001
            group["lr"].clone() if _is_tensor(group["lr"]) else group["lr"]
            for group in scheduler.optimizer.param_groups
        ]
    more = "Burn keeps no settings: it goes on with those that it was built with"
    return replace(report, notes=(*report.notes, more))
