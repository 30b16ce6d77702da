"""JAX: pytrees of arrays, `flax.nnx` modules and states, Linen variables, Equinox modules. JAX is imported when one of them is there.

Names are the keys, indices and attributes on the way to an array, joined with dots. A typed PRNG key is stored as its numbers, under a
name that ends in the name of its implementation (`rngs.key.threefry2x32`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from firekeep.bridges._protocol import Filling
from firekeep.bridges._states import OptimizerState, Restoration
from firekeep.bridges.jax._variables import Variables
from firekeep.entry import TensorEntry
from firekeep.slots import Constants, Outline

__all__ = [
    "Variables",
    "array_entry",
    "array_kind",
    "array_of",
    "changes_in_place",
    "constants",
    "describe_optimizer",
    "entries",
    "facts",
    "fill",
    "filled",
    "name",
    "numbers",
    "outline",
    "outline_anew",
    "owns",
    "owns_array",
    "owns_optimizer",
    "restore_optimizer",
    "unplaced",
    "weakened",
    "why_hollow",
]

name = "jax"


def owns(obj: object) -> bool:
    """Take objects of Flax and Equinox, and containers with an array of JAX in them, or the shape of one, and none of PyTorch's.

    What is known to hold no tensors, as a module of Linen, is taken too, to be refused with what to give instead.
    """
    if "jax" not in sys.modules:  # who gives an array of JAX has it imported
        return False
    from firekeep.bridges.jax import _hollow, _owns

    return isinstance(obj, Variables) or _hollow.is_hollow(obj) or _owns.owns(obj)


def outline(obj: Any) -> Outline:
    """Describe the places of all arrays of an object, which may be shapes only.

    A place in a container that never changes (a tuple, a dataclass that is frozen) has a `problem` unless something around it takes
    another container in its place.
    """
    from firekeep.bridges.jax import _describe

    if isinstance(obj, Variables):
        return obj.described(_describe.outline(obj.tree, anew=False))
    return _describe.outline(obj, anew=False)


def outline_anew(obj: Any) -> Outline:
    """Describe the places of all arrays for `filled`, which makes another object: whether its containers ever change plays no part."""
    from firekeep.bridges.jax import _describe

    if isinstance(obj, Variables):
        return obj.described(_describe.outline(obj.tree, anew=True))
    return _describe.outline(obj, anew=True)


def entries(obj: Any) -> list[TensorEntry]:
    """Describe the arrays of an object, without copying any: those on a device are fetched when they are drawn."""
    from firekeep.bridges.jax import _describe

    return obj.called(_describe.entries(obj.tree)) if isinstance(obj, Variables) else _describe.entries(obj)


def numbers(obj: Any) -> frozenset[str]:
    """Name the places of an object that are numbers of Python's, and no arrays: they have no width."""
    from firekeep.bridges.jax import _describe

    return frozenset() if isinstance(obj, Variables) else _describe.numbers(obj)


def constants(obj: Any) -> list[Constants]:
    """Tell what the parts of the object compute with beside their tensors; see `Bridge.constants`."""
    from firekeep.bridges.jax import _constants

    return _constants.constants(obj.tree if isinstance(obj, Variables) else obj)


def fill(obj: Any, fillings: Sequence[Filling], done: list[str]) -> None:
    """Put tensors into an object as new arrays, each on the devices of the one it replaces; see `Bridge.fill`.

    Variables, modules of `flax.nnx`, dicts and lists are given the new arrays; containers that never change are replaced in what is
    around them, once all is read.
    """
    from firekeep.bridges.jax import _fill

    if not isinstance(obj, Variables):
        _fill.fill(obj, fillings, done)
        return
    own: list[str] = []
    try:
        _fill.fill(obj.tree, obj.own(fillings), own)
    finally:
        obj.finished(own, done)


def filled(obj: Any, fillings: Sequence[Filling], done: list[str]) -> Any:
    """Make an object like another, with tensors in it; the other stays as it is, and arrays that are not given are in both."""
    from firekeep.bridges.jax import _fill

    if not isinstance(obj, Variables):
        return _fill.filled(obj, fillings, done)
    own: list[str] = []
    made = _fill.filled(obj.tree, obj.own(fillings), own)
    obj.finished(own, done)
    return made


def owns_optimizer(obj: object) -> bool:
    """Take optimizers of `flax.nnx`, and trees with states of optax or arrays of JAX in them."""
    if "jax" not in sys.modules:
        return False
    from firekeep.bridges.jax import _optax

    return _optax.owns_optimizer(obj)


def changes_in_place(optimizer: Any) -> bool:
    """Say whether a state is put into the optimizer itself, as into one of `flax.nnx`; of a state of optax another one is made."""
    from firekeep.bridges.jax import _optax

    return _optax.changes_in_place(optimizer)


def describe_optimizer(optimizer: Any, model: Any, tx: Any = None) -> OptimizerState:
    """Describe what an optimizer keeps, by the names of the parameters; nothing is copied.

    `model` is what the optimizer's `init` was given, or a model with the same names. What means the same as in PyTorch has PyTorch's key;
    all else is called by the class and field that it is in. What belongs to no parameter is in `extra`. `tx` tells options.
    """
    from firekeep.bridges.jax import _optax

    if isinstance(model, Variables):
        return model.moved(_optax.describe_optimizer(optimizer, model.tree, tx))
    return _optax.describe_optimizer(optimizer, model, tx)


def restore_optimizer(optimizer: Any, model: Any, restoration: Restoration) -> Any:
    """Put states into an optimizer of `flax.nnx`, or make another state of optax; what is not given stays as it is."""
    from firekeep.bridges.jax import _optax

    if isinstance(model, Variables):
        return _optax.restore_optimizer(optimizer, model.tree, model.back(restoration))
    return _optax.restore_optimizer(optimizer, model, restoration)


def why_hollow(obj: object) -> tuple[str, str] | None:
    """Say what an object is that is known to hold no tensors (a Linen module, a GraphDef), and what to give instead."""
    if "jax" not in sys.modules:
        return None
    from firekeep.bridges.jax import _hollow

    return _hollow.why_hollow(obj)


def unplaced(optimizer: Any, model: Any) -> str | None:
    """Say which shape in an optimizer has a sharding that tells no devices, where the model has none of them either, or None."""
    from firekeep.bridges.jax import _optax

    return _optax.unplaced(optimizer, model)


def owns_array(obj: object) -> bool:
    """Say whether it is one array of JAX, or a typed key."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(obj, getattr(jax, "Array", ()))


def array_kind(array: Any) -> str:
    """Name the implementation of a typed key; "" for any other array."""
    from firekeep.bridges.jax import _leaves

    return _leaves.key_suffix(array) or ""


def array_entry(name: str, array: Any) -> TensorEntry:
    """Describe one array without copying it, a typed key as its numbers; raises `UnsupportedError` for one without values."""
    from firekeep.bridges.jax import _leaves

    entry = _leaves.describe(name, array)
    entry.require()
    return entry


def array_of(entry: TensorEntry, kind: str) -> Any:
    """Make an array, or a typed key of an implementation; raises `UnsupportedError` for a dtype that JAX would narrow."""
    from firekeep.bridges.jax import _making

    return _making.make_alone(entry, kind)


def weakened(array: Any) -> Any:
    """Give an array whose dtype gives way to those that it is computed with, as that of a Python number does, where JAX makes such."""
    from firekeep.bridges.jax import _making

    return _making.weakened(array)


def facts() -> dict[str, str | int | float | bool]:
    """Give the version of JAX and the switches that decide the bits of a result."""
    from firekeep.bridges.jax import _frameworks

    return _frameworks.facts()
