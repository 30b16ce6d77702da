"""What whole models tell of their layers: kinds by the names of their classes, facts by what was set on them. Nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from firekeep.formats.pytorch._inert import Call, Global
from firekeep.formats.pytorch._modules import is_scripted, module_state, without_compile
from firekeep.slots import Layer, recurrent_facts

_MANGLED = re.compile(r"\.___torch_mangle_\d+")

_CLASSES: Mapping[str, Mapping[str, str]] = {
    "torch.nn.modules.linear": {
        "Linear": "linear",
        "NonDynamicallyQuantizableLinear": "linear",
        "_LinearWithBias": "linear",
    },
    "torch.nn.modules.sparse": {"Embedding": "embedding"},
    "torch.nn.modules.conv": {
        "Conv1d": "conv1d",
        "Conv2d": "conv2d",
        "Conv3d": "conv3d",
        "ConvTranspose1d": "conv_transpose1d",
        "ConvTranspose2d": "conv_transpose2d",
        "ConvTranspose3d": "conv_transpose3d",
    },
    "torch.nn.modules.batchnorm": {
        "BatchNorm1d": "batch_norm",
        "BatchNorm2d": "batch_norm",
        "BatchNorm3d": "batch_norm",
        "SyncBatchNorm": "batch_norm",
    },
    "torch.nn.modules.normalization": {"LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm"},
    "torch.nn.modules.instancenorm": {
        "InstanceNorm1d": "instance_norm",
        "InstanceNorm2d": "instance_norm",
        "InstanceNorm3d": "instance_norm",
    },
    "torch.nn.modules.activation": {"PReLU": "prelu", "MultiheadAttention": "multi_head_attention"},
    "torch.nn.modules.rnn": {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"},
    "torch.nn.modules.transformer": {
        "TransformerEncoderLayer": "transformer_encoder_layer",
        "TransformerDecoderLayer": "transformer_decoder_layer",
    },
    "transformers.pytorch_utils": {"Conv1D": "linear_in_out"},
    "transformers.modeling_utils": {"Conv1D": "linear_in_out"},
}
_WITH_CHILDREN = frozenset(("multi_head_attention", "transformer_encoder_layer", "transformer_decoder_layer"))
"""Kinds with names of their own for the layers inside them."""

_RECURRENT: Mapping[str, int | bool | None] = {"num_layers": None, "bidirectional": None, "proj_size": 0}
_NORM_FIRST: Mapping[str, int | bool | None] = {"norm_first": False}
_FACTS: Mapping[str, Mapping[str, int | bool | None]] = {
    "batch_norm": {"affine": True},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "rnn": _RECURRENT,
    "transformer_encoder_layer": _NORM_FIRST,
    "transformer_decoder_layer": _NORM_FIRST,
    "multi_head_attention": {"num_heads": None},
    **{f"{kind}{n}d": {"groups": None} for kind in ("conv", "conv_transpose") for n in (1, 2, 3)},
}
"""Attributes that are facts of a layer, and what a model means that was saved before PyTorch had them: None where it always had."""
_NUMBERS = frozenset(("num_layers", "proj_size", "num_heads", "groups"))


def tell_layers(modules: Mapping[str, Call]) -> tuple[Layer, ...]:
    """Give the layers of known kinds among modules, which come by path and each before the modules inside it."""
    layers: list[Layer] = []
    around: list[Layer] = []
    for path, call in modules.items():
        while around and not _is_inside(path, around[-1].path):
            around.pop()
        kind = _kind_of(call)
        if kind is None:
            continue
        layer = Layer(kind=kind, path=path, parent=around[-1] if around else None, facts=_facts_of(kind, call))
        layers.append(layer)
        if kind in _WITH_CHILDREN:
            around.append(layer)
    return tuple(layers)


def tell_submodules(modules: Mapping[str, Call], state_metadata: Mapping[str, Any]) -> frozenset[str]:
    """Give the paths of all modules that are known of, the root's not: those of whole models, and those that state dicts speak of."""
    found = {*modules, *state_metadata}
    for path, call in modules.items():
        found.update(f"{path}.{name}" if path else name for name in _children_of(call))
    found.discard("")
    return frozenset(found)


def _children_of(call: Call) -> Iterator[str]:
    """Give the names of the modules in a module: one without tensors that is used twice was walked once."""
    state = module_state(call)
    inside = call.state if state is None else state["_modules"]
    for name, held in inside.items():
        value = without_compile(held)
        if type(name) is str and type(value) is Call and (module_state(value) is not None or is_scripted(value)):
            yield name


def _is_inside(path: str, outer: str) -> bool:
    return not outer or (len(path) > len(outer) and path[len(outer)] == "." and path.startswith(outer))


def _kind_of(call: Call) -> str | None:
    cls = call.func
    if type(cls) is not Global:
        return None
    module = _MANGLED.sub("", cls.module.removeprefix("__torch__."))
    return _CLASSES.get(module, {}).get(cls.name)


def _facts_of(kind: str, call: Call) -> dict[str, int | bool | str]:
    """Read what was set on a layer; TorchScript keeps such constants in its code, and so says nothing but by names."""
    known = _FACTS.get(kind)
    if known is None:
        return {}
    state = module_state(call)
    facts = recurrent_facts(call.state) if state is None and known is _RECURRENT else {}
    for name, default in known.items():
        value = call.state.get(name) if state is None else state.get(name, default)
        if type(value) is (int if name in _NUMBERS else bool):
            facts[name] = value
    return facts
