"""The table of layouts: kinds of layers, and how each convention names and lays their tensors.

A column for each convention, in the order of `CONVENTIONS`. `^T` is a transposed tensor, None one that the convention has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from firekeep.errors import RuleError
from firekeep.rules.layout._attention import attention, transformer
from firekeep.rules.layout._convs import conv
from firekeep.rules.layout._forms import SAME, TRANSPOSED, Form, debiased, last_axis, scalar, shaped, shaped_map
from firekeep.rules.layout._recurrent import GATES, recurrent
from firekeep.rules.layout._row import CONVENTIONS, Facts, Field, Homeless, Made, Row
from firekeep.slots import Convention, Layer

Line = tuple[str | None, ...]

# fmt: off
_BIAS: Line = ("bias", *("bias",) * 6)
_AFFINE: tuple[Line, ...] = (
    ("scale",    "weight",       "gamma",        "scale", "scale", "weight",       "gamma"),
    ("shift",    "bias",         "beta",         "bias",  "bias",  "bias",         "beta"),
)
_COUNTER: Line = ("counter", "num_batches_tracked", *(None,) * 5)
_DENSE: Line = ("weight", "weight", "weight^T", "kernel^T", "kernel^T", "weight", "kernel^T")

_LINES: Mapping[str, tuple[Line, ...]] = {
    # kind              part         torch            burn            flax        linen       equinox       keras
    "linear":         (_DENSE, _BIAS),
    "linear_col":     (("weight",   "weight",        "weight",       "kernel^T", "kernel^T", "weight",     "kernel^T"), _BIAS),
    "linear_in_out":  (("weight",   "weight^T",      "weight^T",     "kernel^T", "kernel^T", "weight",     "kernel^T"), _BIAS),
    "embedding":      (("weight",   "weight",        "weight",       "embedding", "embedding", "weight",   "embeddings"),),
    "batch_norm":     (*_AFFINE,
                       ("mean",     "running_mean",  "running_mean", "mean",     "mean",     "mean",       "moving_mean"),
                       ("variance", "running_var",   "running_var",  "var",      "var",      "variance",   "moving_variance"),
                       _COUNTER),
    "layer_norm":     _AFFINE,
    "group_norm":     _AFFINE,
    "instance_norm":  (*_AFFINE,
                       ("mean",     "running_mean",  *(None,) * 5),
                       ("variance", "running_var",   *(None,) * 5),
                       _COUNTER),
    "rms_norm":       (("scale",    "weight",        "gamma",        "scale",    "scale",    "weight",     "scale"),
                       ("shift",    None,            None,           None,       None,       "bias",       None)),
    "prelu":          (("slope",    "weight",        "alpha",        "negative_slope", "negative_slope", "negative_slope", "alpha"),),
    "swiglu":         tuple(
        (f"{part}_{line[0]}", *(f"{inner if column == 1 else part}.{name}" for column, name in enumerate(line[1:])))
        for part, inner in (("gate", "linear_inner"), ("up", "linear_outer")) for line in (_DENSE, _BIAS)
    ),
    "feed_forward":   (),
}
# fmt: on

_NO_COUNTER = Homeless("{side}'s norms count no batches", state=True)
_NO_STATISTICS = Homeless("{side}'s InstanceNorm keeps no running statistics")
_NO_STEPS = Homeless(
    "{side}'s running statistics are kept without the bias of their beginning, and need no count", state=True
)
_NO_SHIFT = Homeless("{side}'s RMSNorm has no bias, and this one is not all zeros", zero=True)
_NO_RNG = Homeless("{side}'s layers keep no state of random numbers", state=True)
_ONE_AXIS = "{side} normalises over the last axis only"
_ONE_SLOPE = "its PReLU has one slope for all channels"
_NORMS = (("weight", "gamma"), ("bias", "beta"))
_FORGOTTEN = 2.0**-30
"""What is left of the beginning of a running mean that is taken to have none of it: below what a float tells from nothing."""


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
        convention: tuple(_field(name, str(line[0])) for line in _LINES[kind] if (name := line[column]) is not None)
        for column, convention in enumerate(CONVENTIONS, 1)
    }
    return Row(kind=kind, fields=fields, synonyms=_NORMS if kind.endswith("_norm") else ())


def _field(text: str, part: str) -> Field:
    name = text.removesuffix("^T")
    return Field(name, (part,), SAME if name == text else TRANSPOSED)


def _linear(kind: str, facts: Facts) -> Row:
    """Lay out a linear map, of several axes where Flax's or Keras' has them: LinearGeneral, DenseGeneral, EinsumDense."""
    row = _plain(kind, facts)
    if "in_shape" not in facts and "out_shape" not in facts:
        return row
    inputs, outputs = shape_of(facts.get("in_shape")), shape_of(facts.get("out_shape"))
    if inputs is None or outputs is None:
        raise RuleError(
            "of a map with several axes both in_shape and out_shape have to be known",
            remedy='Give the layer both facts, as in in_shape="8" and out_shape="2,4".',
        )
    forms: dict[str, Form] = {"kernel": shaped_map(inputs, outputs), "bias": shaped(outputs)}
    return _with_forms(row, dict.fromkeys(("flax", "linen", "keras"), forms))


def _norm(kind: str, facts: Facts) -> Row:
    row = _plain(kind, facts)
    homeless = {"counter": _NO_COUNTER, "mean": _NO_STATISTICS, "variance": _NO_STATISTICS}
    fields = dict(row.fields)
    if kind in ("layer_norm", "rms_norm"):
        narrow: tuple[tuple[Convention, str], ...] = (("burn", "Burn"), ("flax", "Flax NNX"))
        for side, name in narrow:
            why = _ONE_AXIS.format(side=name)
            fields[side] = tuple(replace(one, rank=1, why=why) for one in fields[side])
    return replace(row, fields=fields, homeless=homeless)


def _rms_norm(kind: str, facts: Facts) -> Row:
    """Lay out a norm that Equinox gives a bias unless told otherwise; one that comes from elsewhere is zero."""
    row = _norm(kind, facts)
    if facts.get("use_bias") is False:
        fields = {**row.fields, "equinox": tuple(one for one in row.of("equinox") if one.name != "bias")}
        return replace(row, fields=fields)
    return replace(row, homeless={"shift": _NO_SHIFT}, made={"shift": Made("scale")})


def _batch_norm(kind: str, facts: Facts) -> Row:
    """Lay out a norm whose statistics Equinox keeps otherwise: with the bias of their beginning, and a count to undo it."""
    row = _norm(kind, facts)
    refused: dict[Convention, str] = {}
    if facts.get("affine") is False:
        refused["burn"] = "Burn's BatchNorm always has gamma and beta (affine=False)"
    mode, momentum = str(facts.get("mode", "batch")), _momentum(facts)
    if mode == "ema":
        form, extra = SAME, Field("ema_first_time_index", ("first",))
        made = Made("mean", dtype="BOOL", shape=())
    else:
        form, extra = debiased(momentum, "steps"), Field("batch_counter", ("steps",))
        count = math.ceil(math.log(_FORGOTTEN) / math.log(momentum)) if momentum > 0 else 1
        made = Made("mean", value=count, dtype="I32", shape=())
    kept = {one: f"{mode}_state_index.{place}" for place, one in enumerate(("mean", "variance"))}
    own = tuple(replace(one, name=kept[one.name], form=form) if one.name in kept else one for one in row.of("equinox"))
    part = extra.parts[0]
    return replace(
        row,
        fields={**row.fields, "equinox": (*own, extra)},
        homeless={"counter": _NO_COUNTER, part: _NO_STEPS},
        refused=refused,
        made={part: made},
    )


def _momentum(facts: Facts) -> float:
    momentum = float(facts.get("momentum", 0.99))
    if not 0 <= momentum < 1:
        raise RuleError(f"a norm whose momentum is {momentum} keeps no running mean: it lies between 0 and 1")
    return momentum


def _prelu(kind: str, facts: Facts) -> Row:
    row = _plain(kind, facts)
    forms = {side: {"negative_slope": scalar(_ONE_SLOPE)} for side in ("flax", "linen", "equinox")}
    forms["keras"] = {"alpha": last_axis(shape_of(facts.get("alpha_shape")))}
    return replace(_with_forms(row, forms), synonyms=(("weight", "alpha"),))


def _swiglu(kind: str, facts: Facts) -> Row:
    row = _plain(kind, facts)
    if facts.get("columns"):
        row = _with_forms(row, {"burn": {"linear_inner.weight": SAME, "linear_outer.weight": SAME}})
    children = tuple(
        {side: theirs if side == "burn" else ours for side in CONVENTIONS}
        for ours, theirs in (("gate", "linear_inner"), ("up", "linear_outer"))
    )
    return replace(row, children=children, closed=True)


def _rng_state(kind: str, _facts: Facts) -> Row:
    """Name what Flax NNX keeps of random numbers in layers that use some: no weights, and nothing that others have."""
    names = ("count", "key", *(f"key.{way}" for way in ("threefry2x32", "rbg", "unsafe_rbg")))
    fields = tuple(Field(name, (name,)) for name in names)
    return Row(kind=kind, fields={"flax": fields}, homeless=dict.fromkeys(names, _NO_RNG))


def _with_forms(row: Row, forms: Mapping[str, Mapping[str, Form]]) -> Row:
    """Give fields of some conventions, by their names, other forms."""
    fields = {
        side: tuple(replace(one, form=forms.get(side, {}).get(one.name, one.form)) for one in own)
        for side, own in row.fields.items()
    }
    return replace(row, fields=fields)


def shape_of(text: object) -> tuple[int, ...] | None:
    """Read a shape that is a fact: "2,4" is two axes, "" none; None where there is none."""
    if text is None:
        return None
    try:
        return tuple(int(each) for each in str(text).split(",") if each.strip())
    except ValueError:
        raise RuleError(f"{text!r} is no shape: write it as in '2,4'") from None


_MAKERS: Mapping[str, Callable[[str, Facts], Row]] = {
    **dict.fromkeys(_LINES, _plain),
    **dict.fromkeys(("linear", "linear_col", "linear_in_out"), _linear),
    **{f"{kind}{n}d": conv for kind in ("conv", "conv_transpose") for n in (1, 2, 3)},
    **{kind: _norm for kind in _LINES if kind.endswith("_norm")},
    "batch_norm": _batch_norm,
    "rms_norm": _rms_norm,
    "prelu": _prelu,
    "swiglu": _swiglu,
    "rng_state": _rng_state,
    "multi_head_attention": attention,
    **dict.fromkeys(GATES, recurrent),
    "transformer_encoder_layer": transformer,
    "transformer_decoder_layer": transformer,
}

KINDS: tuple[str, ...] = tuple(_MAKERS)
"""The kinds of layers that the table knows."""
