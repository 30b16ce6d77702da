"""Keras 3 on PyTorch: a model and its optimizer in one file, by the paths of their variables.

from firekeep.integrations.keras import restore_keras, save_keras
from firekeep.showing import Shown

save_keras(model, "run.bpk")
restore_keras(model, "run.bpk")  # in another process, after the same model was built and compiled
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firekeep.errors import FormatError, RuleError, UnsupportedError
from firekeep.integrations._files import load_values, save_values
from firekeep.integrations._missing import missing
from firekeep.showing import Shown
from firekeep.training._facts import changes, environment
from firekeep.training._rng import check_rng, put_rng, take_rng
from firekeep.wording import count, some

try:
    import keras
    import torch
except ModuleNotFoundError as error:
    raise missing("keras", error) from None

__all__ = ["KerasRestored", "restore_keras", "save_keras"]

KEY = "firekeep.keras"
PARTS = ("model", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KerasRestored(Shown):
    """What was restored: how many variables of which part, and what else decides the bits of a result and is another now."""

    model: int
    optimizer: int
    rng: bool
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f"{count(self.model, 'variable')} of the model, {count(self.optimizer, 'variable')} of the optimizer restored"
        return "\n".join((told, *(f"  {line}" for line in self.changed)))


def save_keras(model: Any, path: str | os.PathLike[str], *, rng: bool = True, durable: bool = True) -> Path:
    """Write all variables of a model and of its optimizer to a burnpack file, whole or not at all, and give its path.

    That is `model.variables` (weights, running statistics, seeds of dropout layers) and `optimizer.variables` (moments, iterations, the
    rate), each by its path, and the random generators of Python, NumPy and PyTorch unless `rng=False`. Raises `RuleError` where two
    variables have one path.

    Example:
        >>> save_keras(model, "run.bpk")  # doctest: +SKIP
    """
    tree: dict[str, Any] = {
        part: {name: variable.value.detach() for name, variable in held.items()}
        for part, held in _variables(model).items()
    }
    tree["facts"] = environment()
    if rng:
        tree["rng"] = take_rng({})
    return save_values(tree, path, key=KEY, durable=durable)


def restore_keras(
    model: Any, path: str | os.PathLike[str], *, rng: bool = True, optimizer: bool = True
) -> KerasRestored:
    """Put the variables of a file into a model and its optimizer, all or none, and say how many they were.

    Build and compile the model first, as it was; paths must be equal. Keras counts layers without a name through a process: where a
    second model gets other paths than the first, give the layers names or call `keras.utils.clear_session()` before it.
    `optimizer=False` takes the model alone. Raises `RuleError` naming the variables that are not in the file, are in the file alone,
    or have another shape or dtype.

    Example:
        >>> restore_keras(model, "run.bpk")  # doctest: +SKIP
    """
    tree, _ = load_values(
        path, key=KEY, what="a model that save_keras wrote", remedy="Keras reads its own .keras files."
    )
    if not all(isinstance(tree.get(part), dict) for part in (*PARTS, "facts")):
        raise FormatError("there are no variables of Keras in it", path=path)
    live = _variables(model)
    if not optimizer:
        live["optimizer"] = {}
    faults = [fault for part, held in live.items() if held for fault in _faults(part, held, tree[part])]
    if faults:
        raise RuleError(
            f"{count(len(faults), 'variable')} cannot be restored: {'; '.join(faults[:5])}{'; ...' if len(faults) > 5 else ''}",
            path=path,
            remedy="Build and compile the model as it was when it was saved; where only numbers in paths differ, call "
            "keras.utils.clear_session() before it is made.",
        )
    if rng and "rng" in tree:
        check_rng(tree["rng"], {})
    with torch.no_grad():
        for part, held in live.items():
            for name, variable in held.items():
                variable.value.copy_(tree[part][name])
    if rng and "rng" in tree:
        put_rng(tree["rng"], {})
    return KerasRestored(
        model=len(live["model"]),
        optimizer=len(live["optimizer"]),
        rng=rng and "rng" in tree,
        changed=changes(tree["facts"]),
    )


def _variables(model: Any) -> dict[str, dict[str, Any]]:
    """Give all variables by part and path; the optimizer makes its own now if it has not yet."""
    if keras.backend.backend() != "torch":
        raise UnsupportedError(
            f"the backend of Keras is {keras.backend.backend()}, and this keeps models of PyTorch",
            remedy="Set KERAS_BACKEND=torch before keras is imported.",
        )
    if not model.built:
        raise RuleError(
            f"the model {model.name!r} has no variables yet",
            remedy="Call model.build(...) or the model on a batch first.",
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    return {"model": _by_path(model.variables), "optimizer": _by_path([] if optimizer is None else optimizer.variables)}


def _by_path(variables: list[Any]) -> dict[str, Any]:
    distinct = list({id(one): one for one in variables}.values())
    seen = Counter(one.path for one in distinct)
    if twice := [name for name, times in seen.items() if times > 1]:
        raise RuleError(f"several variables have the path {some(twice)}", remedy="Give each layer a name of its own.")
    return {one.path: one for one in distinct}


def _faults(part: str, held: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    def fault(name: str) -> str | None:
        if name not in saved:
            return "is not in the file"
        if name not in held:
            return f"is not in the {part}"
        old, new = saved[name], held[name].value
        if not isinstance(old, torch.Tensor) or old.shape != new.shape or old.dtype != new.dtype:
            return f"is {_told(new)}, and {_told(old)} in the file"
        return None

    return [f"{name} {why}" for name in (*held, *(name for name in saved if name not in held)) if (why := fault(name))]


def _told(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
