"""Kinds of layers read off names and shapes alone, of two files that hold one model; never guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.slots import Layer

_SHOWN = 5
_NORM = {"weight": "gamma", "bias": "beta"}


def layers_from_like(torch: Sequence[TensorEntry], burn: Sequence[TensorEntry]) -> tuple[Layer, ...]:
    """Tell from a Burn file which tensors of a bare PyTorch state dict lie another way round there, as layers in PyTorch's names.

    Both must hold the same model under the same names, but for gamma and beta, alpha. Raises `RuleError`, naming the tensors, where
    the shapes do not tell: a square one, one of two axes that the Burn file has not, and one of another shape.
    """
    there = {entry.name: entry.shape for entry in burn}
    found: dict[str, Layer] = {}
    unclear: dict[str, str] = {}
    for entry in torch:
        path, _, role = entry.name.rpartition(".")
        try:
            kind = _kind(entry.shape, path, role, there)
        except RuleError as error:
            unclear[entry.name] = error.message
            continue
        if kind is not None:
            found.setdefault(path, Layer(kind=kind, path=path))
    if unclear:
        raise _refusal(unclear)
    return tuple(found.values())


def _kind(shape: tuple[int, ...], path: str, role: str, there: Mapping[str, tuple[int, ...]]) -> str | None:
    """Give the kind of layer that a tensor shows its layer to be, None where it shows nothing."""
    same = there.get(_named(path, role))
    other, kind = _other_spelling(path, role, there)
    if same is None and other is not None:
        if other != shape:
            raise RuleError(f"its shape is {list(shape)}, and {list(other)} in the Burn file")
        return kind
    if same is None:
        if len(shape) == 2:
            raise RuleError(f"the Burn file has no tensor of its name, and its shape {list(shape)} may lie either way")
        return None
    if len(shape) != 2:
        if same != shape:
            raise RuleError(f"its shape is {list(shape)}, and {list(same)} in the Burn file")
        return None
    if shape[0] == shape[1] == same[0] and same == shape:
        raise RuleError(f"its shape {list(shape)} is square, and looks the same either way")
    if same == shape:
        return "embedding" if role == "weight" else None
    if same == shape[::-1] and role == "weight":
        return "linear"
    raise RuleError(f"its shape is {list(shape)}, and {list(same)} in the Burn file")


def _other_spelling(
    path: str, role: str, there: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...] | None, str | None]:
    if role in _NORM and (norm := there.get(_named(path, _NORM[role]))) is not None:
        return norm, "batch_norm" if _named(path, "running_mean") in there else "layer_norm"
    if role == "weight" and (slope := there.get(_named(path, "alpha"))) is not None:
        return slope, "prelu"
    return None, None


def _named(path: str, role: str) -> str:
    return f"{path}.{role}" if path else role


def _refusal(unclear: Mapping[str, str]) -> RuleError:
    shown = "; ".join(f"{name!r}: {reason}" for name, reason in list(unclear.items())[:_SHOWN])
    more = f"; and {len(unclear) - _SHOWN} more" if len(unclear) > _SHOWN else ""
    return RuleError(
        f"which way round a tensor lies cannot be told from the shapes: {shown}{more}",
        remedy="Give the model itself, whose layers say it, or leave the tensor out with exclude.",
    )
