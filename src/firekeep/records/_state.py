"""State of users' own optimizers and schedulers as named tensors and scalars, in the way of Burn's records.

A state is a dataclass, and the annotations of its fields say what they are:

    int, float, bool          a scalar; `UInt` where Burn counts without a sign, `I32` and `F32` for its narrow ones
    list[X], tuple[X, ...]    tensors, with their number beside them as `field.len`
    a dataclass               its fields, under `field.`
    X | None                  any of these but lists; None is not written
    anything else             a tensor: an array, a tensor of a framework, a `TensorEntry`
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, ScalarError
from firekeep.ids import ParamId
from firekeep.scalars import Scalar, ScalarKind
from firekeep.tensors import describe
from firekeep.wording import some

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Host:
    """Says, in `Annotated[int, Host("u64")]`, which type of Burn's a field has."""

    name: str


UInt = Annotated[int, Host("u64")]
U32 = Annotated[int, Host("u32")]
I32 = Annotated[int, Host("i32")]
F32 = Annotated[float, Host("f32")]

_HOSTS = {int: "i64", float: "f64", bool: "bool"}
_KINDS: dict[str, ScalarKind] = {"u": "uint", "i": "int", "f": "float", "b": "bool"}


class StateError(FirekeepError, ValueError):
    """A state cannot be written as named tensors and scalars, or not be made of those there are; the field is named."""


@dataclass(frozen=True, slots=True)
class FlatState:
    """A state as a record holds it. `tensors` are what the state held, or the entries of a file, by name and in order."""

    tensors: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    def entries(self, *, param_id: ParamId | None = None) -> list[TensorEntry]:
        """Describe the tensors for a writer, without copying them; `param_id` becomes the id of each."""
        described = [describe(name, value) for name, value in self.tensors.items()]
        return described if param_id is None else [dataclasses.replace(one, param_id=param_id) for one in described]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: Literal["tensor", "list", "scalar", "nested"]
    optional: bool
    host: str = ""
    """For scalars."""
    inner: Any = None
    """The dataclass of nested states; list or tuple for lists of tensors."""


def flatten(state: Any, *, prefix: str = "") -> FlatState:
    """Name the tensors and scalars of a state, as Burn does: `prefix.field`, and so on down.

    Raises `StateError`, naming the field, for a value that is not what its annotation says.
    """
    if isinstance(state, type) or not is_dataclass(state):
        raise StateError(f"a state is a dataclass, not {_named(state)}")
    tensors: dict[str, Any] = {}
    scalars: dict[str, Scalar] = {}
    _flatten(state, prefix, tensors, scalars)
    return FlatState(tensors, scalars)


def unflatten(flat: FlatState, template: type[State] | State, *, prefix: str = "", strict: bool = False) -> State:
    """Make a state of a dataclass out of named tensors and scalars; what lies elsewhere than under `prefix` is left alone.

    The lengths of lists are checked against the tensors there are before anything is made of them. An optional nested state is there if
    any name begins with its own. Raises `StateError`, naming the field, for one that is missing or of another kind, so that no state is
    half restored; with `strict`, also for names under `prefix` that the state has no field for.
    """
    kind: Any = template if isinstance(template, type) else type(template)
    if not hasattr(kind, "__dataclass_fields__"):
        raise StateError(f"a state is a dataclass, not {_named(template)}")
    used: set[str] = set()
    state = _unflatten(flat, kind, prefix, used)
    if strict:
        below = f"{prefix}." if prefix else ""
        left = [name for name in (*flat.tensors, *flat.scalars) if name.startswith(below) and name not in used]
        if left:
            raise StateError(
                f"{kind.__qualname__} has no field for {some(left)}",
                remedy="Give strict=False to leave them out, if they are not needed.",
            )
    return typing.cast("State", state)


def _below(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _named(value: object) -> str:
    return "None" if value is None else f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


# What the fields are


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise StateError(
            f"the annotations of {kind.__qualname__} cannot be read: {error}",
            remedy="Import the types they name where the class is defined.",
        ) from None
    return tuple(_field_of(kind, one.name, hints[one.name]) for one in dataclasses.fields(kind) if one.init)


def _field_of(kind: type, name: str, hint: Any) -> _Field:
    hint, host = _bare(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    optional = origin in (typing.Union, types.UnionType) and type(None) in arguments
    if optional:
        rest = [one for one in arguments if one is not type(None)]
        hint, inner_host = _bare(rest[0]) if len(rest) == 1 else (Any, "")
        host = host or inner_host
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _HOSTS:
        return _Field(name, "scalar", optional, host=host or _HOSTS[hint])
    if isinstance(hint, type) and is_dataclass(hint) and not issubclass(hint, TensorEntry):
        return _Field(name, "nested", optional, inner=hint)
    if origin in (list, tuple, Sequence):
        element, _ = _bare(arguments[0])
        if (
            optional
            or element in _HOSTS
            or (isinstance(element, type) and element is not TensorEntry and is_dataclass(element))
        ):
            raise StateError(
                f"the field {name!r} of {kind.__qualname__} is {hint}{' or None' if optional else ''}, and Burn's records hold "
                f"lists of tensors only",
                remedy="Use an empty list for none, a nested dataclass for a fixed number of states, a tensor for numbers.",
            )
        if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
            raise StateError(
                f"the field {name!r} of {kind.__qualname__} is a tuple of fixed length", remedy="Use a list."
            )
        return _Field(name, "list", optional=False, inner=tuple if origin is tuple else list)
    if hint in (str, bytes, dict, set, list, tuple) or origin in (dict, set):
        raise StateError(f"the field {name!r} of {kind.__qualname__} is {hint}, which no record of Burn's holds")
    return _Field(name, "tensor", optional)


def _bare(hint: Any) -> tuple[Any, str]:
    if typing.get_origin(hint) is not Annotated:
        return hint, ""
    bare, *extras = typing.get_args(hint)
    return bare, next((extra.name for extra in extras if isinstance(extra, Host)), "")


# Out of a state


def _flatten(state: Any, prefix: str, tensors: dict[str, Any], scalars: dict[str, Scalar]) -> None:
    kind: Any = type(state)
    for one in _fields(kind):
        place, value = _below(prefix, one.name), getattr(state, one.name)
        if value is None:
            if not one.optional:
                raise StateError(f"the field {place!r} is None, and has to have a value")
            continue
        if one.kind == "scalar":
            scalars[place] = _scalar(place, value, one.host)
        elif one.kind == "nested":
            if type(value) is not one.inner:
                raise StateError(f"the field {place!r} is {_named(value)}, and has to be {one.inner.__qualname__}")
            _flatten(value, place, tensors, scalars)
        elif one.kind == "list":
            if not isinstance(value, list | tuple):
                raise StateError(f"the field {place!r} is {_named(value)}, and has to be a list of tensors")
            scalars[_below(place, "len")] = Scalar("uint", len(value))
            for number, item in enumerate(value):
                tensors[_below(place, str(number))] = _tensor(_below(place, str(number)), item)
        else:
            tensors[place] = _tensor(place, value)


def _tensor(place: str, value: Any) -> Any:
    if isinstance(value, TensorEntry) or hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        return value
    raise StateError(
        f"the field {place!r} is {_named(value)}, and its annotation makes it a tensor",
        remedy="Annotate it as int, float or bool if it is a number.",
    )


def _scalar(place: str, value: Any, host: str) -> Scalar:
    try:
        return Scalar(_KINDS[host[0]], Scalar.of(value).to(host))
    except (ScalarError, OverflowError) as error:
        raise StateError(f"the field {place!r} is {value!r}, and has to be {host}: {error}") from None


# Into a state


def _unflatten(flat: FlatState, kind: Any, prefix: str, used: set[str]) -> Any:
    values: dict[str, Any] = {}
    for one in _fields(kind):
        place = _below(prefix, one.name)
        if one.kind == "nested":
            there = not one.optional or any(_names_below(flat, f"{place}."))
            values[one.name] = _unflatten(flat, one.inner, place, used) if there else None
        elif one.kind == "list":
            values[one.name] = one.inner(_take_list(flat, place, used))
        else:
            held: Mapping[str, Any] = flat.scalars if one.kind == "scalar" else flat.tensors
            if place not in held:
                if not one.optional:
                    raise _missing(flat, place, one.kind, kind)
                values[one.name] = None
                continue
            used.add(place)
            values[one.name] = _read(place, held[place], one.host) if one.kind == "scalar" else held[place]
    return kind(**values)


def _names_below(flat: FlatState, start: str) -> Iterator[str]:
    return (name for held in (flat.tensors, flat.scalars) for name in held if name.startswith(start))


def _take_list(flat: FlatState, place: str, used: set[str]) -> list[Any]:
    key = _below(place, "len")
    if key not in flat.scalars:
        raise StateError(f"the list {place!r} has no length: there is no scalar {key!r}")
    length = _read(key, flat.scalars[key], "u64")
    if length > len(flat.tensors):
        raise StateError(
            f"the list {place!r} has {length} tensors by its length, and there are {len(flat.tensors)} in all"
        )
    names = [_below(place, str(number)) for number in range(int(length))]
    absent = [name for name in names if name not in flat.tensors]
    if absent:
        raise StateError(f"the list {place!r} has {length} tensors by its length, and lacks {some(absent)}")
    used.update((key, *names))
    return [flat.tensors[name] for name in names]


def _read(place: str, scalar: Any, host: str) -> int | float | bool:
    try:
        return Scalar.of(scalar).to(host)
    except ScalarError as error:
        raise StateError(f"the field {place!r} does not fit: {error.message}") from None


def _missing(flat: FlatState, place: str, kind: str, owner: Any) -> StateError:
    parent = place.rpartition(".")[0]
    near = list(_names_below(flat, f"{parent}." if parent else ""))
    other = place in (flat.tensors if kind == "scalar" else flat.scalars)
    message = f"there is no {kind} {place!r}, which {owner.__qualname__} needs"
    if other:
        message += f": under this name there is a {'tensor' if kind == 'scalar' else 'scalar'}"
    elif near:
        message += f": there are {some(near)}"
    return StateError(message, remedy="Restore it into the kind of state that was saved, or start it fresh.")
