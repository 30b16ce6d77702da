"""What a save is to be like has the names of after its surgery and its renames: where these have an inverse, it tells the layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import firekeep

ENDS = (("weight", 1), ("bias", 0))  # the layout comes first, and in Burn's a linear weight is [in, out]
CUT = [{"split": rf"\.qkv\.{end}$", "into": [f".{part}.{end}" for part in "qkv"], "axis": axis} for end, axis in ENDS]
JOIN = [{"merge": [rf"\.{part}\.{end}$" for part in "qkv"], "into": f".qkv.{end}", "axis": axis} for end, axis in ENDS]


def fused() -> nn.Module:
    model = nn.Module()
    model.att = nn.ModuleDict({"qkv": nn.Linear(4, 9), "norm": nn.LayerNorm(4)})
    return model


def parted() -> nn.Module:
    model = nn.Module()
    model.att = nn.ModuleDict({**{part: nn.Linear(4, 3) for part in "qkv"}, "norm": nn.LayerNorm(4)})
    return model


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name.replace("att.", "old."): value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("as_file", [False, True], ids=["a model", "a file"])
@pytest.mark.parametrize(("make", "other", "surgery"), [(fused, parted, CUT), (parted, fused, JOIN)])
def test_layers_are_told_by_what_it_will_be_like(make, other, surgery, as_file, tmp_path: Path):
    like = other()
    if as_file:
        like = tmp_path / "like.bpk"
        firekeep.save(other(), like)
    source, target = make(), other()
    firekeep.save(state_of(source), tmp_path / "m.bpk", like=like, layout="burn", surgery=surgery, rename=["^old=>att"])
    assert firekeep.load_into(target, tmp_path / "m.bpk").exact

    def values(model: nn.Module, end: str) -> torch.Tensor:
        found = model.state_dict()
        return (
            found[f"att.qkv.{end}"]
            if f"att.qkv.{end}" in found
            else torch.cat([found[f"att.{p}.{end}"] for p in "qkv"])
        )

    for end in ("weight", "bias"):
        assert torch.equal(values(source, end), values(target, end))
    assert torch.equal(source.att.norm.weight, target.att.norm.weight)


def test_surgery_without_an_inverse_leaves_nothing_to_tell_the_layers(tmp_path: Path):
    surgery = [{"split": r"\.qkv\.(?=weight|bias)", "into": [".q.", ".k.", ".v."]}]
    with pytest.raises(firekeep.FirekeepError, match=r"has nothing like 'old\.qkv\.weight'"):
        firekeep.save(
            state_of(fused()), tmp_path / "m.bpk", like=parted(), layout="burn", surgery=surgery, rename=["^old=>att"]
        )
    assert not (tmp_path / "m.bpk").exists()
