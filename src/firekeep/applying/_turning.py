"""Tensors of a file in another layout that lie across, for reasons that the layers of the model do not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firekeep.layouts import WEIGHTS, kind_of_weight, lies_across
from firekeep.matching import Pair, Plan
from firekeep.slots import Outline, Slot
from firekeep.views import permuted


def turn_ties(found: Plan, outline: Outline) -> Plan:
    """Turn round what the file has of a further name of a tensor, where it lies across: a linear head that is an embedding.

    The two kinds of layers lie alike in PyTorch and not elsewhere. That the numbers are the same is looked at when they are put together.
    """
    filled = {path for pair in found.pairs for path in pair.want.slots}
    slots = {slot.path: slot for slot in outline}
    roots = {slot.tied_to or slot.path for slot in outline if slot.path in filled and not slot.loosely}
    turned, rest = [], []
    for pair in found.mismatched:
        firm = [slots[path] for path in pair.want.slots if not slots[path].loosely]
        tied = bool(firm) and all((slot.tied_to or slot.path) in roots for slot in firm)
        if tied and _may_be_turned(pair) and len(firm) == len(pair.want.slots):
            turned.append(_turned(pair))
        else:
            rest.append(pair)
    return replace(found, pairs=(*found.pairs, *turned), mismatched=tuple(rest)) if turned else found


def turn_as_told(
    found: Plan,
    outline: Outline,
    unturned: frozenset[str],
    *,
    sources: Mapping[str, str],
    told: frozenset[str] = frozenset(),
) -> Plan:
    """Turn round matrices of a file in Burn's layout that lie otherwise than the model's kind of layer makes one expect.

    The file says which lie as PyTorch had them (`unturned`, by the file's own names), and so which were turned round. A linear layer of the
    model expects one that was, an embedding or a class that nobody knows one that was not. Layers that are `told` are left alone.
    """
    kinds = _kinds(outline)
    pairs: list[Pair] = []
    rest: list[Pair] = []
    for pair in (*found.pairs, *found.mismatched):
        known = pair.offer.name.rpartition(".")[0] in told
        if not known and _may_be_turned(pair) and _lies_across(pair, kinds, unturned, sources):
            pairs.append(_turned(pair))
        else:
            (pairs if pair.want.shape == pair.offer.shape else rest).append(pair)
    return replace(found, pairs=tuple(pairs), mismatched=tuple(rest))


def _may_be_turned(pair: Pair) -> bool:
    return len(pair.want.shape) == 2 and pair.offer.shape == pair.want.shape[::-1]


def _turned(pair: Pair) -> Pair:
    return replace(pair, offer=permuted(pair.offer, (1, 0)))


def doubt_squares(found: Plan, outline: Outline, *, sources: Mapping[str, str]) -> Plan:
    """Set aside square matrices of a file of Burn's own that may be weights of linear layers, where the model's class does not say.

    Burn turns those round and no others, and a shape that is no square tells. A square is never guessed.
    """
    kinds = _kinds(outline)
    sure, doubtful = [], []
    for pair in found.pairs:
        path = sources.get(pair.offer.name, pair.offer.name)
        square = len(pair.want.shape) == 2 and pair.want.shape[0] == pair.want.shape[1] > 1
        unknown = len(pair.want.slots) == 1 and kinds[pair.want.slots[0]] == ""
        if square and unknown and path.rpartition(".")[2] == "weight":
            doubtful.append(replace(pair, offer=replace(pair.offer, problem=_UNSURE)))
        else:
            sure.append(pair)
    return replace(found, pairs=tuple(sure), unreadable=(*found.unreadable, *doubtful)) if doubtful else found


_UNSURE = (
    "Burn turns the weights of Linear layers round and no others, and neither the file nor the class in the model says whether this square "
    "one is such: leave it out with exclude=, and copy it as it is meant (firekeep.open(path)[name], or its .T)"
)


def _kinds(outline: Outline) -> dict[str, str]:
    """Map places of a model to the kinds of layers whose weights they are: "" where it is not known, "part" for other tensors of layers."""
    layers = {layer.path: layer.kind for layer in outline.layers}
    kinds = {slot.path: _kind(slot, layers) for slot in outline}
    if outline.convention == "burn":  # what is no weight of a linear layer lies in its files as it does in the model
        return {path: kind if kind == "linear" else "part" for path, kind in kinds.items()}
    return kinds


def _kind(slot: Slot, layers: Mapping[str, str]) -> str:
    if slot.layer is not None:
        return slot.layer.kind if slot.role in WEIGHTS else "part"
    # A file, or variables that stand for a model, tell layers apart from tensors.
    return kind_of_weight(slot.path, slot.shape, layers)


def _lies_across(pair: Pair, kinds: Mapping[str, str], unturned: frozenset[str], sources: Mapping[str, str]) -> bool:
    if len(pair.want.slots) != 1:
        return False
    as_in_torch = sources.get(pair.offer.name, pair.offer.name) in unturned
    return lies_across(kinds[pair.want.slots[0]], turned=pair.want.turned, as_in_torch=as_in_torch)
