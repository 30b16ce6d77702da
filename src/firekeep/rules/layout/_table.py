"""The table of layouts: kinds of layers, and how each convention names and lays their tensors.

A column for each convention, in the order of `CONVENTIONS`. `^T` is a transposed tensor, None one that the convention has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from firekeep.errors import RuleError
from firekeep.rules.layout._row import CONVENTIONS, Field, Form, Homeless, Row
from firekeep.slots import Convention, Layer

Facts = Mapping[str, int | bool | str]
Line = tuple[str, str | None, str | None]

_BIAS: Line = ("bias", "bias", "bias")
_AFFINE: tuple[Line, ...] = (("scale", "weight", "gamma"), ("shift", "bias", "beta"))
_RUNNING: tuple[Line, ...] = (
    ("mean", "running_mean", "running_mean"),
    ("variance", "running_var", "running_var"),
    ("counter", "num_batches_tracked", None),
)
_CONV: tuple[Line, ...] = (("weight", "weight", "weight"), _BIAS)

# fmt: off
_LINES: Mapping[str, tuple[Line, ...]] = {
    # kind              part         torch            burn
    "linear":         (("weight",   "weight",        "weight^T"), _BIAS),
    "linear_col":     (("weight",   "weight",        "weight"), _BIAS),
    "linear_in_out":  (("weight",   "weight^T",      "weight^T"), _BIAS),
    "embedding":      (("weight",   "weight",        "weight"),),
    **{f"{kind}{n}d": _CONV for kind in ("conv", "conv_transpose") for n in (1, 2, 3)},
    "batch_norm":     (*_AFFINE, *_RUNNING),
    "layer_norm":     _AFFINE,
    "group_norm":     _AFFINE,
    "instance_norm":  (*_AFFINE,
                       ("mean",     "running_mean",  None),
                       ("variance", "running_var",   None),
                       ("counter",  "num_batches_tracked", None)),
    "rms_norm":       (("scale",    "weight",        "gamma"),),
    "prelu":          (("slope",    "weight",        "alpha"),),
    "swiglu":         (("gate",     "gate.weight",   "linear_inner.weight^T"),
                       ("gate_bias", "gate.bias",    "linear_inner.bias"),
                       ("up",       "up.weight",     "linear_outer.weight^T"),
                       ("up_bias",  "up.bias",       "linear_outer.bias")),
    "feed_forward":   (),
}
# fmt: on

_NO_COUNTER = Homeless("Burn's norms count no batches", state=True)
_NO_STATISTICS = Homeless("Burn's InstanceNorm keeps no running statistics")
_ONE_AXIS = "Burn normalises over the last axis only"
_NORMS = (("weight", "gamma"), ("bias", "beta"))
_OTHER_QKV = Homeless("keys and values of another size (kdim, vdim) have no place in Burn's MultiHeadAttention")
_EXTRA_BIAS = Homeless("Burn's MultiHeadAttention has no bias_k and bias_v (add_bias_kv)")
_PROJECTED = Homeless("Burn's Lstm has no projection of its output (proj_size)")

_GATES: Mapping[str, tuple[str, ...]] = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "z", "n"), "rnn": ("h",)}
_BURN_GATES: Mapping[str, Mapping[str, str]] = {
    "lstm": {"input_gate": "i", "forget_gate": "f", "output_gate": "o", "cell_gate": "g"},
    "gru": {"update_gate": "z", "reset_gate": "r", "new_gate": "n"},
    "rnn": {"gate": "h"},
}
_LINEAR: tuple[tuple[str, Form], ...] = (("weight", "transposed"), ("bias", "same"))
_BURN_MAPS = {"ih": "input_transform", "hh": "hidden_transform"}


def row_of(layer: Layer) -> Row:
    """Give the row for a layer and its facts; raises `RuleError`, naming it, for a kind that is not in the table."""
    if layer.kind not in _MAKERS:
        raise RuleError(
            f"the layer {layer.path!r} is of kind {layer.kind!r}, which has no row in the table of layouts",
            remedy=f"The kinds are {', '.join(KINDS)}.",
        )
    try:
        return _row(layer.kind, tuple(sorted(layer.facts.items())))
    except RuleError as error:
        raise RuleError(f"the layer {layer.path!r}: {error.message}", remedy=error.remedy) from None


@lru_cache(maxsize=1024)
def _row(kind: str, facts: tuple[tuple[str, int | bool | str], ...]) -> Row:
    return _MAKERS[kind](kind, dict(facts))


def _plain(kind: str, _facts: Facts) -> Row:
    fields = {
        convention: tuple(_field(name, line[0]) for line in _LINES[kind] if (name := line[column]) is not None)
        for column, convention in enumerate(CONVENTIONS, 1)
    }
    return Row(kind=kind, fields=fields, synonyms=_NORMS if kind.endswith("_norm") else ())


def _field(text: str, part: str) -> Field:
    name = text.removesuffix("^T")
    return Field(name, (part,), "same" if name == text else "transposed")


def _norm(kind: str, facts: Facts) -> Row:
    row = _plain(kind, facts)
    homeless = {"counter": _NO_COUNTER, "mean": _NO_STATISTICS, "variance": _NO_STATISTICS}
    refused: dict[Convention, str] = {}
    if kind == "batch_norm" and facts.get("affine") is False:
        refused["burn"] = "Burn's BatchNorm always has gamma and beta (affine=False)"
    fields = dict(row.fields)
    if kind in ("layer_norm", "rms_norm"):
        fields["burn"] = tuple(replace(one, rank=1, why=_ONE_AXIS) for one in fields["burn"])
    return replace(row, fields=fields, homeless=homeless, refused=refused)


def _prelu(kind: str, facts: Facts) -> Row:
    return replace(_plain(kind, facts), synonyms=(("weight", "alpha"),))


def _swiglu(kind: str, facts: Facts) -> Row:
    children = (_named("gate", "linear_inner"), _named("up", "linear_outer"))
    return replace(_plain(kind, facts), children=children, closed=True)


def _attention(kind: str, _facts: Facts) -> Row:
    names = {"query": "q", "key": "k", "value": "v", "output": "out"}
    qkv = ("q", "k", "v")
    torch = (
        Field("in_proj_weight", tuple(f"{part}_weight" for part in qkv)),
        *(Field(f"{part}_proj_weight", (f"{part}_other_weight",)) for part in qkv),
        Field("in_proj_bias", tuple(f"{part}_bias" for part in qkv)),
        Field("bias_k", ("extra_k",)),
        Field("bias_v", ("extra_v",)),
        Field("out_proj.weight", ("out_weight",)),
        Field("out_proj.bias", ("out_bias",)),
    )
    burn = tuple(
        Field(f"{name}.{what}", (f"{part}_{what}",), form) for name, part in names.items() for what, form in _LINEAR
    )
    homeless = {f"{part}_other_weight": _OTHER_QKV for part in qkv}
    return Row(
        kind=kind,
        fields={"torch": torch, "burn": burn},
        homeless={**homeless, "extra_k": _EXTRA_BIAS, "extra_v": _EXTRA_BIAS},
        children=(_named("out_proj", "output"),),
        closed=True,
    )


def _recurrent(kind: str, facts: Facts) -> Row:
    """Lay out a recurrent layer: PyTorch fuses gates and numbers layers, Burn has a list of layers and a map for each gate."""
    torch: list[Field] = []
    burn: list[Field] = []
    homeless: dict[str, Homeless] = {}
    layers = int(facts.get("num_layers", 1))
    both = bool(facts.get("bidirectional", False))
    for number in range(layers):
        for suffix, direction in (("", "forward"), ("_reverse", "reverse"))[: 1 + both]:
            place = f"{number}.{direction}"
            for what in ("weight", "bias"):
                for side in ("ih", "hh"):
                    parts = tuple(f"{place}.{side}.{what}.{gate}" for gate in _GATES[kind])
                    torch.append(Field(f"{what}_{side}_l{number}{suffix}", parts))
            if kind == "lstm":
                torch.append(Field(f"weight_hr_l{number}{suffix}", (f"{place}.hr",)))
                homeless[f"{place}.hr"] = _PROJECTED
            before = (f"{number}." if layers > 1 else "") + (f"{direction}." if both else "")
            burn.extend(_burn_gates(kind, before, place))
    refused: dict[Convention, str] = {}
    if kind == "gru" and facts.get("reset_after") is False:
        refused["torch"] = "PyTorch's GRU resets after the hidden map, and this one before it (reset_after=false)"
    return Row(
        kind=kind,
        fields={"torch": tuple(torch), "burn": tuple(burn)},
        homeless=homeless,
        closed=True,
        refused=refused,
    )


def _burn_gates(kind: str, before: str, place: str) -> list[Field]:
    return [
        Field(f"{before}{name}.{inner}.{what}", (f"{place}.{side}.{what}.{gate}",), form)
        for name, gate in _BURN_GATES[kind].items()
        for side, inner in _BURN_MAPS.items()
        for what, form in _LINEAR
    ]


def _named(torch: str, burn: str) -> Mapping[Convention, str]:
    return {"torch": torch, "burn": burn}


def _transformer(kind: str, facts: Facts) -> Row:
    """Name the children of a transformer layer; which norm is which depends on where they stand, and no file says that."""
    if "norm_first" not in facts:
        raise RuleError(
            "whether its norms come first decides which is which, and no file says it",
            remedy="Give the layer the fact norm_first=True or False, as the module has it.",
        )
    first = bool(facts["norm_first"])
    attention: tuple[Mapping[Convention, str], ...]
    order: tuple[int, ...]
    if kind == "transformer_encoder_layer":
        attention = (_named("self_attn", "mha"),)
        order = (2, 1) if first else (1, 2)
    else:
        attention = (_named("self_attn", "self_attn"), _named("multihead_attn", "cross_attn"))
        order = (3, 1, 2) if first else (1, 2, 3)
    return Row(
        kind=kind,
        fields={"torch": (), "burn": ()},
        children=(
            *attention,
            _named("linear1", "pwff.linear_inner"),
            _named("linear2", "pwff.linear_outer"),
            *(_named(f"norm{number}", f"norm_{theirs}") for number, theirs in enumerate(order, 1)),
        ),
    )


_MAKERS: Mapping[str, Callable[[str, Facts], Row]] = {
    **dict.fromkeys(_LINES, _plain),
    **{kind: _norm for kind in _LINES if kind.endswith("_norm")},
    "prelu": _prelu,
    "swiglu": _swiglu,
    "multi_head_attention": _attention,
    **dict.fromkeys(_GATES, _recurrent),
    "transformer_encoder_layer": _transformer,
    "transformer_decoder_layer": _transformer,
}

KINDS: tuple[str, ...] = tuple(_MAKERS)
"""The kinds of layers that the table knows."""
