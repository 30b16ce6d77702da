"""Ids of parameters, kept beside the modules they hang in.

A parameter itself cannot carry one: `to_empty` and `load_state_dict(assign=True)` put another object in its place, an attribute changes
what `torch.save` writes, and a weak reference keeps `torch.utils.swap_tensors` from working. A module takes weak references, and the
name of a parameter in it stays. A copy of a module is another module: its parameters get ids of their own.
"""

from __future__ import annotations

import weakref
from functools import partial

from torch import nn

from firekeep.ids import ParamId

# By identity: a class of modules may say what equality means to it, and so have no hash.
_KNOWN: dict[int, tuple[weakref.ref[nn.Module], dict[str, ParamId]]] = {}


def recall(module: nn.Module, name: str) -> ParamId | None:
    """Give the id of a parameter or buffer of this module, or None where it has none yet."""
    held = _KNOWN.get(id(module))
    return None if held is None else held[1].get(name)


def remember(module: nn.Module, name: str, param_id: ParamId) -> None:
    """Give a parameter or buffer of this module an id."""
    key = id(module)
    held = _KNOWN.get(key)
    if held is None:
        held = _KNOWN[key] = (weakref.ref(module, partial(_forget, key)), {})
    held[1][name] = param_id


def _forget(key: int, gone: weakref.ref[nn.Module]) -> None:
    held = _KNOWN.get(key)
    if held is not None and held[0] is gone:
        del _KNOWN[key]
