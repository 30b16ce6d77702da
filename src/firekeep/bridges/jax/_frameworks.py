"""Classes of Flax and Equinox, as far as they are imported: who has an object of one has imported it."""

from __future__ import annotations

import sys
from typing import Any

_BUILT_IN = frozenset((dict, list, tuple, str, int, float, bool, type(None)))


def known_class(module: str, name: str) -> type[Any] | None:
    """Give a class by the module it is found in, or None where nobody has imported that."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def is_a(value: object, module: str, *names: str) -> bool:
    """Say whether a value is of one of some classes."""
    if type(value) in _BUILT_IN:  # as most are
        return False
    return any((cls := known_class(module, name)) is not None and isinstance(value, cls) for name in names)


def is_variable(value: object) -> bool:
    """Tell a variable of `flax.nnx`."""
    return is_a(value, "flax.nnx", "Variable")


def is_nnx_object(value: object) -> bool:
    """Tell what has variables as attributes: modules of `flax.nnx`, their lists and dicts, optimizers, streams of random numbers."""
    return is_a(value, "flax.nnx", "Pytree", "Object")


def is_nnx_state(value: object) -> bool:
    """Tell a state of `flax.nnx`: nested names of variables, apart from their modules."""
    return is_a(value, "flax.nnx", "State")


def is_equinox(value: object) -> bool:
    """Tell a module of Equinox."""
    return is_a(value, "equinox", "Module")


def is_equinox_state(value: object) -> bool:
    """Tell what stateful layers of Equinox keep, apart from their modules."""
    return is_a(value, "equinox.nn", "State")


def is_frozen(value: object) -> bool:
    """Tell a FrozenDict, whose dicts further in are plain ones that nobody may change either."""
    return is_a(value, "flax.core.frozen_dict", "FrozenDict")


def is_struct(value: object) -> bool:
    """Tell a dataclass of `flax.struct`, as `TrainState` is."""
    return hasattr(type(value), "_flax_dataclass")


_SWITCHES = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")


def facts() -> dict[str, str | int | float | bool]:
    """Give the version of JAX and its switches; no device is asked for."""
    jax: Any = sys.modules["jax"]
    found: dict[str, str | int | float | bool] = {"jax": str(jax.__version__)}
    for name in _SWITCHES:
        if (value := getattr(jax.config, name, None)) is not None:
            found[name] = value if isinstance(value, bool | int | float) else str(value)
    return found
