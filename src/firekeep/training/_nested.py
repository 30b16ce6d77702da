"""Nested values with arrays and tensors in them as what a file holds, and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from firekeep.bridges import jax
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, FormatError
from firekeep.opened import OpenedFile
from firekeep.tagged import decode, encode, join_tensors, split_tensors
from firekeep.tensors import describe


def pack(tree: Mapping[str, Any], *, key: str) -> tuple[list[TensorEntry], dict[str, str]]:
    """Give values as entries, named by the keys that lead to them, and text under one metadata key; nothing is copied.

    Raises `UnsupportedError` naming the place of a value that is neither plain nor a tensor.
    """
    skeleton, found = split_tensors(dict(tree), is_tensor)
    ours = {path: jax.array_kind(tensor) for path, tensor in found.items() if jax.owns_array(tensor)}
    entries = [
        jax.array_entry(path, tensor) if path in ours else describe(path, tensor) for path, tensor in found.items()
    ]
    kinds = {path: "torch" for path, tensor in found.items() if _is_torch(tensor)}
    weak = sorted(path for path in ours if getattr(found[path], "weak_type", False))  # whose dtype gives way
    told = {"jax": ours} if ours else {}
    text = encode({"values": skeleton, "torch": sorted(kinds), **told, **({"weak": weak} if weak else {})})
    return entries, {key: text}


def unpack(opened: OpenedFile, *, key: str) -> dict[str, Any]:
    """Give the values back, each tensor in memory of its own: of the kind it had, on the CPU.

    Arrays of JAX go to its default device. Raises `FormatError` where the file does not hold them.
    """
    told = decode(opened.metadata[key])
    if (
        not isinstance(told, dict)
        or not isinstance(told.get("values"), dict)
        or not isinstance(told.get("torch"), list)
    ):
        raise FormatError(f"the metadata of {key!r} is not what a training state writes", path=opened.path)
    torch = frozenset(name for name in told["torch"] if isinstance(name, str))
    kinds = told.get("jax", {})
    ours = {name: kind for name, kind in kinds.items() if isinstance(kind, str)} if isinstance(kinds, dict) else {}
    try:
        tensors = {
            name: jax.array_of(entry, ours[name]) if name in ours else _tensor(entry, torch=name in torch)
            for name, entry in opened.entries.items()
        }
        weak = told.get("weak", ())
        tensors |= {
            name: jax.weakened(tensors[name]) for name in (weak if isinstance(weak, list) else ()) if name in ours
        }
        made = join_tensors(told["values"], tensors)
    except FirekeepError as error:
        raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place
    assert isinstance(made, dict)  # noqa: S101 - it was one before tensors were put into it
    return made


def is_tensor(value: object) -> bool:
    """Say whether a value is kept among the tensors: arrays of NumPy and of frameworks, and no scalars of NumPy."""
    numpy: Any = sys.modules.get("numpy")  # who gives an array has it imported
    if numpy is not None and isinstance(value, numpy.generic):
        return False
    if jax.owns_array(value):
        return True
    kept = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
    return kept and hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)


def _is_torch(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor(entry: TensorEntry, *, torch: bool) -> object:
    if torch:
        from firekeep.bridges import torch as bridge

        return bridge.tensor_of(entry)
    from firekeep.arrays import as_array

    return as_array(entry).copy()
