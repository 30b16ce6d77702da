"""Which kind of layer a module of Flax or Equinox is, and what its kind needs to know that no tensor tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firekeep.bridges.jax._frameworks import is_a, is_equinox, is_nnx_object
from firekeep.slots import Layer

PARENTS = frozenset({"multi_head_attention"})
"""Kinds whose children go by other names elsewhere."""

Facts = dict[str, int | bool | str]
Found = tuple[str, Facts] | None


def layer_of(value: Any, path: str, parent: Layer | None) -> Layer | None:
    """Describe a module that is a layer of a known kind, subclasses included, or give None."""
    found: Found = None
    if is_nnx_object(value):
        found = _first(value, "flax.nnx", _NNX)
    elif is_equinox(value):
        found = _first(value, "equinox.nn", _EQUINOX)
    if found is None:
        return None
    return Layer(kind=found[0], path=path, parent=parent, facts=found[1])


def _first(value: Any, module: str, table: Mapping[str, Callable[[Any], Found]]) -> Found:
    # No row's class is a subclass of another's, but for those that stand before them.
    for name, describe in table.items():
        if is_a(value, module, name):
            return describe(value)
    return None


def _plain(kind: str) -> Callable[[Any], Found]:
    return lambda _value: (kind, {})


def _text(shape: tuple[Any, ...]) -> str:
    return ",".join(map(str, shape))


def _linear_general(value: Any) -> Found:
    if value.batch_axis:
        return None
    return "linear", {"in_shape": _text(value.in_features), "out_shape": _text(value.out_features)}


def _einsum(value: Any) -> Found:
    """Read which axes of the kernel are summed over: a map where these come first, as in "bsd,dhk->bshk"."""
    left, arrow, result = value.einsum_str.replace(" ", "").partition("->")
    inputs, comma, kernel = left.partition(",")
    axes = kernel.replace("...", "")
    if not arrow or not comma or "," in kernel or len(axes) != len(value.kernel_shape):
        return None
    summed = [axis in inputs and axis not in result for axis in axes]
    split = sum(summed)
    made = all(axis in result and axis not in inputs for axis in axes[split:])
    if not split or not all(summed[:split]) or not made or not result.endswith(axes[split:]):
        return None
    if not inputs.endswith(axes[:split]):
        return None
    shape = value.kernel_shape
    return "linear", {"in_shape": _text(shape[:split]), "out_shape": _text(shape[split:])}


def _dimensions(value: Any) -> int:
    size = value.kernel_size
    return len(size) if isinstance(size, tuple | list) else 1


def _nnx_conv(value: Any) -> Found:
    dims = _dimensions(value)
    return (f"conv{dims}d", {"groups": int(value.feature_group_count)}) if dims <= 3 else None


def _nnx_conv_transpose(value: Any) -> Found:
    dims = _dimensions(value)
    return (f"conv_transpose{dims}d", {"transpose_kernel": bool(value.transpose_kernel)}) if dims <= 3 else None


def _nnx_batch_norm(value: Any) -> Found:
    return "batch_norm", {"affine": bool(value.use_scale and value.use_bias)}


def _attention(value: Any) -> Found:
    return "multi_head_attention", {"num_heads": int(value.num_heads)}


def _cell(kind: str, **facts: str) -> Callable[[Any], Found]:
    return lambda _value: (kind, {"num_layers": 1, "bidirectional": False, "wrapped": False, **facts})


def _recurrent(value: Any) -> Found:
    """Describe the cell that an RNN runs along a sequence: the layer is the RNN."""
    found = _first(value.cell, "flax.nnx", _CELLS)
    return None if found is None else (found[0], {**found[1], "wrapped": True})


def _bidirectional(value: Any) -> Found:
    """Describe two RNNs as one layer where their cells are of one kind."""
    found = [_first(rnn, "flax.nnx", {"RNN": _recurrent}) for rnn in (value.forward_rnn, value.backward_rnn)]
    first = found[0]
    if first is None or first != found[1]:
        return None
    return first[0], {name: fact for name, fact in first[1].items() if name != "wrapped"} | {"bidirectional": True}


def _conv(value: Any) -> Found:
    dims = int(value.num_spatial_dims)
    return (f"conv{dims}d", {"groups": int(value.groups)}) if dims <= 3 else None


def _conv_transpose(value: Any) -> Found:
    dims = int(value.num_spatial_dims)
    return (f"conv_transpose{dims}d", {"groups": int(value.groups)}) if dims <= 3 else None


def _batch_norm(value: Any) -> Found:
    facts: Facts = {"affine": bool(value.channelwise_affine), "mode": str(value.mode)}
    return "batch_norm", {**facts, "momentum": repr(float(value.momentum))}


def _rms_norm(value: Any) -> Found:
    return "rms_norm", {"use_bias": value.bias is not None}


_CELLS: Mapping[str, Callable[[Any], Found]] = {
    "LSTMCell": _cell("lstm"),
    "OptimizedLSTMCell": _cell("lstm", cell="optimized"),
    "GRUCell": _cell("gru"),
    "SimpleCell": _cell("rnn"),
}

_NNX: Mapping[str, Callable[[Any], Found]] = {
    "Linear": _plain("linear"),
    "LinearGeneral": _linear_general,
    "Einsum": _einsum,
    "Conv": _nnx_conv,
    "ConvTranspose": _nnx_conv_transpose,
    "Embed": _plain("embedding"),
    "BatchNorm": _nnx_batch_norm,
    "LayerNorm": _plain("layer_norm"),
    "GroupNorm": _plain("group_norm"),
    "InstanceNorm": _plain("instance_norm"),
    "RMSNorm": _plain("rms_norm"),
    "PReLU": _plain("prelu"),
    "MultiHeadAttention": _attention,
    **_CELLS,
    "RNN": _recurrent,
    "Bidirectional": _bidirectional,
    "RngStream": _plain("rng_state"),
}

_EQUINOX: Mapping[str, Callable[[Any], Found]] = {
    "Linear": _plain("linear"),
    "ConvTranspose": _conv_transpose,
    "Conv": _conv,
    "Embedding": _plain("embedding"),
    "BatchNorm": _batch_norm,
    "LayerNorm": _plain("layer_norm"),
    "GroupNorm": _plain("group_norm"),
    "RMSNorm": _rms_norm,
    "PReLU": _plain("prelu"),
    "MultiheadAttention": _attention,
    "LSTMCell": _cell("lstm"),
    "GRUCell": _cell("gru"),
}
