"""States of optax, and of `flax.nnx.Optimizer`, by parameter; and put back into the same structure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import jax

from firekeep.bridges._protocol import Filling
from firekeep.bridges._states import OptimizerState, ParamState, Restoration
from firekeep.bridges.jax._describe import outline
from firekeep.bridges.jax._fill import fill, filled
from firekeep.bridges.jax._frameworks import is_a
from firekeep.bridges.jax._hollow import refuse_hollow
from firekeep.bridges.jax._leaves import describe, fault, is_leaf, looks
from firekeep.bridges.jax._making import cannot_become
from firekeep.bridges.jax._meshes import is_unplaced
from firekeep.bridges.jax._optax_parts import ONLY_HERE, RULES, Mirror, Parts, take_apart
from firekeep.bridges.jax._optax_rules import options_of
from firekeep.bridges.jax._walk import Place, walk
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.ids import ParamId
from firekeep.slots import Slot

STEP = "step"


def owns_optimizer(obj: object) -> bool:
    """Take optimizers of `flax.nnx`, and trees with states of optax or arrays of JAX in them."""
    if is_a(obj, "flax.nnx", "Optimizer"):
        return True
    if hasattr(obj, "param_groups") or not (
        isinstance(obj, tuple | list | Mapping) or hasattr(obj, "__dataclass_fields__")
    ):
        return False
    parts = jax.tree_util.tree_leaves(obj, is_leaf=_is_of_optax)
    return any(_is_of_optax(one) or (is_leaf(one) and not _is_numpy(one)) for one in parts)


def _is_of_optax(value: object) -> bool:
    return type(value).__module__.startswith("optax.") and hasattr(value, "_fields")


def _is_numpy(value: object) -> bool:
    return type(value).__module__.startswith("numpy")


def changes_in_place(obj: object) -> bool:
    """Say whether an optimizer takes a state itself, where another one is made of one of optax."""
    return is_a(obj, "flax.nnx", "Optimizer")


@dataclass(frozen=True, slots=True)
class _Counted:
    """A transformation that the parameters of one group have their moments in, and where it counts steps."""

    kind: str
    owner: str
    count: str | None


@dataclass(slots=True)
class _Live:
    """An optimizer taken apart: what it keeps of each parameter, by key, and in which group each parameter is."""

    state: Any
    parts: Parts
    keys: dict[str, dict[str, Place]]
    groups: list[_Counted]
    group: dict[str, int]
    slots: Mapping[str, Slot]
    base: str


def describe_optimizer(optimizer: Any, model: Any, tx: Any = None) -> OptimizerState:
    """Describe an optimizer without copying anything; see `firekeep.bridges.jax.describe_optimizer`."""
    live, convention = _look(optimizer, model)
    tx = getattr(optimizer, "tx", None) if tx is None and changes_in_place(optimizer) else tx
    options = {**_injected(live.parts), **(options_of(tx) if tx is not None else {})}
    counts = {one.count: place for place, one in enumerate(live.groups) if one.count is not None}
    steps = {count: describe(count, live.parts.loose[count][1].value) for count in counts}
    params = []
    for position, (name, slot) in enumerate(live.slots.items()):
        group = live.group.get(name, 0)
        state = {key: describe(place.path, place.value) for key, place in live.keys.get(name, {}).items()}
        count = live.groups[group].count if name in live.group else None
        if count is not None:
            state = {STEP: steps[count], **state}
        params.append(
            ParamState(
                path=name,
                param_id=_id_of_name(name),
                dtype=slot.dtype,
                shape=slot.shape,
                group=group,
                position=position,
                state=state,
            )
        )
    loose = {path: (where, place) for path, (where, place) in live.parts.loose.items() if path not in counts}
    return OptimizerState(
        kind=f"optax ({', '.join(live.parts.kinds) or 'no state'})",
        base=_base(live, options),
        groups=tuple(options for _ in live.groups) or (options,),
        params=tuple(params),
        extra={
            "loose": {path: describe(path, place.value) for path, (_, place) in loose.items()},
            "where": {path: where for path, (where, _) in loose.items()},
        },
        convention=convention,
        has_ids=False,
    )


def _look(optimizer: Any, model: Any) -> tuple[_Live, Any]:
    refuse_hollow(optimizer)
    outlined = outline(model, anew=True)
    named = {slot.path: slot for slot in outlined}
    if "" in named:
        raise UnsupportedError(
            "a parameter that is the whole model has no name", remedy="Put it in a dict, before the optimizer's init."
        )
    state = optimizer
    parts = _taken_apart(state, model, frozenset(named))
    mirrored = {name for mirror in parts.mirrors for name in mirror.places}
    chosen = {
        path: slot
        for path, slot in named.items()
        if path in mirrored or (_is_trained(slot, outlined.convention) and slot.tied_to is None)
    }
    keys: dict[str, dict[str, Place]] = {}
    groups: list[_Counted] = []
    group: dict[str, int] = {}
    main = _main_owners(parts)
    for name in mirrored:
        _take_param(name, parts, main, keys, groups, group)
    live = _Live(state, parts, keys, groups, group, chosen, "")
    return live, outlined.convention


def _taken_apart(state: Any, model: Any, names: frozenset[str]) -> Parts:
    """Take a state apart by the parameters of the model; of variables of Linen by those in their collection, which `init` was given."""
    parts = take_apart(state, model, names)
    collection = model.get("params") if isinstance(model, Mapping) else None
    if parts.mirrors or not isinstance(collection, Mapping):
        return parts
    inner = {name.removeprefix("params."): name for name in names if name.startswith("params.")}
    found = take_apart(state, collection, frozenset(inner))
    found.mirrors = [
        replace(mirror, places={inner[name]: place for name, place in mirror.places.items()})
        for mirror in found.mirrors
    ]
    return found


def _is_trained(slot: Slot, convention: str | None) -> bool:
    """Say whether a place may be a parameter of which nothing is kept: statistics of a model that is given whole are none."""
    if convention == "flax":
        return slot.trainable
    if convention == "linen" and not slot.path.startswith("params."):
        return False
    kept_apart = slot.layer is not None and slot.layer.kind == "batch_norm" and slot.role not in ("weight", "bias")
    return slot.dtype.kind == "float" and not (convention == "equinox" and kept_apart)


def _main_owners(parts: Parts) -> dict[str, str]:
    """Map each parameter to the transformation whose state is compared with other frameworks': the first that is known, no mere trace."""
    main: dict[str, str] = {}
    for trace in (False, True):
        for mirror in parts.mirrors:
            if mirror.kind in RULES and (mirror.kind == "TraceState") is trace:
                for name in mirror.places:
                    main.setdefault(name, mirror.owner)
    return main


def _take_param(
    name: str,
    parts: Parts,
    main: Mapping[str, str],
    keys: dict[str, dict[str, Place]],
    groups: list[_Counted],
    group: dict[str, int],
) -> None:
    mine = [mirror for mirror in parts.mirrors if name in mirror.places]
    owner = main.get(name)
    known: dict[str, Place] = {}
    for mirror in mine:
        known[_key(mirror, mine, owner)] = mirror.places[name]
    keys[name] = known
    first = next((mirror for mirror in mine if mirror.owner == owner), mine[0])
    rule = RULES.get(first.kind) if owner is not None else None
    count = None if rule is None or rule.count is None else f"{first.owner}.{rule.count}" if first.owner else rule.count
    counted = _Counted(first.kind, first.owner, count)
    if counted not in groups:
        groups.append(counted)
    group[name] = groups.index(counted)


def _key(mirror: Mirror, mine: list[Mirror], owner: str | None) -> str:
    """Call what is kept of a parameter as PyTorch does where it means the same, else by the class and field it is in."""
    rule = RULES.get(mirror.kind)
    if rule is not None and mirror.owner == owner and mirror.field in rule.keys:
        return rule.keys[mirror.field]
    twice = [other for other in mine if other.where == mirror.where]
    return mirror.where if len(twice) == 1 else f"{mirror.where} {mirror.path}"


def _base(live: _Live, options: Mapping[str, Any]) -> str:
    """Name the rule by the states: one that other frameworks have too, one of optax's own, or none where there are several."""
    for kind in live.parts.kinds:
        if kind in ONLY_HERE:
            return ONLY_HERE[kind]
    bases = {RULES[one.kind].base for one in live.groups if one.kind in RULES}
    if "optax.Muon" in bases and bases <= {"optax.Muon", "optax.Adam"}:
        return "optax.Muon"
    if len(bases) != 1:
        return "optax.several" if bases else "optax.SGD" if not live.keys else "optax.other"
    base = bases.pop()
    if base == "optax.Adam" and options.get("nesterov") and "momentum" not in options:
        return "optax.NAdam"
    if base == "optax.Adam" and options.get("trust_ratio"):
        return "optax.Lamb"
    return base


def _injected(parts: Parts) -> dict[str, Any]:
    """Give the options that `inject_hyperparams` keeps in the state itself: all but the rate, which a schedule may set."""
    found: dict[str, Any] = {}
    for where, place in parts.loose.values():
        kind, _, name = where.partition(".hyperparams.")
        if kind.startswith("Inject") and name and name != "learning_rate" and _is_at_hand(place.value):
            found[name] = place.value.item()
    return found


def _is_at_hand(value: Any) -> bool:
    return isinstance(value, jax.Array) and value.ndim == 0 and fault(value) is None


def _id_of_name(name: str) -> ParamId:
    return ParamId(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


def restore_optimizer(optimizer: Any, model: Any, restoration: Restoration) -> Any:
    """Put states into an optimizer, or make another; see `firekeep.bridges.jax.restore_optimizer`."""
    live, _ = _look(optimizer, model)
    given: dict[str, TensorEntry] = {}
    for name, state in restoration.states.items():
        for key, entry in state.items():
            count = live.groups[live.group[name]].count
            path = count if key == STEP and count is not None else live.keys[name][key].path
            assert path is not None  # noqa: S101 - a step is only restored where one is counted
            given[path] = entry
    given |= restoration.extra
    if not changes_in_place(optimizer):
        optimizer = _untied(optimizer)
    slots = {slot.path: slot for slot in outline(optimizer, anew=not changes_in_place(optimizer), beside=model)}
    fillings = [Filling(slots[path], entry.renamed(path), slots[path].dtype) for path, entry in given.items()]
    if changes_in_place(optimizer):
        fill(optimizer, fillings, [], beside=model)
        return optimizer
    return filled(optimizer, fillings, [], beside=model)


def unplaced(optimizer: Any, model: Any) -> str | None:
    """Say why no array can be put into an optimizer of shapes, or None; see `firekeep.bridges.jax.unplaced`."""
    for place in walk(optimizer, beside=model).places.values():
        if is_unplaced(place.value):
            return f"{place.path!r}: {cannot_become(place.value, looks(place.value)[0])}"
    return None


def _untied(state: Any) -> Any:
    """Make a state in which no array stands twice: `init` may put one of zeros into several places, which then go their own ways."""
    met: set[int] = set()

    def apart(leaf: Any) -> Any:
        if id(leaf) not in met:
            met.add(id(leaf))
            return leaf
        return leaf.copy() if isinstance(leaf, jax.Array) else copy(leaf)

    return jax.tree.map(apart, state)
