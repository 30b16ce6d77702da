"""Whole models: objects that are modules by what was set on them, not by their class.

`torch.nn.Module` pickles its `__dict__`; an object whose state has the dicts `_parameters`, `_buffers` and `_modules` is one, whatever
its class is called and wherever its code went. TorchScript pickles attributes by name under classes of `__torch__`; which
of them are parameters stands in the archive's code (see `_script`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from firekeep.formats.pytorch._inert import Call, Global, InertSet

_TABLES = ("_parameters", "_buffers", "_modules")
_MOST_WRAPPED = 16
"""How often one model is compiled within another, at most: objects of a pickle may hold each other."""
_NEVER_WALKED = frozenset((*_TABLES, "_non_persistent_buffers_set", "training", "_backend"))


class ScriptClasses(Protocol):
    """What a TorchScript archive's code says of its classes."""

    def describe(self, cls: Global) -> tuple[tuple[str, ...], tuple[str, ...] | None] | None:
        """Give the parameters and buffers of a module's class (None for buffers not told), or None for another class."""
        ...


_COMPILED = ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod")


def without_compile(value: Any) -> Any:
    """Give the model that `torch.compile` has put into a module of its own, and anything else as it is.

    That module's `state_dict()` calls the model `_orig_mod`, its pickle keeps it as an argument of its class, an older one among the
    module's children.
    """
    place, name, child = _COMPILED
    for _ in range(_MOST_WRAPPED):
        if (
            type(value) is not Call
            or type(value.func) is not Global
            or (value.func.module, value.func.name) != (place, name)
        ):
            break
        state = module_state(value)
        inner = state["_modules"].get(child) if state is not None else next(iter(value.args), None)
        if type(inner) is not Call:
            break
        value = inner
    return value


def state_parts(state: Any) -> Iterator[dict[Any, Any]]:
    """Give the dicts of an object's state: `__dict__`, and the slots beside it."""
    if isinstance(state, dict):
        yield state
    elif type(state) is tuple and len(state) == 2 and all(part is None or isinstance(part, dict) for part in state):
        yield from (part for part in state if part)


def module_state(call: Call) -> dict[Any, Any] | None:
    """Give the state of a module, or None for another object."""
    for part in state_parts(call.state):
        if all(isinstance(part.get(table), dict) for table in _TABLES):
            return part
    return None


def module_tensors(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Give what `state_dict()` gives: parameters, then persistent buffers, then children. None is left out."""
    hidden = state.get("_non_persistent_buffers_set")
    left_out = {name for name in hidden.elements if type(name) is str} if type(hidden) is InertSet else set()
    for table in _TABLES:
        for name, value in state[table].items():
            if value is not None and not (table == "_buffers" and name in left_out):
                yield name, value


def module_attributes(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Give everything else that was set on a module: no part of its state dict."""
    for name, value in state.items():
        if name not in _NEVER_WALKED and not (type(name) is str and name.endswith("_hooks")):
            yield name, value


def is_scripted(call: Call) -> bool:
    """Tell an object of a TorchScript class."""
    return (
        type(call.func) is Global and call.func.module.split(".", 1)[0] == "__torch__" and isinstance(call.state, dict)
    )


def script_tensors(
    call: Call, classes: ScriptClasses | None
) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]] | None:
    """Sort the attributes of a TorchScript module into its state dict's and the others; None for an object that is no module."""
    state: dict[Any, Any] = call.state
    if classes is None:
        return list(state.items()), []
    told = classes.describe(call.func)
    if told is None:
        return None
    parameters, buffers = told
    children = [name for name, value in state.items() if type(value) is Call and is_scripted(value)]
    if buffers is None:
        known = {*parameters, *children}
        buffers = tuple(name for name in state if name not in known)
    names = [name for name in (*parameters, *buffers, *children) if state.get(name) is not None]
    chosen = set(names)
    return [(name, state[name]) for name in dict.fromkeys(names)], [(k, v) for k, v in state.items() if k not in chosen]
