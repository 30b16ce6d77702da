"""Schedulers, gradient scalers and averages of PyTorch: their whole state as text, and Burn's counters where Burn has the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils

from firekeep import tagged
from firekeep.bridges.torch import _burn_schedules as burn
from firekeep.bridges.torch._sifting import Sifting, children_of, is_number, is_tensor, kind_of, made_like, state_of
from firekeep.errors import FirekeepError, FormatError
from firekeep.scalars import Scalar
from firekeep.schedulers import LEARNER, SchedulerError, SchedulerReport, find_level

KEY = "firekeep.scheduler"
"""The metadata key of the whole state."""

_DRIVEN = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum")
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
    kind, notes = kind_of(scheduler), []
    state, tensors = tagged.split_tensors(state_of(scheduler), is_tensor)
    groups, more = tagged.split_tensors(_driven(scheduler), is_tensor, path="groups")
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


def _family(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for child in children_of(scheduler):
        yield from _family(child)


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


def _restore_whole(scheduler: Any, text: str) -> SchedulerReport:
    kind = kind_of(scheduler)
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
    sifting = Sifting(len(live))
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
        before = dict(state_of(scheduler))
        try:
            scheduler.load_state_dict(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            scheduler.load_state_dict(before)
            raise FormatError(f"{kind_of(scheduler)} does not take the state of the record: {error}") from error


def _group_faults(saved: list[Any], live: list[dict[str, Any]]) -> list[tuple[str, str]]:
    faults = []
    for place, (values, group) in enumerate(zip(saved, live, strict=True)):
        if not isinstance(values, dict):
            faults.append((f"groups.{place}", "no values of a group"))
            continue
        for key, value in values.items():
            home = {"beta1": "betas"}.get(key, key)
            if key not in (*_DRIVEN, "momentum", "beta1") or not is_number(value):
                faults.append((f"groups.{place}.{key}", "nothing that a scheduler puts into a group"))
            elif home not in group and key not in _DRIVEN:
                faults.append((f"groups.{place}.{key}", f"the optimizer has no {home!r}"))
    return faults


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    if key == "beta1":
        group["betas"] = (made_like(group["betas"][0], value), *group["betas"][1:])
    elif is_tensor(group.get(key)):
        group[key].fill_(value.item() if is_tensor(value) else value)
    else:
        group[key] = value.item() if is_tensor(value) else value


def _code_notes(scheduler: Any) -> Iterator[str]:
    for one in _family(scheduler):
        if hasattr(one, "lr_lambdas"):
            yield f"the functions of {type(one).__name__} are code: it goes on with those it was built with"


# Bringing back: Burn's counters


def _restore_counters(scheduler: Any, scalars: Mapping[str, Scalar]) -> SchedulerReport:
    kind = kind_of(scheduler)
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
            group["lr"].clone() if is_tensor(group["lr"]) else group["lr"] for group in scheduler.optimizer.param_groups
        ]
    more = "Burn keeps no settings: it goes on with those that it was built with"
    return replace(report, notes=(*report.notes, more))
