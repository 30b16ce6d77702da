"""What is no model and no optimizer, though its name suggests it: told when the state is made, not after an epoch."""

from __future__ import annotations

import os
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from firekeep.bridges import jax
from firekeep.errors import RuleError

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_WRAPPED = ("PjitFunction", "custom_jvp", "custom_vjp")
"""Classes of what JAX makes of a function."""


def check_kind(name: str, one: Any) -> None:
    """Raise `RuleError`, saying what to give instead, for what is known to hold no tensor: it would be saved as nothing."""
    if (why := _why(one)) is not None:
        told, remedy = why
        raise RuleError(f"{name}: {told}", remedy=remedy)


def check_schedule(name: str, one: Any) -> None:
    """Raise `RuleError` for a schedule that is a function of the step, as those of optax are: it has no state."""
    if isinstance(one, _FUNCTIONS) or type(one).__name__ in _WRAPPED:
        raise RuleError(
            f"{name}: a schedule that is a function of the step has no state",
            remedy="Leave it out: as part of tx it goes on by the count in the optimizer's state.",
        )


def _why(one: Any) -> tuple[str, str] | None:
    if isinstance(one, type):
        return f"{one.__qualname__} is a class, and holds no tensors", f"Give an object of it: {one.__name__}(...)."
    if isinstance(one, _FUNCTIONS) or type(one).__name__ in _WRAPPED:
        what = getattr(one, "__qualname__", "it")
        return f"{what} is a function, and holds no tensors", "Give the object whose tensors are to be kept."
    if isinstance(one, str | os.PathLike):
        remedy = "Give the model itself; firekeep.load_into(model, path) puts a file into it."
        return f"{os.fspath(one)!r} is a path, and no object with tensors", remedy
    return jax.why_hollow(one)
