"""The state of an optimizer of optax taken apart: trees that mirror the parameters, and the counters and numbers between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from firekeep.bridges.jax._frameworks import is_nnx_object, is_variable
from firekeep.bridges.jax._leaves import is_leaf, is_number
from firekeep.bridges.jax._walk import Place, name_of, walk
from firekeep.errors import LimitError, UnsupportedError

_DEEPEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A class of states whose numbers mean what those of other frameworks do. `keys` are PyTorch's, by the field."""

    base: str
    keys: Mapping[str, str]
    count: str | None = None
    """The field that counts steps for all parameters where others count for each."""


RULES: Mapping[str, Rule] = {
    "ScaleByAdamState": Rule(base="optax.Adam", keys={"mu": "exp_avg", "nu": "exp_avg_sq"}, count="count"),
    "ScaleByRssState": Rule(base="optax.Adagrad", keys={"sum_of_squares": "sum"}),
    "ScaleByRmsState": Rule(base="optax.RMSprop", keys={"nu": "square_avg"}),
    "ScaleByRStdDevState": Rule(base="optax.RMSprop", keys={"nu": "square_avg", "mu": "grad_avg"}),
    "ScaleByLionState": Rule(base="optax.Lion", keys={"mu": "exp_avg"}),
    "MuonState": Rule(base="optax.Muon", keys={"mu": "momentum_buffer"}),
    "TraceState": Rule(base="optax.SGD", keys={"trace": "momentum_buffer"}),
}
ONLY_HERE: Mapping[str, str] = {
    "ScaleByAmsgradState": "optax.AMSGrad",
    "FactoredState": "optax.Adafactor",
    "ScaleByLBFGSState": "optax.LBFGS",
    "ScaleByAdanState": "optax.Adan",
}
"""Classes of states that no other framework goes on with, and what they are of."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A tree with an array for each of some parameters, at `path`: `field` of the state `owner` of class `kind`."""

    path: str
    kind: str
    owner: str
    field: str
    places: Mapping[str, Place]

    @property
    def where(self) -> str:
        """Say where it is without the places of transformations in a chain."""
        return f"{self.kind}.{self.field}"


@dataclass(slots=True)
class Parts:
    """A state taken apart. `loose` are the arrays that belong to no parameter, with the class and field they are in."""

    mirrors: list[Mirror] = field(default_factory=list)
    loose: dict[str, tuple[str, Place]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    """The classes of all states with arrays in them, in order, each once."""


@dataclass(frozen=True, slots=True)
class _At:
    path: str = ""
    kind: str = ""
    owner: str = ""
    field: str = ""
    depth: int = 0


def take_apart(state: Any, params: Any, names: frozenset[str]) -> Parts:
    """Take a state apart. `names` are those of the parameters in `params`, which tells of what class a mirror may be."""
    parts = Parts()
    _visit(state, _At(), params, names, parts)
    return parts


def _visit(value: Any, at: _At, params: Any, names: frozenset[str], parts: Parts) -> None:
    if at.depth > _DEEPEST:
        raise LimitError(
            "the state of the optimizer is too deep", tensor=at.path[:200], limit=_DEEPEST, actual=at.depth
        )
    if is_number(value):
        raise UnsupportedError(
            f"the state of the optimizer keeps a {type(value).__name__} of Python's, which no update may change",
            tensor=at.path,
            remedy="Make it an array: jax.numpy.asarray of it.",
        )
    below = None if is_leaf(value) or is_variable(value) else _children(value)
    if below is not None and at.owner != at.path and _may_mirror(value, params):
        found = walk(value).places
        if found and names.issuperset(found):
            places = {name: _moved(place, at.path) for name, place in found.items()}
            parts.mirrors.append(Mirror(at.path, at.kind, at.owner, at.field, places))
            _note(parts, at)
            return
    if below is None:
        for suffix, place in walk(value).places.items():
            moved = _moved(place, at.path)
            parts.loose[_below(at.path, suffix)] = (f"{at.kind}.{at.field}" if at.kind else at.field, moved)
            _note(parts, at)
        return
    kind = type(value).__name__ if _is_state(value) else None
    for name, part in below:
        text, _ = name_of(name)
        inside = _below(at.path, text)
        if kind is not None:
            under = _At(inside, kind, at.path, text, at.depth + 1)
        else:
            under = _At(inside, at.kind, at.owner, _below(at.field, text) if at.kind else text, at.depth + 1)
        _visit(part, under, params, names, parts)


def _note(parts: Parts, at: _At) -> None:
    if at.kind and at.kind not in parts.kinds:
        parts.kinds.append(at.kind)


def _may_mirror(value: Any, params: Any) -> bool:
    """Say whether a container can stand for the parameters: a state of a transformation cannot, whatever its fields are called."""
    return type(value) is type(params) or not (_is_state(value))


def _is_state(value: Any) -> bool:
    return (isinstance(value, tuple) and hasattr(value, "_fields")) or (
        is_dataclass(value) and not is_nnx_object(value) and type(value).__module__.startswith("optax")
    )


def _children(value: Any) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, list | tuple):
        return iter(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return ((one.name, getattr(value, one.name)) for one in fields(value) if hasattr(value, one.name))
    if is_nnx_object(value):
        names = [name for name in vars(value) if not name.startswith(("_pytree__", "_object__"))]
        return ((name, vars(value)[name]) for name in names)
    return None


def _moved(place: Place, path: str) -> Place:
    place.path = _below(path, place.path)
    return place


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
