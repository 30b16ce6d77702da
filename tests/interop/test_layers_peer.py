"""Whole models as PyTorch pickles them tell their layers and modules as PyTorch itself knows them."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import firekeep
from firekeep.opened import OpenedFile

MADE = Path(__file__).parents[1] / "data" / "made"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
        self.attention = nn.MultiheadAttention(4, 2)
        self.lstm = nn.LSTM(4, 3, num_layers=2, bidirectional=True, proj_size=2)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(4, 2, 8)
        self.act = self.net[1]


def saved(value: Any, **options: Any) -> OpenedFile:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return firekeep.open(out.getvalue())


def named(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_modules(remove_duplicate=False) if name}


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_whole_model_tells_its_layers(new):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a legacy file would keep the source of Block, and warns when it cannot
        file = saved(Block(), _use_new_zipfile_serialization=new)
    assert [(layer.path, layer.kind, layer.parent.path if layer.parent else None) for layer in file.layers] == [
        ("net.0", "linear", None),
        ("net.2", "batch_norm", None),
        ("net.4", "linear", None),
        ("attention", "multi_head_attention", None),
        ("attention.out_proj", "linear", "attention"),
        ("lstm", "lstm", None),
        ("encoder", "transformer_encoder_layer", None),
        ("encoder.self_attn", "multi_head_attention", "encoder"),
        ("encoder.self_attn.out_proj", "linear", "encoder.self_attn"),
        ("encoder.linear1", "linear", "encoder"),
        ("encoder.linear2", "linear", "encoder"),
        ("encoder.norm1", "layer_norm", "encoder"),
        ("encoder.norm2", "layer_norm", "encoder"),
        ("decoder", "transformer_decoder_layer", None),
        ("decoder.self_attn", "multi_head_attention", "decoder"),
        ("decoder.self_attn.out_proj", "linear", "decoder.self_attn"),
        ("decoder.multihead_attn", "multi_head_attention", "decoder"),
        ("decoder.multihead_attn.out_proj", "linear", "decoder.multihead_attn"),
        ("decoder.linear1", "linear", "decoder"),
        ("decoder.linear2", "linear", "decoder"),
        ("decoder.norm1", "layer_norm", "decoder"),
        ("decoder.norm2", "layer_norm", "decoder"),
        ("decoder.norm3", "layer_norm", "decoder"),
    ]
    facts = {layer.path: dict(layer.facts) for layer in file.layers if layer.facts}
    assert facts == {
        "net.2": {"affine": True},
        "attention": {"num_heads": 2},
        "encoder.self_attn": {"num_heads": 2},
        "decoder.self_attn": {"num_heads": 2},
        "decoder.multihead_attn": {"num_heads": 2},
        "lstm": {"num_layers": 2, "bidirectional": True, "proj_size": 2},
        "encoder": {"norm_first": True},
        "decoder": {"norm_first": False},
    }


def test_a_whole_model_and_its_state_dict_tell_the_same_modules():
    model = Block()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert saved(model).submodules == named(model)
    assert saved(model.state_dict()).submodules == named(model)


LAYERS = [
    nn.Embedding(3, 2),
    nn.Conv1d(1, 1, 1),
    nn.Conv2d(1, 1, 1),
    nn.Conv3d(1, 1, 1),
    nn.ConvTranspose1d(1, 1, 1),
    nn.ConvTranspose2d(1, 1, 1),
    nn.ConvTranspose3d(1, 1, 1),
    nn.BatchNorm2d(2),
    nn.BatchNorm3d(2),
    nn.LayerNorm(2),
    nn.GroupNorm(1, 2),
    nn.RMSNorm(2),
    nn.InstanceNorm1d(2, affine=True),
    nn.InstanceNorm2d(2, affine=True),
    nn.InstanceNorm3d(2, affine=True),
    nn.PReLU(),
    nn.GRU(1, 1),
    nn.RNN(1, 1),
]


def test_every_kind_is_told_by_the_class_of_this_pytorch():
    file = saved(nn.ModuleList(LAYERS))
    assert [layer.kind for layer in file.layers] == [
        "embedding",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "batch_norm",
        "batch_norm",
        "layer_norm",
        "group_norm",
        "rms_norm",
        "instance_norm",
        "instance_norm",
        "instance_norm",
        "prelu",
        "gru",
        "rnn",
    ]


def test_torchscript_tells_its_layers_and_no_facts_that_are_in_its_code():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act, self.out = nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.act(self.fc(x)))

    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.trace(Net(), torch.zeros(1, 2)), out)
    file = firekeep.open(out.getvalue())
    assert [(layer.path, layer.kind, dict(layer.facts)) for layer in file.layers] == [
        ("fc", "linear", {}),
        ("out", "linear", {}),
    ]
    assert file.submodules == {"fc", "act", "out"}


def test_the_model_whose_class_nobody_has_tells_its_layers():
    with firekeep.open(MADE / "full_model.pt") as model, firekeep.open(MADE / "full_model_state_dict.pt") as state:
        assert {layer.path: layer.kind for layer in model.layers} == {
            "fc": "linear",
            "head": "linear",
            "blocks.0": "linear",
            "blocks.1": "batch_norm",
            "tied": "linear",
        }
        assert model.submodules == state.submodules == {"fc", "head", "blocks", "blocks.0", "blocks.1", "tied"}
