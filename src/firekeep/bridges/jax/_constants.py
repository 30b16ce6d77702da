"""What modules of Flax and Equinox compute with beside their arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from firekeep.bridges._constants import Pads, each, gelu, spell_each, spell_padding, spell_pads, told
from firekeep.bridges.jax._frameworks import is_a, is_nnx_object
from firekeep.bridges.jax._layers import layer_of
from firekeep.bridges.jax._walk import walk
from firekeep.slots import Constant, Constants

_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
_FUNCTIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "leaky_relu": "leaky_relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "elu": "elu",
    "softplus": "softplus",
    "mish": "mish",
    "hard_swish": "hard_swish",
    "hard_silu": "hard_swish",
    "hard_sigmoid": "hard_sigmoid",
}
_DEFAULTS: dict[str, tuple[str, str, float]] = {
    "leaky_relu": ("negative_slope", "negative_slope", 0.01),
    "elu": ("alpha", "alpha", 1.0),
}
"""By activation: what JAX calls its constant, what PyTorch does, and its value where nobody gives it."""


def constants(root: Any) -> list[Constants]:
    """Tell them of all parts whose class is known, and of activations that are attributes of one's own modules."""
    found = []
    for path, value in walk(root).objects:
        layer = layer_of(value, path, None)
        if layer is None:
            found += list(_activations(value, path))
        elif values := told(_values(value, layer.kind)):
            found.append(Constants(kind=layer.kind, path=path, values=values))
    return found


def _values(value: Any, kind: str) -> Iterator[tuple[str, Constant]]:
    if kind in _NORMS:
        yield "epsilon", float(value.epsilon if hasattr(value, "epsilon") else value.eps)
    if kind == "batch_norm":
        yield "momentum", float(value.momentum)
    elif kind == "group_norm":
        yield "num_groups", int(value.num_groups if hasattr(value, "num_groups") else value.groups)
    elif kind == "multi_head_attention":
        yield "num_heads", int(value.num_heads)
    elif kind == "rnn" and (named := _function(getattr(value, "activation_fn", None))) is not None:
        yield "function", named[0]
    elif kind.startswith("conv"):
        yield from _convolution(value, kind)


def _convolution(value: Any, kind: str) -> Iterator[tuple[str, Constant]]:
    axes = int(kind[-2])
    flax = is_nnx_object(value)
    stride = each(value.strides if flax else value.stride, axes)
    dilation = each(value.kernel_dilation if flax else value.dilation, axes)
    kernel = each(value.kernel_size, axes)
    yield "stride", spell_each(stride)
    yield "dilation", spell_each(dilation)
    if flax and any(step != 1 for step in each(getattr(value, "input_dilation", 1), axes)):
        yield "input_dilation", spell_each(each(value.input_dilation, axes))
    mode = str(getattr(value, "padding_mode", "zeros")).lower()
    padding = value.padding if isinstance(value.padding, str) else _pads(value.padding, axes)
    if padding in ("CIRCULAR", "REFLECT"):
        mode, padding = str(padding).lower(), "SAME"
    if mode != "zeros":
        yield "padding_mode", mode
    if not kind.startswith("conv_transpose"):
        yield "padding", spell_padding(padding, kernel=kernel, stride=stride, dilation=dilation)
    elif not flax:
        yield "padding", padding.lower() if isinstance(padding, str) else spell_pads(padding)
        yield "output_padding", spell_each(each(value.output_padding, axes))
    else:
        yield from _transposed(padding, [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)], stride)


def _pads(padding: Any, axes: int) -> Pads:
    if isinstance(padding, int):
        return [(padding, padding)] * axes
    return [(one, one) if isinstance(one, int) else (int(one[0]), int(one[1])) for one in padding]


def _transposed(padding: str | Pads, reach: Sequence[int], stride: Sequence[int]) -> Iterator[tuple[str, Constant]]:
    """Say of the pads around the spread input what PyTorch's padding is, and its output_padding.

    `reach` is by how much a kernel is longer than one element.
    """
    if isinstance(padding, str):
        if padding not in ("VALID", "SAME"):
            yield "padding", padding.lower()
            return
        padding = [_word(padding, far, step) for far, step in zip(reach, stride, strict=True)]
    before = [far - low for far, (low, _) in zip(reach, padding, strict=True)]
    more = [high - low for low, high in padding]
    yield "padding", spell_each(before)
    yield "output_padding", spell_each(more)


def _word(word: str, far: int, step: int) -> tuple[int, int]:
    """Give what `jax.lax.conv_transpose` makes of a word."""
    if word == "VALID":
        return far, step - 1 + max(far + 1 - step, 0)
    total = far + step - 1
    low = far if step > far else -(-total // 2)
    return low, total - low


def _activations(value: Any, path: str) -> Iterator[Constants]:
    if is_a(value, "equinox.nn", "Lambda"):
        yield from _activation(value.fn, path)
        return
    for name, part in vars(value).items():
        if not name.startswith("_"):
            here = f"{path}.{name}" if path else name
            if isinstance(part, list | tuple):
                for index, one in enumerate(part):
                    yield from _activation(one, f"{here}.{index}")
            else:
                yield from _activation(part, here)


def _activation(part: Any, path: str) -> Iterator[Constants]:
    if (named := _function(part)) is not None:
        function, given = named
        values: dict[str, Constant] = {"function": function}
        if function in _DEFAULTS:
            own, name, default = _DEFAULTS[function]
            values[name] = float(given.get(own, default))
        yield Constants(kind="activation", path=path, values=values)


def _function(part: Any) -> tuple[str, dict[str, Any]] | None:
    """Name an activation of JAX, and give the options that are fixed with `partial`."""
    if not callable(part) or isinstance(part, type):
        return None
    given: dict[str, Any] = {}
    while isinstance(part, partial):
        if part.args:
            return None
        given, part = {**part.keywords, **given}, part.func
    if not str(getattr(part, "__module__", "")).startswith("jax"):
        return None
    name = str(getattr(part, "__name__", ""))
    if name == "gelu":
        return gelu(given.get("approximate", True)), given
    return (_FUNCTIONS[name], given) if name in _FUNCTIONS else None
