"""Loads between models whose names differ: what is taken, what is left alone, what is proposed, and what is not looked into at all."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep.applying import _attempt
from firekeep.bridges import bridge_of
from firekeep.rules.layout import moved


def convolutions(*, normed: bool) -> nn.Module:
    """Six convolutions, as VGG has them, with norms or without."""
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    channels = 3
    for width in (4, 8, 8, 8, 8, 8):
        layers += [nn.Conv2d(channels, width, 3), *([nn.BatchNorm2d(width)] if normed else []), nn.ReLU()]
        channels = width
    model = nn.Module()
    model.features = nn.Sequential(*layers)
    return model


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_lenient_load_leaves_layers_alone_that_only_share_a_number(suffix: str, tmp_path: Path):
    file, model = tmp_path / f"plain{suffix}", convolutions(normed=True)
    plain = convolutions(normed=False)
    torch.save(plain.state_dict(), file) if suffix == ".pt" else firekeep.save(plain, file)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    report = firekeep.load_into(model, file, strict=False)
    assert set(report.applied) == {"features.0.weight", "features.0.bias"}
    (doubt,) = report.ambiguities
    assert doubt.want == "features.4, features.6, features.10"
    assert "in doubt, so not taken" in str(report)
    for name, value in model.state_dict().items():
        assert (name in report.applied) or torch.equal(value, before[name])

    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(model, file)
    assert not caught.value.report.ambiguities, "a strict load is refused by what is missing"
    assert firekeep.load_into(model, file, strict=False, match="exact", dry_run=True).ambiguities == ()


def test_a_longer_list_and_a_part_of_one_are_loaded_leniently_as_ever(tmp_path: Path):
    firekeep.save(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))), tmp_path / "three.pt.safetensors")
    for layers in (2, 5):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
        report = firekeep.load_into(model, tmp_path / "three.pt.safetensors", strict=False)
        assert len(report.applied) == 2 * min(layers, 3)
        assert not report.ambiguities


class Block(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.ModuleDict({part: nn.Linear(4, 4) for part in "qkvo"}))
        self.norm = nn.LayerNorm(4)


def blocks(name: str) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(Block(name) for _ in range(3))
    return model


@pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])
def test_a_part_that_is_called_otherwise_in_every_layer_is_a_rename_away(suffix: str, tmp_path: Path):
    firekeep.save(blocks("self_attn"), tmp_path / f"m{suffix}")
    model = blocks("attn")
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(model, tmp_path / f"m{suffix}")
    (remedy,) = caught.value.report.remedies
    assert remedy.python == r'rename=[r"\.self_attn\.=>.attn."]'
    rules = ast.literal_eval(remedy.python.removeprefix("rename="))
    assert firekeep.load_into(model, tmp_path / f"m{suffix}", rename=rules).exact


def test_unused_names_are_told_with_what_renames_made_of_them(tmp_path: Path):
    one = np.zeros(2, np.float32)
    firekeep.save({"a.0.w": one, "a.1.w": one, "b": one, "c": one}, tmp_path / "m.safetensors")
    report = firekeep.load_into({"b": one.copy()}, tmp_path / "m.safetensors", rename=["^a=>x"], strict=False)
    assert report.unused == ("a.0.w", "a.1.w", "c")
    assert report.unused_renamed == {"a.0.w": "x.0.w", "a.1.w": "x.1.w"}
    assert "'a.{0,1}.w' [2]; renamed: 'x.{0,1}.w'" in str(report)
    assert [one["renamed"] for one in report.to_dict()["unused"]] == ["x.0.w", "x.1.w", None]


def test_renamed_layers_have_renamed_parents():
    model = nn.Module()
    model.enc = nn.TransformerEncoderLayer(4, 2, 8)
    outline = bridge_of(model).outline(model)
    layers = list(moved(outline.layers, {path: f"x.{path}" for path in outline.paths()}))
    paths = {layer.path for layer in layers}
    parents = {layer.parent.path for layer in layers if layer.parent is not None}
    assert parents == {"x.enc", "x.enc.self_attn"} <= paths
    # one that the renames take apart is a parent no more: the next around it is
    split = {path: path.replace("self_attn.out", "mine") if "out" in path else path for path in outline.paths()}
    apart = {layer.path: layer.parent for layer in moved(outline.layers, split)}
    assert apart["enc.mine_proj"].path == "enc"


def test_other_layouts_are_not_worked_out_for_names_that_none_of_them_has(tmp_path: Path, monkeypatch):
    model = nn.Module()
    model.stages = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(20))
    firekeep.save({f"blocks.{i}.weight": np.zeros((2, 2), np.float32) for i in range(20)}, tmp_path / "m.safetensors")
    tried = []
    attempt = _attempt.attempt
    monkeypatch.setattr(_attempt, "attempt", lambda *args: tried.append(args[3]) or attempt(*args))
    report = firekeep.load_into(model, tmp_path / "m.safetensors", dry_run=True)
    assert report.nothing_matched
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("layout", "told"), [("burn", "burn"), ("flax", "flax"), ("linen", "flax"), ("keras", "keras")]
)
def test_a_layout_that_fits_is_found_by_a_sample_of_the_model(layout, told, tmp_path: Path):
    def make() -> nn.Module:
        model = nn.Module()
        model.net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5), nn.LayerNorm(5))
        model.table = nn.Embedding(6, 3)
        return model

    firekeep.save(make(), tmp_path / "m.safetensors", layout=layout)
    report = firekeep.load_into(make(), tmp_path / "m.safetensors", layout="torch", dry_run=True)
    assert not report.ok
    assert [one.python for one in report.remedies] == [f"layout={told!r}"]
    assert firekeep.load_into(make(), tmp_path / "m.safetensors", layout=layout).exact


def test_a_bias_of_a_layer_of_another_rank_is_another_layers(tmp_path):
    saved = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    torch.save(saved.state_dict(), tmp_path / "n.pt")
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    before = model[0].bias.detach().clone()
    with pytest.raises(firekeep.LoadError):
        firekeep.load_into(model, tmp_path / "n.pt", strict=False)
    assert torch.equal(model[0].bias, before)


@pytest.mark.parametrize("rename", [r"encoder_q\.=>", r"^encoder_q\.=>model."])
def test_a_part_that_a_rename_names_is_chosen(tmp_path, rename):
    wanted, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    parts = {"encoder_q": wanted, "encoder_k": other}
    torch.save(
        {f"{part}.{n}": v for part, one in parts.items() for n, v in one.state_dict().items()}, tmp_path / "moco.pt"
    )
    model = torch.nn.Linear(3, 2)
    firekeep.load_into(model, tmp_path / "moco.pt", rename=rename, allow_unused=True)
    assert torch.equal(model.weight, wanted.weight)
