"""What a transformation of optax does, read from the functions it is made of: its state tells neither a rate nor NAdam from Adam."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

_KEPT: Mapping[str, tuple[str, ...]] = {
    "scale_by_adam": ("b1", "b2", "eps", "eps_root", "nesterov"),
    "scale_by_amsgrad": ("b1", "b2", "eps", "eps_root"),
    "scale_by_lion": ("b1", "b2"),
    "scale_by_rss": ("eps",),
    "scale_by_rms": ("decay", "eps", "eps_in_sqrt"),
    "scale_by_stddev": ("decay", "eps", "eps_in_sqrt"),
    "add_decayed_weights": ("weight_decay",),
}
_DEEPEST = 40


def options_of(tx: Any) -> dict[str, Any]:
    """Give the options that can be told: `learning_rate` only where it is constant, `momentum` of traces and of Muon.

    `trust_ratio` is there where the steps of layers are scaled by their norms, as LAMB's are.
    """
    found: dict[str, Any] = {}
    for head, variables in _heads(tx, 0, set()):
        for name in _KEPT.get(head, ()):
            _keep(found, name, variables.get(name))
        if head == "trace":
            _keep(found, "momentum", variables.get("decay"))
            _keep(found, "nesterov", variables.get("nesterov"))
        elif head == "scale_by_muon":
            _keep(found, "momentum", variables.get("beta"))
        elif head == "scale" and isinstance(step := variables.get("step_size"), int | float) and step < 0:
            _keep(found, "learning_rate", -step)
        elif head == "scale_by_trust_ratio":
            found["trust_ratio"] = True
        elif head == "scale_by_schedule":
            found["scheduled"] = True
    if "scheduled" in found:
        found.pop("learning_rate", None)
    return found


def _keep(found: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, bool | int | float):
        found.setdefault(name, value)


def _heads(value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the name of each factory whose inner function is found, and the variables that it closes over."""
    if depth > _DEEPEST or id(value) in seen:
        return
    seen.add(id(value))
    below: list[Any] = []
    if inspect.isfunction(value):
        if value.__closure__ is None:
            return
        variables = dict(zip(value.__code__.co_freevars, (_held(cell) for cell in value.__closure__), strict=True))
        head, local, _ = value.__qualname__.partition(".<locals>")
        if local and value.__name__ in ("update_fn", "update"):
            yield head, variables
        below = list(variables.values())
    elif inspect.ismethod(value):
        below = [value.__self__]
    elif isinstance(value, functools.partial):
        below = [value.func, *value.args, *value.keywords.values()]
    elif type(value).__module__.startswith("optax") and hasattr(value, "update"):
        below = [value.update, *(vars(value).values() if hasattr(value, "__dict__") else ())]
    elif isinstance(value, tuple | list):
        below = list(value)
    elif isinstance(value, dict):
        below = list(value.values())
    for one in below:
        yield from _heads(one, depth + 1, seen)


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
