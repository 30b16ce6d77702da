"""A weight in a class that nobody knows: whether it was turned round on its way into a file of Burn's is told, or refused, never guessed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import firekeep
from firekeep import LoadError, ModuleRecord


class Own(nn.Module):
    """A linear layer as many write it themselves."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))


class Table(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))


def net(layer: Any) -> nn.Module:
    return nn.ModuleDict({"fc": layer, "other": nn.Linear(2, 3)})


def weight(model: Any) -> torch.Tensor:
    return model["fc"].weight.detach()


@pytest.mark.parametrize("size", [(4, 4), (4, 6)])
@pytest.mark.parametrize(("saved", "loaded"), [(nn.Linear, Own), (Own, nn.Linear), (Own, Own), (nn.Linear, nn.Linear)])
@pytest.mark.parametrize("how", ["save", "convert", "rename", "collect"])
def test_it_comes_out_as_pytorch_would_have_it(tmp_path, size: tuple[int, int], saved: Any, loaded: Any, how: str):
    source, model = net(saved(*size)), net(loaded(*size))
    if how == "collect":
        report = firekeep.apply(model, firekeep.collect(source, layout="burn"))
    else:
        firekeep.save(source, tmp_path / "m.bpk", rename=r"^fc=>head" if how == "rename" else ())
        if how == "convert":
            firekeep.convert(tmp_path / "m.bpk", tmp_path / "n.safetensors", rename=r"^fc=>old")
            firekeep.convert(tmp_path / "n.safetensors", tmp_path / "m.bpk", rename=r"^old=>fc", overwrite=True)
        report = firekeep.load_into(model, tmp_path / "m.bpk", rename=r"^head=>fc" if how == "rename" else ())
    assert report.exact
    assert torch.equal(weight(model), weight(source))


@pytest.mark.parametrize("size", [(4, 4), (4, 6)])
@pytest.mark.parametrize(("saved", "loaded"), [(nn.Embedding, Table), (Table, nn.Embedding)])
def test_tables_are_never_turned(tmp_path, size: tuple[int, int], saved: Any, loaded: Any):
    source, model = net(saved(*size)), net(loaded(*size))
    firekeep.save(source, tmp_path / "m.bpk")
    assert firekeep.load_into(model, tmp_path / "m.bpk").exact
    assert torch.equal(weight(model), weight(source))


@pytest.mark.parametrize(("saved", "loaded"), [(nn.Linear, nn.Embedding), (nn.Embedding, nn.Linear)])
def test_an_embedding_and_a_linear_layer_swap_their_numbers_as_in_pytorch(tmp_path, saved: Any, loaded: Any):
    source, model = (nn.ModuleDict({"fc": kind(4, 4)}) for kind in (saved, loaded))
    firekeep.save(source, tmp_path / "m.bpk")
    firekeep.load_into(model, tmp_path / "m.bpk", strict=False)
    assert torch.equal(weight(model), weight(source))


def test_a_square_of_burns_own_is_refused_by_name(tmp_path):
    """Its file says of no tensor what layer it is of."""
    module = firekeep.module.Linear(4, 4)
    ModuleRecord.of(module).save(tmp_path / "m.bpk")
    model = Own(4, 4)
    before = model.weight.detach().clone()
    with pytest.raises(LoadError) as refused:
        firekeep.load_into(model, tmp_path / "m.bpk")
    assert [problem.name for problem in refused.value.report.errors] == ["weight"]
    assert "Burn turns the weights of Linear layers round" in " ".join(str(refused.value).split())
    assert torch.equal(model.weight, before)
    report = firekeep.load_into(model, tmp_path / "m.bpk", exclude="weight", allow_unused=True)
    assert report.applied == ("bias",)


def test_what_is_no_list_of_names_is_refused(tmp_path):
    firekeep.save(Own(4, 4), tmp_path / "m.bpk", metadata={"firekeep.as_in_torch": "[1]"})
    with pytest.raises(firekeep.MetadataError, match="no list of names"):
        firekeep.load_into(Own(4, 4), tmp_path / "m.bpk")
