"""Layers that names and shapes of a Flax file tell, beside a bare PyTorch state dict."""

from __future__ import annotations

import pytest

from firekeep.dtypes import BY_NAME
from firekeep.errors import RuleError
from firekeep.rules.layout import layers_from_flax
from firekeep.views import ghost

TORCH = {
    "conv.weight": (8, 3, 5, 4),
    "conv.bias": (8,),
    "up.weight": (8, 6, 2),
    "bn.weight": (8,),
    "bn.bias": (8,),
    "bn.running_mean": (8,),
    "bn.running_var": (8,),
    "bn.num_batches_tracked": (),
    "ln.weight": (8,),
    "ln.bias": (8,),
    "tok.weight": (9, 8),
    "attn.in_proj_weight": (24, 8),
    "attn.in_proj_bias": (24,),
    "attn.out_proj.weight": (8, 8),
    "attn.out_proj.bias": (8,),
    "fc.weight": (2, 8),
    "square.weight": (8, 8),
    "own": (3,),
}
FLAX = {
    "conv.kernel": (5, 4, 3, 8),
    "conv.bias": (8,),
    "up.kernel": (2, 8, 6),
    "bn.scale": (8,),
    "bn.bias": (8,),
    "bn.mean": (8,),
    "bn.var": (8,),
    "ln.scale": (8,),
    "ln.bias": (8,),
    "tok.embedding": (9, 8),
    **{f"attn.{part}.kernel": (8, 2, 4) for part in ("query", "key", "value")},
    **{f"attn.{part}.bias": (2, 4) for part in ("query", "key", "value")},
    "attn.out.kernel": (2, 4, 8),
    "attn.out.bias": (8,),
    "fc.kernel": (8, 2),
    "square.kernel": (8, 8),
    "own": (3,),
}


def ghosts(shapes):
    return [ghost(name, BY_NAME["F32"], shape) for name, shape in shapes.items()]


def told(torch, flax, given=None):
    return layers_from_flax(ghosts(torch), ghosts(flax), convention="flax", given=given)


@pytest.mark.parametrize("given", ["torch", "flax", None])
def test_kinds_are_told_by_names_and_shapes(given):
    layers = {layer.path: layer for layer in told(TORCH, FLAX, given)}
    assert {path: layer.kind for path, layer in layers.items()} == {
        "conv": "conv2d",
        "up": "conv_transpose1d",
        "bn": "batch_norm",
        "ln": "layer_norm",
        "tok": "embedding",
        "attn": "multi_head_attention",
        "fc": "linear",
        "square": "linear",
    }
    assert layers["attn"].facts == {"num_heads": 2}


def test_a_kernel_with_as_many_channels_in_as_out_is_refused():
    with pytest.raises(RuleError, match=r"'c\.weight'.*transposed"):
        told({"c.weight": (8, 8, 3)}, {"c.kernel": (3, 8, 8)})


@pytest.mark.parametrize("other", [{}, {"b": ((2, 8), (2, 8))}, {"b": ((2, 8), (2, 8)), "c": ((4, 8), (8, 4))}])
def test_a_square_matrix_is_refused_where_no_other_says_how_they_lie(other):
    torch = {"a.weight": (8, 8), **{f"{path}.weight": shapes[0] for path, shapes in other.items()}}
    flax = {"a.kernel": (8, 8), **{f"{path}.kernel": shapes[1] for path, shapes in other.items()}}
    with pytest.raises(RuleError, match=r"'a\.weight'.*square"):
        told(torch, flax)


def test_what_only_one_side_has_is_refused_where_all_of_it_is_to_be_told_of():
    more = {"more.weight": (4, 2)}
    assert len(told({**TORCH, **more}, FLAX, "flax")) == 8
    with pytest.raises(RuleError, match=r"'more\.weight': the Flax file has nothing like it"):
        told({**TORCH, **more}, FLAX, "torch")
    with pytest.raises(RuleError, match=r"'gru\.in\.kernel': the PyTorch file has nothing like it"):
        told(TORCH, {**FLAX, "gru.in.kernel": (8, 8)}, "flax")


def test_another_shape_is_refused_where_all_is_to_be_told_of():
    with pytest.raises(RuleError, match=r"'fc\.weight': its shape does not fit that in the Flax file, \[8, 3\]"):
        told(TORCH, {**FLAX, "fc.kernel": (8, 3)}, "torch")
