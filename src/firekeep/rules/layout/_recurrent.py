"""Recurrent layers in the table of layouts: the order of their gates, and biases that are two, or the sum of two."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from firekeep.rules.layout._forms import SAME, TRANSPOSED, Form, in_rows
from firekeep.rules.layout._row import CONVENTIONS, PLUS, SIDES, Facts, Field, Homeless, Made, Row
from firekeep.slots import Convention, Layer

GATES: Mapping[str, tuple[str, ...]] = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "z", "n"), "rnn": ("h",)}
"""The gates of each kind, in PyTorch's order."""

_BURN_GATES: Mapping[str, Mapping[str, str]] = {
    "lstm": {"input_gate": "i", "forget_gate": "f", "output_gate": "o", "cell_gate": "g"},
    "gru": {"update_gate": "z", "reset_gate": "r", "new_gate": "n"},
    "rnn": {"gate": "h"},
}
_KERAS_GATES: Mapping[str, str] = {"lstm": "ifgo", "gru": "zrn", "rnn": "h"}
_LINEAR: tuple[tuple[str, Form], ...] = (("weight", TRANSPOSED), ("bias", SAME))
_BURN_MAPS = {"ih": "input_transform", "hh": "hidden_transform"}
_DIRECTIONS: Mapping[Convention, tuple[str, str]] = {
    "burn": ("forward", "reverse"),
    "flax": ("forward_rnn.cell", "backward_rnn.cell"),
    "linen": ("forward_rnn.cell", "backward_rnn.cell"),
    "keras": ("forward_layer.cell", "backward_layer.cell"),
}
_OF_A_LAYER = re.compile(r"(\w+_l)(\d+)((?:_reverse)?)")
_PROJECTED = Homeless("{side}'s LSTM has no projection of its output (proj_size)")
_NO_HIDDEN_BIAS = Homeless(
    "{side}'s GRUCell has no place for the bias of the hidden part of its new gate, which is not all zeros", zero=True
)


def recurrent(kind: str, facts: Facts) -> Row:
    """Lay out a recurrent layer: PyTorch fuses gates and numbers layers, others have a cell for each layer and direction.

    The facts `num_layers` and `bidirectional`; `cell` is "optimized" for Flax NNX's OptimizedLSTMCell; `wrapped=False` says that
    the layer is a cell by itself, and not what one lies in (nnx.RNN, a layer of Keras); `reset_after` is GRU's formula.
    """
    layers, both = int(facts.get("num_layers", 1)), bool(facts.get("bidirectional", False))
    fields: dict[Convention, list[Field]] = {side: [] for side in CONVENTIONS}
    homeless: dict[str, Homeless] = {}
    made: dict[str, Made] = {}
    for number in range(layers):
        for way, suffix in enumerate(("", "_reverse")[: 1 + both]):
            place = f"{number}.{'reverse' if way else 'forward'}"
            fields["torch"] += _torch(kind, place, f"l{number}{suffix}")
            if kind == "lstm":
                homeless[f"{place}.hr"] = _PROJECTED
            if kind == "gru":
                homeless[f"{place}.hh.bias.n"] = _NO_HIDDEN_BIAS
                made[f"{place}.hh.bias.n"] = Made(f"{place}.ih.bias.n")
            for side, cell in _CELLS.items():
                before = f"{number}." if layers > 1 else ""
                fields[side] += [
                    _inside(before + _cell_path(side, facts, both, way), one) for one in cell(kind, place, facts)
                ]
    return Row(
        kind=kind,
        fields={side: tuple(own) for side, own in fields.items()},
        homeless=homeless,
        closed=True,
        refused=_refused(kind, facts),
        made=made,
    )


def stacked(layer: Layer, role: str) -> tuple[str, ...]:
    """Give the name that a tensor has in PyTorch where layers upon one another are one layer, or a list of them, and here the other."""
    found = _OF_A_LAYER.fullmatch(role) if layer.kind in GATES else None
    if found is None:
        return ()
    name, number, way = found.groups()
    if int(layer.facts.get("num_layers", 1)) > 1:
        return (f"{layer.path}.{number}.{name}0{way}".lstrip("."),)
    around, _, place = layer.path.rpartition(".")
    return (f"{around}.{name}{place}{way}".lstrip("."),) if place.isdecimal() else ()


def _refused(kind: str, facts: Facts) -> dict[Convention, str]:
    refused: dict[Convention, str] = {}
    if kind == "rnn":
        refused["equinox"] = "Equinox has no recurrent cell without gates"
    elif facts.get("bidirectional") is True:
        refused["equinox"] = "Equinox has cells of one direction only"
    if kind == "gru" and facts.get("reset_after") is False:
        refused = {
            side: f"{name}'s GRU resets after the hidden map, and this one before it (reset_after=false)"
            for side, name in SIDES.items()
        }
    return refused


def _cell_path(side: Convention, facts: Facts, both: bool, way: int) -> str:  # noqa: FBT001 - a fact
    if both and side in _DIRECTIONS:
        return f"{_DIRECTIONS[side][way]}."
    return "cell." if facts.get("wrapped", True) is True and side in ("flax", "linen", "keras") else ""


def _inside(before: str, one: Field) -> Field:
    return Field(before + one.name, one.parts, one.form, one.axis)


def _parts(place: str, what: str, gates: Iterable[str], *sides: str) -> tuple[str, ...]:
    """Name the parts of so many gates: those of one map, or the sums of both."""
    return tuple(PLUS.join(f"{place}.{side}.{what}.{gate}" for side in sides) for gate in gates)


def _biases(kind: str, place: str, gates: Iterable[str]) -> tuple[str, ...]:
    """Name biases that are merged: all sums, but for the one of GRU's new gate that stands inside the reset."""
    return tuple(
        _parts(place, "bias", gate, "ih")[0]
        if (kind, gate) == ("gru", "n")
        else _parts(place, "bias", gate, "ih", "hh")[0]
        for gate in gates
    )


def _torch(kind: str, place: str, suffix: str) -> list[Field]:
    gates = GATES[kind]
    found = [
        Field(f"{what}_{side}_{suffix}", _parts(place, what, gates, side))
        for what in ("weight", "bias")
        for side in ("ih", "hh")
    ]
    return [*found, Field(f"weight_hr_{suffix}", (f"{place}.hr",))] if kind == "lstm" else found


def _burn(kind: str, place: str, _facts: Facts) -> list[Field]:
    return [
        Field(f"{name}.{inner}.{what}", _parts(place, what, gate, side), form)
        for name, gate in _BURN_GATES[kind].items()
        for side, inner in _BURN_MAPS.items()
        for what, form in _LINEAR
    ]


def _flax(kind: str, place: str, facts: Facts) -> list[Field]:
    if kind == "lstm" and facts.get("cell") != "optimized":
        return _one_by_one(kind, place, {**{gate: f"i{gate}" for gate in "igo"}, "f": "if_"})
    gates = GATES[kind]
    merged = Field("dense_h.bias" if kind == "lstm" else "dense_i.bias", _biases(kind, place, gates))
    return [
        Field("dense_i.kernel", _parts(place, "weight", gates, "ih"), TRANSPOSED),
        Field("dense_h.kernel", _parts(place, "weight", gates, "hh"), TRANSPOSED),
        merged,
    ]


def _linen(kind: str, place: str, _facts: Facts) -> list[Field]:
    if kind == "lstm":
        return _one_by_one(kind, place, {gate: f"i{gate}" for gate in "ifgo"})
    if kind == "rnn":
        return [
            Field("i.kernel", _parts(place, "weight", "h", "ih"), TRANSPOSED),
            Field("i.bias", _biases(kind, place, "h")),
            Field("h.kernel", _parts(place, "weight", "h", "hh"), TRANSPOSED),
        ]
    found = []
    for gate in GATES[kind]:
        found += [
            Field(f"i{gate}.kernel", _parts(place, "weight", gate, "ih"), TRANSPOSED),
            Field(f"i{gate}.bias", _biases(kind, place, gate)),
            Field(f"h{gate}.kernel", _parts(place, "weight", gate, "hh"), TRANSPOSED),
        ]
    return [*found, Field("hn.bias", _parts(place, "bias", "n", "hh"))]


def _one_by_one(kind: str, place: str, inputs: Mapping[str, str]) -> list[Field]:
    """Lay out a map for each gate, the bias with those of the hidden state."""
    found = [Field(f"{inputs[gate]}.kernel", _parts(place, "weight", gate, "ih"), TRANSPOSED) for gate in GATES[kind]]
    for gate in GATES[kind]:
        found += [
            Field(f"h{gate}.kernel", _parts(place, "weight", gate, "hh"), TRANSPOSED),
            Field(f"h{gate}.bias", _biases(kind, place, gate)),
        ]
    return found


def _equinox(kind: str, place: str, _facts: Facts) -> list[Field]:
    gates = GATES[kind]
    found = [Field(f"weight_{side}", _parts(place, "weight", gates, side)) for side in ("ih", "hh")]
    found.append(Field("bias", _biases(kind, place, gates)))
    return [*found, Field("bias_n", _parts(place, "bias", "n", "hh"))] if kind == "gru" else found


def _keras(kind: str, place: str, _facts: Facts) -> list[Field]:
    gates = _KERAS_GATES[kind]
    found = [
        Field("kernel", _parts(place, "weight", gates, "ih"), TRANSPOSED),
        Field("recurrent_kernel", _parts(place, "weight", gates, "hh"), TRANSPOSED),
    ]
    if kind == "gru":
        both = (*_parts(place, "bias", gates, "ih"), *_parts(place, "bias", gates, "hh"))
        return [*found, Field("bias", both, in_rows(2))]
    return [*found, Field("bias", _biases(kind, place, gates))]


_CELLS: Mapping[Convention, Callable[[str, str, Facts], list[Field]]] = {
    "burn": _burn,
    "flax": _flax,
    "linen": _linen,
    "equinox": _equinox,
    "keras": _keras,
}
