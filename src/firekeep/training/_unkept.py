"""What a state's objects hold and nobody keeps: told at a save, once, by name."""

from __future__ import annotations

import warnings
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from firekeep.bridges import torch as torch_bridge
from firekeep.callers import levels_outside
from firekeep.collecting import LeftOutWarning
from firekeep.wording import count, quote

_SHOWN = 4
_FIRST: WeakKeyDictionary[Any, dict[str, Hashable]] = WeakKeyDictionary()
"""Numbers that hang on objects, as they were when a state first had these: what is still so is a setting."""


class Unkept:
    """Watches the optimizers and schedules of one state, and tells what a restore would not bring back."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def find(self, optimizers: Mapping[str, Any], schedules: Mapping[str, Any]) -> dict[str, str]:
        """Name what hangs on them, with what it is: tensors, and numbers that have changed since they were first looked at."""
        kept = frozenset(map(id, optimizers.values()))
        found: dict[str, str] = {}
        for name, one in optimizers.items():
            if torch_bridge.owns_optimizer(one) and hasattr(one, "__dict__"):
                found |= _moving(name, one, torch_bridge.beside_optimizer(one, kept=kept))
        for name, one in schedules.items():
            if torch_bridge.schedules(one):
                found |= _moving(name, one, torch_bridge.beside_schedule(one))
        return found

    def tell(self, found: Mapping[str, str]) -> None:
        """Warn whoever called the save, but for names that were told before."""
        new = {name: what for name, what in found.items() if name not in self._told}
        if not new:
            return
        self._told.update(new)
        shown = ", ".join(f"{quote(name)} ({what})" for name, what in list(new.items())[:_SHOWN])
        more = f" and {len(new) - _SHOWN:,} more" if len(new) > _SHOWN else ""
        warnings.warn(
            f"{count(len(new), 'value')} of the state {'is' if len(new) == 1 else 'are'} not kept, and a restored run goes on with what "
            f"its objects are made with: {shown}{more}. {_remedies(new)}",
            LeftOutWarning,
            stacklevel=levels_outside("firekeep"),
        )


def not_in(values: Container[str], found: Mapping[str, str]) -> dict[str, str]:
    """Leave out what a user keeps among the values, under its name with the part that it is of or without."""
    return {name: what for name, what in found.items() if name not in values and name.partition(".")[2] not in values}


def _remedies(names: Iterable[str]) -> str:
    """Say what to do, once for all that the same helps."""
    said: dict[str, str] = {}
    for name in names:
        part, _, own = name.partition(".")
        kept = f"keep it as values={{{own!r}: ...}} of the TrainingState and set it after a restore"
        if part.startswith(("model", "ema")):
            said.setdefault("model", f"Of a number make an array; what else changes: {kept}.")
        elif part.startswith("optimizer") and own.endswith(".state"):
            inner = own.removesuffix(".state")
            said.setdefault("inner", f"Give the optimizer within, too: optimizer={{'outer': o, 'inner': o.{inner}}}.")
        elif own.startswith(("lr_lambdas.", "scale_fn")):
            told = "Give an object with __call__ in place of the function: what it has as attributes is kept."
            said.setdefault("function", told)
        else:
            said.setdefault("own", f"Have state_dict() and load_state_dict() of the class give and take it, or {kept}.")
    return " ".join(said.values())


def _moving(owner: str, one: Any, found: Iterable[Any]) -> Iterator[tuple[str, str]]:
    try:
        first = _FIRST.setdefault(one, {})
    except TypeError:  # nothing that can be remembered
        first = {}
    for hanging in found:
        if hanging.mark is None or first.setdefault(hanging.name, hanging.mark) != hanging.mark:
            yield f"{owner}.{hanging.name}", hanging.what
