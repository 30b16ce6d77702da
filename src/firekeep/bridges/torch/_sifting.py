"""What a scheduler's state is, and what of a saved one it has a place for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from torch.optim import swa_utils

from firekeep.schedulers import SchedulerError

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


def kind_of(scheduler: Any) -> str:
    """Name the class, with those of the schedulers inside."""
    if isinstance(scheduler, torch.amp.GradScaler):
        return "GradScaler"
    name = type(scheduler).__name__
    children = children_of(scheduler)
    return f"{name}({', '.join(map(kind_of, children))})" if children else name


def children_of(scheduler: Any) -> tuple[Any, ...]:
    """Give the schedulers that one drives."""
    return tuple(getattr(scheduler, "_schedulers", ()))


def state_of(scheduler: Any) -> dict[str, Any]:
    """Give the state as the object has it; raises `SchedulerError` where PyTorch cannot."""
    if isinstance(scheduler, swa_utils.AveragedModel):
        return {"n_averaged": int(scheduler.n_averaged)}
    try:
        state: dict[str, Any] = scheduler.state_dict()
    except AttributeError as error:  # PyTorch looks into the __dict__ of callables, which not all have
        raise SchedulerError(
            f"{kind_of(scheduler)} gives no state: {error}",
            remedy="Give it a plain function, or an object whose class keeps its state in a __dict__.",
        ) from None
    return state


def is_tensor(value: object) -> bool:
    """Tell a tensor."""
    return isinstance(value, torch.Tensor)


@dataclass(slots=True)
class Sifting:
    """What a saved state is compared with: the one there is."""

    groups: int
    restored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def sift(self, scheduler: Any, saved: Any, prefix: str = "") -> dict[str, Any]:
        """Give what of a saved state the scheduler has a place for, and note the rest."""
        live = state_of(scheduler)
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
                children = children_of(scheduler)
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
        kept[key] = made_like(live, value)
        self.restored.append(name)
        is_setting = key not in _COUNTERS and _is_setting(scheduler, key)
        if is_setting and live is not None and not _same(kept[key], live):
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


def _is_setting(scheduler: Any, key: str) -> bool:
    """Say whether a class is made with something of this name: what another attribute of a class of one's own is moves with the steps."""
    if type(scheduler).__module__.startswith("torch."):
        return True
    named = (vars(one).get("__init__") for one in type(scheduler).__mro__)
    known = {
        name for function in named if isinstance(function, FunctionType) for name in signature(function).parameters
    }
    return key == "base_lrs" or key.lstrip("_") in known


def _fits(value: Any, live: Any) -> bool:
    """Say whether a value may stand where another one does: numbers for numbers, else the same kind."""
    if is_number(value) and is_number(live):
        return True
    if isinstance(value, list | tuple) and isinstance(live, list | tuple):
        return not live or all(_fits(one, live[0]) for one in value)
    if isinstance(live, Counter):  # of milestones
        return isinstance(value, dict) and all(type(one) is int for one in (*value, *value.values()))
    if type(value) is dict and type(live) is dict:
        return all(_fits(value[key], live[key]) for key in value.keys() & live.keys())
    return type(value) is type(live)


def is_number(value: Any) -> bool:
    """Tell a number, as such or as a tensor of one."""
    return (isinstance(value, int | float) and not isinstance(value, bool)) or (is_tensor(value) and not value.dim())


def made_like(live: Any, value: Any) -> Any:
    """Give a number as a tensor where there is one now, and the other way round."""
    if is_tensor(live) and is_number(value):
        return torch.as_tensor(value).to(dtype=live.dtype, device=live.device)
    if is_tensor(value) and not is_tensor(live):
        return value.item()
    if (
        isinstance(value, list)
        and isinstance(live, list)
        and live
        and (is_tensor(live[0]) or any(map(is_tensor, value)))
    ):
        return [made_like(live[min(place, len(live) - 1)], one) for place, one in enumerate(value)]
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
