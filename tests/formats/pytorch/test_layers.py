"""What a pickled model tells of its layers: the names of classes and what was set on them, and nothing that a file made up."""

from __future__ import annotations

from typing import Any

import pytest

import firekeep
from firekeep.opened import OpenedFile
from pickles import NONE, TRUE, floats, mapping, new, number, ordered, pickled, sequence, tensor, text, zip_file

LINEAR = ("torch.nn.modules.linear", "Linear")
ENCODER = ("torch.nn.modules.transformer", "TransformerEncoderLayer")
ATTENTION = ("torch.nn.modules.activation", "MultiheadAttention")
LSTM = ("torch.nn.modules.rnn", "LSTM")
ACTIVATION = ("torch.nn.modules.activation", "ReLU")
WEIGHT = tensor("FloatStorage", "0", 1)


def made(
    cls: tuple[str, str],
    children: dict[str, bytes] | None = None,
    *,
    parameters: dict[str, bytes] | None = None,
    attributes: dict[str, bytes] | None = None,
) -> bytes:
    tables = {"_parameters": parameters or {}, "_buffers": {}, "_modules": children or {}}
    state = {"training": TRUE, **{name: ordered(held) for name, held in tables.items()}, **(attributes or {})}
    return new(*cls, mapping(state))


def weighted(cls: tuple[str, str], **options: Any) -> bytes:
    return made(cls, parameters={"weight": WEIGHT}, **options)


def opened(body: bytes, **options: Any) -> OpenedFile:
    return firekeep.open(zip_file(pickled(body), {"0": floats(1.0)}), **options)


def kinds(file: OpenedFile) -> dict[str, str]:
    return {layer.path: layer.kind for layer in file.layers}


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        (*LINEAR, "linear"),
        ("torch.nn.modules.linear", "NonDynamicallyQuantizableLinear", "linear"),
        ("torch.nn.modules.linear", "_LinearWithBias", "linear"),
        ("transformers.pytorch_utils", "Conv1D", "linear_in_out"),
        ("transformers.modeling_utils", "Conv1D", "linear_in_out"),
        ("torch.nn.modules.conv", "ConvTranspose3d", "conv_transpose3d"),
        ("torch.nn.modules.batchnorm", "SyncBatchNorm", "batch_norm"),
        ("torch.nn.modules.linear", "Bilinear", None),
        ("somebody.modules.linear", "Linear", None),
        ("torch.nn.modules.activation", "Linear", None),
    ],
)
def test_a_kind_is_the_whole_name_of_a_class(module, name, kind):
    file = opened(made(("my", "Net"), {"fc": weighted((module, name))}))
    assert kinds(file) == ({} if kind is None else {"fc": kind})


def test_a_model_that_is_a_layer_has_no_path():
    file = opened(weighted(LINEAR))
    assert kinds(file) == {"": "linear"}
    assert file.submodules == frozenset()


def test_layers_know_the_layer_around_them_that_names_its_children():
    attention = weighted(ATTENTION, children={"out_proj": weighted(LINEAR)})
    block = made(ENCODER, {"self_attn": attention, "wrapped": made(("my", "Pair"), {"0": weighted(LINEAR)})})
    file = opened(made(("my", "Net"), {"blocks": made(("my", "Stack"), {"0": block}), "blocks0": weighted(LINEAR)}))
    parents = {layer.path: layer.parent.path if layer.parent else None for layer in file.layers}
    assert parents == {
        "blocks.0": None,
        "blocks.0.self_attn": "blocks.0",
        "blocks.0.self_attn.out_proj": "blocks.0.self_attn",
        "blocks.0.wrapped.0": "blocks.0",
        "blocks0": None,
    }


def test_layers_inside_a_model_that_is_a_layer_know_it():
    file = opened(made(ENCODER, {"linear1": weighted(LINEAR)}))
    assert [(layer.path, layer.parent and layer.parent.kind) for layer in file.layers] == [
        ("", None),
        ("linear1", "transformer_encoder_layer"),
    ]


@pytest.mark.parametrize(
    ("attributes", "facts"),
    [
        ({"norm_first": TRUE}, {"norm_first": True}),
        ({}, {"norm_first": False}),  # PyTorch before 1.11 had no other order
        ({"norm_first": number(1)}, {}),
        ({"norm_first": NONE}, {}),
    ],
)
def test_the_order_of_norms_is_a_fact(attributes, facts):
    (layer,) = opened(weighted(ENCODER, attributes=attributes)).layers
    assert layer.facts == facts


@pytest.mark.parametrize(
    ("attributes", "facts"),
    [
        (
            {"num_layers": number(2), "bidirectional": TRUE, "proj_size": number(3)},
            {"num_layers": 2, "bidirectional": True, "proj_size": 3},
        ),
        ({"num_layers": number(2)}, {"num_layers": 2, "proj_size": 0}),
        ({"num_layers": TRUE, "bidirectional": number(0), "proj_size": text("3")}, {}),
    ],
)
def test_what_is_set_on_a_recurrent_layer_is_a_fact_where_it_is_of_the_right_kind(attributes, facts):
    (layer,) = opened(weighted(LSTM, attributes=attributes)).layers
    assert layer.facts == facts


def test_modules_without_tensors_are_known_at_every_place():
    relu = made(ACTIVATION) + b"q\x09"  # remembered, and used again
    children = {"0": weighted(LINEAR), "1": relu, "2": weighted(LINEAR), "3": b"h\x09"}
    file = opened(made(("my", "Net"), {"net": made(("torch.nn.modules.container", "Sequential"), children)}))
    assert file.submodules == {"net", "net.0", "net.1", "net.2", "net.3"}


def test_a_layer_under_two_names_is_two_layers():
    shared = weighted(LINEAR) + b"q\x09"
    file = opened(made(("my", "Net"), {"a": shared, "b": b"h\x09"}))
    assert kinds(file) == {"a": "linear", "b": "linear"}


def test_models_inside_a_checkpoint_take_its_names_and_lose_the_part_that_was_asked_for():
    body = mapping({"epoch": number(3), "nets": sequence(made(("my", "Net"), {"fc": weighted(LINEAR)}))})
    assert kinds(opened(body)) == {"nets.0.fc": "linear"}
    assert opened(body).submodules == {"nets.0", "nets.0.fc"}
    narrowed = opened(body, top_level_key="nets.0")
    assert kinds(narrowed) == {"fc": "linear"}
    assert narrowed.submodules == {"fc"}


def test_a_state_dict_tells_its_modules_and_no_layers():
    metadata = mapping({name: mapping({"version": number(1)}) for name in ("", "net", "net.0", "net.1")})
    state = ordered({"net.0.weight": WEIGHT}, metadata)
    body = mapping({"state_dict": state})
    assert opened(state).submodules == {"net", "net.0", "net.1"}
    assert opened(body).submodules == {"state_dict", "state_dict.net", "state_dict.net.0", "state_dict.net.1"}
    assert opened(body, top_level_key="state_dict").submodules == {"net", "net.0", "net.1"}
    assert opened(state).layers == ()


def test_a_plain_dictionary_tells_nothing():
    file = opened(mapping({"fc.weight": WEIGHT}))
    assert (file.layers, file.submodules) == ((), frozenset())
