"""Attention and transformer layers in the table of layouts: fused projections, projections by head, and names of children."""

from __future__ import annotations

from collections.abc import Mapping

from firekeep.errors import RuleError
from firekeep.rules.layout._forms import SAME, TRANSPOSED, Form, heads_of_bias, heads_of_inputs, heads_of_outputs
from firekeep.rules.layout._row import CONVENTIONS, Facts, Field, Homeless, Row
from firekeep.slots import Convention

_QKV = {"query": "q", "key": "k", "value": "v"}
_OUTPUT: Mapping[Convention, str] = {
    "torch": "out_proj",
    "burn": "output",
    "flax": "out",
    "linen": "out",
    "equinox": "output_proj",
    "keras": "attention_output",
}
_OTHER_QKV = Homeless("keys and values of another size (kdim, vdim) have no place in {side}'s MultiHeadAttention")
_EXTRA_BIAS = Homeless("{side}'s MultiHeadAttention has no bias_k and bias_v (add_bias_kv)")
_NORMED = Homeless("{side}'s MultiHeadAttention does not normalise queries and keys (normalize_qk)")


def attention(kind: str, facts: Facts) -> Row:
    """Lay out attention; `num_heads` is a fact where the target cuts its projections into heads."""
    qkv = tuple(_QKV.values())
    torch = (
        Field("in_proj_weight", tuple(f"{part}_weight" for part in qkv)),
        *(Field(f"{part}_proj_weight", (f"{part}_other_weight",)) for part in qkv),
        Field("in_proj_bias", tuple(f"{part}_bias" for part in qkv)),
        Field("bias_k", ("extra_k",)),
        Field("bias_v", ("extra_v",)),
        *_linear("out_proj", "out", SAME, "weight"),
    )
    heads = int(facts["num_heads"]) if "num_heads" in facts else None
    norms = tuple(
        Field(f"{name}_ln.{what}", (f"{part}_norm_{what}",))
        for name, part in _QKV.items()
        for what in ("scale", "bias")
        if part != "v"
    )
    fields: dict[Convention, tuple[Field, ...]] = {
        "torch": torch,
        "burn": _apart("burn", "{}", TRANSPOSED, "weight"),
        "flax": (*_by_heads("flax", heads), *norms),
        "linen": (*_by_heads("linen", heads), *norms),
        "equinox": _apart("equinox", "{}_proj", SAME, "weight"),
        "keras": _by_heads("keras", heads),
    }
    homeless = {f"{part}_other_weight": _OTHER_QKV for part in qkv}
    return Row(
        kind=kind,
        fields=fields,
        homeless={
            **homeless,
            "extra_k": _EXTRA_BIAS,
            "extra_v": _EXTRA_BIAS,
            **{one.parts[0]: _NORMED for one in norms},
        },
        children=(_OUTPUT,),
        closed=True,
        adapt=_adapt,
    )


def _linear(name: str, part: str, form: Form, weight: str, bias: Form = SAME) -> tuple[Field, Field]:
    return Field(f"{name}.{weight}", (f"{part}_weight",), form), Field(f"{name}.bias", (f"{part}_bias",), bias)


def _apart(side: Convention, name: str, form: Form, weight: str) -> tuple[Field, ...]:
    pairs = [*((name.format(own), part) for own, part in _QKV.items()), (_OUTPUT[side], "out")]
    return tuple(one for own, part in pairs for one in _linear(own, part, form, weight))


def _by_heads(side: Convention, heads: int | None) -> tuple[Field, ...]:
    to, bias = heads_of_outputs(heads), heads_of_bias(heads)
    inputs = (one for name, part in _QKV.items() for one in _linear(name, part, to, "kernel", bias))
    return (*inputs, *_linear(_OUTPUT[side], "out", heads_of_inputs(heads), "kernel"))


def _adapt(shapes: Mapping[str, tuple[int, ...]], target: Convention) -> Mapping[str, str]:
    """Tell the maps of keys and values of another size from the square ones, where PyTorch has two places for them."""
    if target not in ("torch", "burn"):
        return {f"{part}_other_weight": f"{part}_weight" for part in _QKV.values() if f"{part}_other_weight" in shapes}
    found = [shapes.get(f"{part}_weight", ()) for part in _QKV.values()]
    if any(len(shape) != 2 for shape in found):
        return {}
    size = found[0][1]
    if any(rows != size for rows, _columns in found):
        raise RuleError(
            f"its heads together have {', '.join(str(rows) for rows, _ in found)} features for queries, keys and values, and a place "
            f"for it would need {size} for each"
        )
    if any(columns != size for _rows, columns in found):
        return {f"{part}_weight": f"{part}_other_weight" for part in _QKV.values()}
    return {}


def transformer(kind: str, facts: Facts) -> Row:
    """Name the children of a transformer layer; which norm is which depends on where they stand, and no file says that.

    Only PyTorch and Burn have such layers: what others write of them has PyTorch's names.
    """
    if "norm_first" not in facts:
        raise RuleError(
            "whether its norms come first decides which is which, and no file says it",
            remedy="Give the layer the fact norm_first=True or False, as the module has it.",
        )
    first = bool(facts["norm_first"])
    attending: tuple[Mapping[Convention, str], ...]
    order: tuple[int, ...]
    if kind == "transformer_encoder_layer":
        attending = (_named("self_attn", "mha"),)
        order = (2, 1) if first else (1, 2)
    else:
        attending = (_named("self_attn", "self_attn"), _named("multihead_attn", "cross_attn"))
        order = (3, 1, 2) if first else (1, 2, 3)
    return Row(
        kind=kind,
        fields={},
        children=(
            *attending,
            _named("linear1", "pwff.linear_inner"),
            _named("linear2", "pwff.linear_outer"),
            *(_named(f"norm{number}", f"norm_{theirs}") for number, theirs in enumerate(order, 1)),
        ),
    )


def _named(torch: str, burn: str) -> Mapping[Convention, str]:
    return {side: burn if side == "burn" else torch for side in CONVENTIONS}
