"""What modules of `firekeep.module` compute with beside their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from firekeep.bridges._constants import gelu, spell_each, spell_padding, told
from firekeep.module import Module, modules
from firekeep.slots import Constant, Constants

if TYPE_CHECKING:
    from firekeep.bridges.native import Tree

_ACTIVATIONS = {
    "Relu": "relu",
    "LeakyRelu": "leaky_relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "Elu": "elu",
    "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_swish",
}
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


def constants(root: Tree) -> list[Constants]:
    """Tell them of all parts whose class is known."""
    found = []
    for path, part in modules(root):
        if not isinstance(part, Module):
            continue
        kind = part.kind or ("activation" if _function(part) else "")
        if kind and (values := told(_values(part, kind))):
            found.append(Constants(kind=kind, path=path, values=values))
    return found


def _values(part: Any, kind: str) -> Iterator[tuple[str, Constant]]:
    if kind in _NORMS:
        yield "epsilon", float(part.epsilon)
    if kind == "batch_norm":
        yield "momentum", 1 - part.momentum
    elif kind == "group_norm":
        yield "num_groups", int(part.num_groups)
    elif kind == "multi_head_attention":
        yield "num_heads", int(part.n_heads)
    elif kind == "rnn":
        yield "function", "tanh"
    elif kind.startswith("conv"):
        yield from _convolution(part, kind)
    elif kind.startswith("transformer"):
        yield "norm_first", bool(part.norm_first)
        if (name := _function(part.pwff.activation)) is not None:
            yield "function", name
    elif kind == "activation":
        yield from _activation(part)


def _convolution(part: Any, kind: str) -> Iterator[tuple[str, Constant]]:
    yield "stride", spell_each(part.stride)
    yield "dilation", spell_each(part.dilation)
    if kind.startswith("conv_transpose"):
        yield "padding", spell_each(part.padding)
        yield "output_padding", spell_each(part.padding_out)
    else:
        padding = part.padding if isinstance(part.padding, str) else [(width, width) for width in part.padding]
        kernel = part.weight.shape[2:]
        yield "padding", spell_padding(padding, kernel=kernel, stride=part.stride, dilation=part.dilation)


def _activation(part: Any) -> Iterator[tuple[str, Constant]]:
    yield "function", _function(part) or ""
    for name in ("negative_slope", "alpha", "beta"):
        if isinstance(value := getattr(part, name, None), int | float):
            yield name, float(value)


def _function(part: Any) -> str | None:
    name = next((cls.__name__ for cls in type(part).__mro__ if cls.__module__.startswith("firekeep.")), "")
    return gelu(part.approximate) if name == "Gelu" else _ACTIVATIONS.get(name)
