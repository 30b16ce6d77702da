"""From an object to the places of its arrays, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple

import jax

from firekeep.bridges._values import is_object, join_others
from firekeep.bridges.jax._equinox import indices_of, main_parts, shared_whole, state_path, state_values
from firekeep.bridges.jax._frameworks import (
    is_a,
    is_equinox,
    is_equinox_state,
    is_frozen,
    is_nnx_object,
    is_nnx_state,
    is_struct,
    is_variable,
)
from firekeep.bridges.jax._holders import Holder
from firekeep.bridges.jax._layers import PARENTS, layer_of
from firekeep.bridges.jax._leaves import is_leaf, is_number, key_suffix
from firekeep.bridges.jax._meshes import is_unplaced, meshes_in, placed
from firekeep.bridges.jax._owns import is_node
from firekeep.errors import LimitError, UnsupportedError
from firekeep.slots import Layer
from firekeep.wording import kind

_DEEPEST = 256


# Not frozen, as a Slot is not: a model may have tens of thousands.
@dataclass(slots=True)
class Place:
    """Where an array is: under `key` in `holder`, which is None for an array that is the whole object.

    `variable` is the variable of `flax.nnx` around it. A place is a further name of another (`alias_of`) where the object holds nothing
    there, and puts the other in when it is used.
    """

    path: str
    value: Any
    holder: Holder | None
    key: Any
    layer: Layer | None
    containers: tuple[str, ...]
    variable: Any = None
    alias_of: str | None = None


class _At(NamedTuple):
    """Where the walk is: the name so far, what owns its parts, the nearest layers, and the holder around."""

    path: str = ""
    containers: tuple[str, ...] = ()
    layer: Layer | None = None
    parent: Layer | None = None
    holder: Holder | None = None
    key: Any = None
    depth: int = 0
    variable: Any = None
    in_struct: bool = False

    def below(self, name: str) -> str:
        """Give the name of a part."""
        return f"{self.path}.{name}" if self.path else name


@dataclass(slots=True)
class Walk:
    """All places of an object in the order they are met, its layers, and the paths of all its parts."""

    places: dict[str, Place] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    keyed: set[str] = field(default_factory=set)
    """Those of dicts with numbers among their keys; the number in a name with dots may be a place in a list."""
    kinds: set[str] = field(default_factory=set)
    """Of which frameworks there are objects: "nnx", "equinox"."""
    objects: list[tuple[str, Any]] = field(default_factory=list)
    """Those objects with their paths."""
    others: dict[str, str] = field(default_factory=dict)
    """What is no array and yet data, by path, in a word: not what modules hold beside their arrays, which is configuration."""
    numbers: list[str] = field(default_factory=list)
    """Paths of Python's numbers in variables, dicts, lists and tuples outside of any object: perhaps meant to be kept."""


def walk(root: Any, *, ours: bool = False, beside: Any = None) -> Walk:
    """Walk an object. `ours` tells that its nnx objects and variables are copies, which can be changed.

    A shape whose sharding tells no devices gets those of the mesh that other arrays of it lie on, or those of the object `beside` it.

    Raises `UnsupportedError` for two arrays of one name, keys that make no name and what contains itself, and `LimitError` for one
    too deep.
    """
    walker = _Walker(ours=ours)
    walker.visit(root, _At())
    walker.visit_states()
    walker.found.modules.discard("")
    _place(walker.found, beside)
    return walker.found


def _place(found: Walk, beside: Any) -> None:
    unplaced = [place for place in found.places.values() if is_unplaced(place.value)]
    if unplaced:
        others: Iterable[Place] = () if beside is None else walk(beside).places.values()
        meshes = list(meshes_in(place.value for place in (*found.places.values(), *others)))
        for place in unplaced:
            place.value = placed(place.value, meshes)


class _Walker:
    def __init__(self, *, ours: bool) -> None:
        self.found = Walk()
        self._ours = ours
        self._around: set[int] = set()
        self._states: list[tuple[Any, _At]] = []
        self._indices: dict[Any, _At] = {}

    def visit(self, value: Any, at: _At) -> None:
        """Add the places of a value, which hangs where the walk is."""
        if type(value) is dict:  # as most containers are, and about which there is nothing to find out
            self._enter_dict(value, at)
        elif is_leaf(value) or (at.in_struct and is_number(value)):
            self._add(value, at)
        elif is_equinox_state(value):
            self._states.append((value, at))
        elif isinstance(value, jax.Ref):
            self._add(value[...], at._replace(holder=self._holder(value, "ref", at), key=None))
        elif is_variable(value):
            self._enter_variable(value, at)
        elif not isinstance(value, type) and (below := self._children(value)) is not None:
            self._guard(value, at)
            self._around.add(id(value))
            self._enter(value, at, below)
            self._around.discard(id(value))
        else:
            self._leave(value, at)

    def _leave(self, value: Any, at: _At) -> None:
        """Note what is no array and yet data."""
        if value is None or not _is_data(at.holder):
            return
        self.found.others[at.path] = kind(value)
        if is_number(value) and _is_plain(at.holder):
            self.found.numbers.append(at.path)

    def visit_states(self) -> None:
        """Add what stateful layers of Equinox keep, under the names by which the layers know it."""
        for value, at in self._states:
            holder = self._holder(value, "node", at)
            for place, (marker, kept) in enumerate(state_values(value, at.path)):
                known = self._indices.get(marker)
                named = at._replace(path=state_path(marker, place, at.path)) if known is None else known
                self.visit(kept, named._replace(holder=holder, key=place, depth=at.depth + 1, in_struct=False))

    def _children(self, value: Any) -> tuple[str, Iterator[tuple[Any, Any, Any]]] | None:
        """Say how parts are put into a container, and give key, name and value of each; None for what is no container."""
        if is_nnx_object(value):
            return "object", _attributes(value)
        if is_nnx_state(value):
            return "item", ((key, key, part) for key, part in value.raw_mapping.items())
        if isinstance(value, MutableMapping):
            return "item", ((key, key, part) for key, part in value.items())
        if isinstance(value, list):
            return "item", ((key, key, part) for key, part in enumerate(value))
        if is_node(value):
            return _node_parts(value)
        if isinstance(value, Mapping):
            return "frozen", ((key, key, part) for key, part in value.items())
        if is_dataclass(value):
            return "field" if _is_open(value) else "fixed", _fields(value)
        return None

    def _enter(self, value: Any, at: _At, below: tuple[Any, Iterator[tuple[Any, Any, Any]]]) -> None:
        how, parts = below
        target = value.raw_mapping if is_nnx_state(value) else value
        holder = self._holder(target, how, at)
        inside = self._inside(value, at)
        self.found.modules.add(at.path)
        self._note(value, at)
        whole = shared_whole(value)
        flat = main_parts(value)
        known, others = len(self.found.places) + len(self._states), len(self.found.others)
        for key, name, part in parts:
            text, fault = name_of(name)
            path = at.path if key == flat else at.below(text)
            if fault is not None:
                self._refuse_key(part, inside._replace(path=path, holder=holder), fault)
                continue
            self.visit(part, inside._replace(path=path, holder=holder, key=key))
            if whole is not None and text == "pytree":
                self._add_aliases(whole, inside._replace(path=path, holder=holder, key=key))
        if at.path and is_object(value) and len(self.found.places) + len(self._states) == known:
            is_meant = is_a(value, "flax.linen", "Module") and _is_data(at.holder)
            join_others(self.found.others, at.path, value, first=others, is_meant=is_meant)

    def _enter_dict(self, value: dict[Any, Any], at: _At) -> None:
        """Do what `_enter` does with any container, for a plain dict."""
        self._guard(value, at)
        self._around.add(id(value))
        self.found.modules.add(at.path)
        if any(str(key).isdecimal() for key in value):
            self.found.keyed.add(at.path)
        containers, depth = (*at.containers, _label(value)), at.depth + 1
        holder = self._holder(value, "item", at)
        for key, part in value.items():
            text, fault = (key, None) if type(key) is str else name_of(key)
            path = at.below(text)
            if fault is not None:
                self._refuse_key(part, at._replace(path=path, holder=holder), fault)
            else:
                self.visit(part, _At(path, containers, at.layer, at.parent, holder, key, depth, at.variable))
        self._around.discard(id(value))

    def _enter_variable(self, value: Any, at: _At) -> None:
        self.found.kinds.add("nnx")
        inside = at._replace(holder=self._holder(value, "variable", at), key=None, variable=value)
        self.visit(value.get_raw_value(), inside._replace(depth=at.depth + 1, in_struct=False))

    def _note(self, value: Any, at: _At) -> None:
        if is_nnx_object(value) or is_equinox(value):
            self.found.objects.append((at.path, value))
        if is_nnx_object(value) or is_nnx_state(value):
            self.found.kinds.add("nnx")
        elif is_equinox(value):
            self.found.kinds.add("equinox")
            for marker in indices_of(value):
                self._indices.setdefault(marker, at)

    def _inside(self, value: Any, at: _At) -> _At:
        """Say what is known of the parts of a container."""
        layer = layer_of(value, at.path, at.parent)
        parent = at.parent
        if layer is not None:
            self.found.layers.append(layer)
            parent = layer if layer.kind in PARENTS else parent
        elif is_nnx_object(value) or is_equinox(value):
            layer = at.layer if type(value).__name__ == "StateIndex" else None
        else:
            layer = at.layer
        return at._replace(
            containers=(*at.containers, _label(value)),
            layer=layer,
            parent=parent,
            depth=at.depth + 1,
            variable=at.variable,
            in_struct=_has_numbers(value),
        )

    def _holder(self, value: Any, how: Any, at: _At) -> Holder:
        if type(value) is dict and at.holder is not None and (at.holder.how == "inner" or is_frozen(at.holder.value)):
            how = "inner"
        ours = (
            self._ours
            and (at.holder is None or at.holder.is_ours)
            and (how in ("object", "variable") or is_node(value))
        )
        return Holder(value, how, at.holder, at.key, at.depth, is_ours=ours and how != "ref")

    def _add(self, value: Any, at: _At) -> None:
        suffix = key_suffix(value)
        path = at.path if suffix is None else at.below(suffix)
        place = Place(path, value, at.holder, at.key, at.layer, at.containers, at.variable)
        other = self.found.places.get(path)
        if other is not None:
            raise UnsupportedError(
                f"two arrays come to one name, {path!r}",
                tensor=path,
                remedy="Rename one of the keys.",
            )
        self.found.places[path] = place

    def _add_aliases(self, whole: Any, at: _At) -> None:
        """Add the further names that a shared part has when it is used."""
        first = {id(place.value): place.path for place in self.found.places.values()}
        other = _Walker(ours=False)
        with suppress(UnsupportedError):
            other.visit(whole, at)
        for path, place in other.found.places.items():
            kept = first.get(id(place.value))
            if path not in self.found.places and kept is not None:
                self.found.places[path] = replace(place, holder=None, alias_of=kept)
        known = {layer.path for layer in self.found.layers}
        self.found.layers += [layer for layer in other.found.layers if layer.path not in known]
        self.found.modules |= other.found.modules

    def _guard(self, value: Any, at: _At) -> None:
        if id(value) in self._around:
            raise UnsupportedError(
                f"the {type(value).__name__} at {at.path or 'the top'!r} contains itself",
                tensor=at.path,
                remedy="Leave that reference out.",
            )
        if at.depth >= _DEEPEST:
            raise LimitError(
                f"the object is deeper than {_DEEPEST} levels",
                tensor=at.path[:200],
                limit=_DEEPEST,
                actual=at.depth + 1,
            )

    def _refuse_key(self, part: Any, at: _At, fault: str) -> None:
        below = _Walker(ours=False)
        below.visit(part, _At())
        if below.found.places or below._states:
            raise UnsupportedError(
                f"an array below it has no name: {fault}",
                tensor=at.path,
                remedy="Use keys that are text or whole numbers.",
            )
        if below.found.others:
            self._leave(part, at)


def name_of(key: Any) -> tuple[str, str | None]:
    """Spell a key as a part of a name, and say why it cannot be one."""
    for attribute in ("key", "idx", "name"):
        if type(key).__module__.startswith("jax") and hasattr(key, attribute):
            key = getattr(key, attribute)
            break
    if isinstance(key, str):
        return str.__str__(key), None  # a member of an enum of texts prints as something else
    if isinstance(key, int) and not isinstance(key, bool):
        return int.__repr__(key), None
    if type(key) is tuple and key and all(type(part) in (str, int) for part in key):
        return ".".join(map(str, key)), None  # the path of a variable, as nnx.WeightNorm keeps its scales by
    return str(key), f"its key {key!r} is a {type(key).__name__}"


def _is_data(holder: Holder | None) -> bool:
    """Say whether what a holder has is data: the value of a variable is, what modules of Flax and Equinox hold beside arrays is not."""
    while holder is not None and holder.how != "variable":
        if is_nnx_object(holder.value) or is_equinox(holder.value):
            return False
        holder = holder.outer
    return True


def _is_plain(holder: Holder | None) -> bool:
    """Say whether a holder is a variable, a dict, a list or a tuple, and what is around it too."""
    while holder is not None and holder.how != "variable":
        if not isinstance(holder.value, Mapping | list | tuple):
            return False
        holder = holder.outer
    return True


def _attributes(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Give the data of an nnx object in the order in which nnx itself lists it: by name, elements of lists by number."""
    told = getattr(value, "_pytree__nodes", None)
    told = told if getattr(value, "_pytree__is_pytree", False) and isinstance(told, Mapping) else None
    names = [name for name in vars(value) if not name.startswith(("_pytree__", "_object__"))]
    for name in sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name)):
        if told is None or told.get(name):
            yield name, name, vars(value)[name]


def _fields(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    for known in fields(value):
        if hasattr(value, known.name):  # a field that is set later may not be yet
            yield known.name, known.name, getattr(value, known.name)


def _node_parts(value: Any) -> tuple[str, Iterator[tuple[Any, Any, Any]]]:
    """Take apart what JAX can put together again. A dataclass that can be changed is, by its fields."""
    flat, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    keyed = [(path[0], part) for path, part in flat]
    if _is_open(value) and all(isinstance(key, jax.tree_util.GetAttrKey) for key, _ in keyed):
        return "field", ((key.name, key.name, part) for key, part in keyed)
    return "node", ((place, key, part) for place, (key, part) in enumerate(keyed))


def _is_open(value: Any) -> bool:
    # Equinox forbids it in a way of its own.
    told = getattr(type(value), "__dataclass_params__", None)
    return told is not None and not told.frozen and not is_equinox(value)


def _has_numbers(value: Any) -> bool:
    """Say whether numbers are data as arrays are: in dataclasses that JAX takes apart, unless a framework says what is data in them."""
    if is_struct(value):
        return True
    return is_dataclass(value) and not is_nnx_object(value) and not is_equinox(value) and is_node(value)


def _label(value: Any) -> str:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "Vec"
    if type(value).__name__ == "List" and is_nnx_object(value):
        return "Vec"
    return f"Struct:{type(value).__name__}"
