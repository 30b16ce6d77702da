"""Layers that are one tensor in PyTorch and several in Burn: what tells them, and what is said where nothing does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import firekeep
from firekeep.errors import RuleError


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(8, 3)


LAYERS = {
    "lstm": lambda: nn.LSTM(4, 8),
    "gru": lambda: nn.GRU(4, 8, bias=False),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16),
}


@pytest.fixture(params=sorted(LAYERS))
def files(tmp_path, request):
    """A state dict, the whole model, and a file of Burn's, which does not tell its layers."""
    net = Net(LAYERS[request.param]())
    torch.save(net.state_dict(), tmp_path / "net.pt")
    torch.save(net, tmp_path / "whole.pt")
    firekeep.save(net, tmp_path / "told.bpk")
    firekeep.save_file(firekeep.load_file(tmp_path / "told.bpk"), tmp_path / "net.bpk")
    return tmp_path


@pytest.mark.parametrize(("source", "layout", "like"), [("net.pt", "burn", "net.bpk"), ("net.bpk", "torch", "net.pt")])
def test_two_files_do_not_tell_and_a_whole_model_does(files, source, layout, like):
    out = files / ("out.bpk" if layout == "burn" else "out.safetensors")
    with pytest.raises(RuleError, match="no renames do and two files do not tell") as caught:
        firekeep.convert(files / source, out, layout=layout, like=files / like)
    assert "a PyTorch file of a whole model (torch.save(model, path))" in caught.value.remedy
    assert "rename" not in caught.value.remedy
    report = firekeep.convert(files / source, out, layout=layout, like=files / "whole.pt")  # what it says to do
    assert report.layout == layout


@pytest.mark.parametrize(("source", "layout"), [("net.pt", "burn"), ("net.bpk", "torch")])
def test_without_like_the_file_to_give_is_one_that_would_do(files, source, layout):
    with pytest.raises(RuleError) as caught:
        firekeep.convert(files / source, files / "out.safetensors", layout=layout)
    assert "a PyTorch file of a whole model" in caught.value.remedy


@pytest.mark.parametrize(("source", "like"), [("net.pt", "net.bpk"), ("net.bpk", "net.pt")])
def test_a_preview_says_so_instead_of_missing_tensors(files, source, like):
    with pytest.raises(RuleError, match="neither file tells of what layer") as caught:
        firekeep.preview(files / source, files / like)
    assert "in place of the state dict" in caught.value.remedy
    names = [name if name.endswith(".bpk") else "whole.pt" for name in (source, like)]
    assert firekeep.preview(*(files / name for name in names)).ok


def test_what_the_filter_leaves_out_is_not_asked_about(files):
    report = firekeep.preview(files / "net.bpk", files / "net.pt", include="^head", allow_unused=True)
    assert report.applied == ("head.bias", "head.weight")


def test_linear_layers_are_still_told_by_two_files(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    firekeep.save(net, tmp_path / "told.bpk")
    firekeep.save_file(firekeep.load_file(tmp_path / "told.bpk"), tmp_path / "net.bpk")
    assert firekeep.preview(tmp_path / "net.pt", tmp_path / "net.bpk").ok
    with pytest.raises(RuleError) as caught:
        firekeep.convert(tmp_path / "net.pt", tmp_path / "out.bpk", layout="burn")
    assert "a file of that layout" in caught.value.remedy
