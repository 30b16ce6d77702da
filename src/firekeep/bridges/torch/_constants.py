"""What torch modules compute with beside their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from firekeep.bridges._constants import each, gelu, spell_each, spell_padding, spell_pads, told
from firekeep.bridges.torch._layers import kind_of
from firekeep.bridges.torch._walk import walk
from firekeep.slots import Constant, Constants

_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm")
_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.ELU: "elu",
    nn.Softplus: "softplus",
    nn.Mish: "mish",
    nn.Hardswish: "hard_swish",
    nn.Hardsigmoid: "hard_sigmoid",
}
_FUNCTIONS = {"relu": "relu", "gelu": "gelu (erf)", "silu": "silu", "tanh": "tanh"}
"""Activations that a layer may be given as functions: called so, GELU is the exact one."""


def constants(root: nn.Module) -> list[Constants]:
    """Tell them of all parts whose class is known."""
    found = []
    for path, module in walk(root).parts:
        kind = kind_of(type(module)) or ("activation" if _function(module) else None)
        values = {} if kind is None else told(_values(module, kind))
        if kind is not None and values:
            found.append(Constants(kind=kind, path=path, values=values))
    return found


def _values(module: Any, kind: str) -> Iterator[tuple[str, Constant]]:
    if kind in _NORMS:
        yield "epsilon", float(module.eps)
    if kind == "rms_norm":
        dtype = torch.get_default_dtype() if module.weight is None else module.weight.dtype
        yield "epsilon", float(torch.finfo(dtype).eps if module.eps is None else module.eps)
    elif kind == "batch_norm":  # None averages over all batches alike
        yield "momentum", "of an average" if module.momentum is None else 1 - module.momentum
    elif kind == "group_norm":
        yield "num_groups", int(module.num_groups)
    elif kind == "multi_head_attention":
        yield "num_heads", int(module.num_heads)
    elif kind == "rnn":
        yield "function", str(module.nonlinearity)
    elif kind.startswith("conv"):
        yield from _convolution(module, kind)
    elif kind.startswith("transformer"):
        yield "norm_first", bool(module.norm_first)
        if (name := _function(module.activation)) is not None:
            yield "function", name
    elif kind == "activation":
        yield from _activation(module)


def _convolution(module: Any, kind: str) -> Iterator[tuple[str, Constant]]:
    axes = int(kind[-2])
    stride, dilation = each(module.stride, axes), each(module.dilation, axes)
    yield "stride", spell_each(stride)
    yield "dilation", spell_each(dilation)
    padding = (
        module.padding if isinstance(module.padding, str) else [(width, width) for width in each(module.padding, axes)]
    )
    if module.padding_mode != "zeros":
        yield "padding_mode", str(module.padding_mode)
    if kind.startswith("conv_transpose"):
        yield "padding", padding if isinstance(padding, str) else spell_pads(padding)
        yield "output_padding", spell_each(each(module.output_padding, axes))
    else:
        yield "padding", spell_padding(padding, kernel=module.kernel_size, stride=stride, dilation=dilation)


def _activation(module: Any) -> Iterator[tuple[str, Constant]]:
    yield "function", _function(module) or ""
    for name, attribute in (("negative_slope", "negative_slope"), ("alpha", "alpha"), ("beta", "beta")):
        if isinstance(value := getattr(module, attribute, None), int | float):
            yield name, float(value)


def _function(value: Any) -> str | None:
    """Name an activation, be it a module or a function."""
    if isinstance(value, nn.GELU):
        return gelu(value.approximate)
    if isinstance(value, nn.Module):
        return next((name for cls, name in _ACTIVATIONS.items() if isinstance(value, cls)), None)
    known = getattr(value, "__module__", None) in ("torch.nn.functional", "torch._C._nn", "torch", None)
    return _FUNCTIONS.get(getattr(value, "__name__", "")) if known else None
