"""Which kind of layer a torch module is, and what its kind needs to know that no tensor tells."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from firekeep.slots import recurrent_facts

PARENTS = frozenset({"multi_head_attention", "transformer_encoder_layer", "transformer_decoder_layer"})
"""Kinds whose children go by other names elsewhere."""

_RECURRENT = ("num_layers", "bidirectional", "proj_size")
_FACTS: dict[str, tuple[str, ...]] = {
    "batch_norm": ("affine",),
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "rnn": _RECURRENT,
    "transformer_encoder_layer": ("norm_first",),
    "transformer_decoder_layer": ("norm_first",),
    "multi_head_attention": ("num_heads",),
    **{f"{kind}{n}d": ("groups",) for kind in ("conv", "conv_transpose") for n in (1, 2, 3)},
}

# No row's classes are subclasses of another's.
_KINDS: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    ((nn.Linear,), "linear"),
    ((nn.Embedding,), "embedding"),
    ((nn.Conv1d,), "conv1d"),
    ((nn.Conv2d,), "conv2d"),
    ((nn.Conv3d,), "conv3d"),
    ((nn.ConvTranspose1d,), "conv_transpose1d"),
    ((nn.ConvTranspose2d,), "conv_transpose2d"),
    ((nn.ConvTranspose3d,), "conv_transpose3d"),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), "batch_norm"),
    ((nn.LayerNorm,), "layer_norm"),
    ((nn.GroupNorm,), "group_norm"),
    ((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), "instance_norm"),
    (tuple(getattr(nn, name) for name in ("RMSNorm",) if hasattr(nn, name)), "rms_norm"),
    ((nn.PReLU,), "prelu"),
    ((nn.MultiheadAttention,), "multi_head_attention"),
    ((nn.LSTM,), "lstm"),
    ((nn.GRU,), "gru"),
    ((nn.RNN,), "rnn"),
    ((nn.TransformerEncoderLayer,), "transformer_encoder_layer"),
    ((nn.TransformerDecoderLayer,), "transformer_decoder_layer"),
)

# Known by name, so that nobody has to import transformers: a Linear that keeps its weight as [in, out].
_IN_OUT = ("transformers.pytorch_utils", "Conv1D")


def kind_of(cls: type[nn.Module]) -> str | None:
    """Give the kind of layer a class is, subclasses included, or None."""
    for classes, kind in _KINDS:
        if issubclass(cls, classes):
            return kind
    if any((base.__module__, base.__name__) == _IN_OUT for base in cls.__mro__):
        return "linear_in_out"
    return None


def class_of(module: nn.Module) -> type[nn.Module]:
    """Give the class a module was written as: one compiled to TorchScript has another, and remembers torch's own by name."""
    if isinstance(module, torch.jit.ScriptModule):
        place, _, name = module._c._type().qualified_name().rpartition(".")  # noqa: SLF001 - there is no public word for it
        written = getattr(nn, name, None) if f"{place}.".startswith("__torch__.torch.nn.modules.") else None
        if isinstance(written, type):
            return written
    return type(module)


def facts_of(module: Any, kind: str) -> dict[str, int | bool | str]:
    """Give what a row of the table of layouts may ask of a layer of this kind."""
    names = _FACTS.get(kind)
    if names is None:
        return {}
    facts = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if names is _RECURRENT and "num_layers" not in facts:  # a traced one keeps its tensors alone
        facts |= recurrent_facts(name for name, _ in module.named_parameters(recurse=False))
    return facts


def label_of(module: nn.Module) -> str:
    """Give the name of a module's class as its user wrote it.

    Torch puts a class of its own before one whose tensors are parametrized, and in place of one that it compiles.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    cls = type(module)
    base = cls.__bases__[0]
    return base.__name__ if cls.__name__ == f"Parametrized{base.__name__}" else cls.__name__


def is_list(cls: type[nn.Module]) -> bool:
    """Say whether the children of a class go by their place in a list."""
    return issubclass(cls, nn.ModuleList | nn.Sequential | nn.ParameterList)


def is_keyed(cls: type[nn.Module]) -> bool:
    """Say whether the children of a class go by keys."""
    return issubclass(cls, nn.ModuleDict | nn.ParameterDict)


def may_be_packed(cls: type[nn.Module]) -> bool:
    """Say whether modules of a class are layers quantized by PyTorch."""
    place = cls.__module__
    return place.startswith("torch.ao.nn.") and "quantized" in place


def is_packed(module: nn.Module) -> bool:
    """Say whether a module of such a class keeps its weights packed for its kernels, neither as parameters nor as buffers."""
    return any(hasattr(module, name) for name in ("_packed_params", "_all_weight_values", "_weight_bias"))
