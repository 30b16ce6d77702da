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


class Adapted(nn.Linear):
    """A linear layer with matrices beside its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_a = nn.Parameter(torch.randn(4, inputs))
        self.lora_b = nn.Parameter(torch.randn(outputs, 4))


def encoder(kind: Any) -> nn.Module:
    """A layer whose parts have other names in Burn, with classes of one's own in it."""
    layer = nn.TransformerEncoderLayer(4, 2, 4)
    layer.linear1, layer.self_attn.out_proj = kind(4, 4), kind(4, 4)
    return layer


@pytest.mark.parametrize("kind", [Own, Adapted])
@pytest.mark.parametrize("how", ["save", "chain", "collect", "record"])
def test_in_layers_that_have_other_names_in_burn(tmp_path, kind: Any, how: str):
    source, model = encoder(kind), encoder(kind)
    if how == "collect":
        firekeep.apply(model, firekeep.collect(source, layout="burn"))
    elif how == "record":
        ModuleRecord.from_bytes(ModuleRecord.of(source).to_bytes()).apply(model)
    else:
        firekeep.save(source, tmp_path / "a.bpk")
        if how == "chain":
            firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout="torch", like=source)
            firekeep.convert(tmp_path / "b.safetensors", tmp_path / "a.bpk", layout="burn", like=source, overwrite=True)
        firekeep.load_into(model, tmp_path / "a.bpk")
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("saved", [nn.Linear, nn.Embedding, Own])
@pytest.mark.parametrize("like", [nn.Linear, nn.Embedding, Own])
def test_a_file_that_became_pytorchs_again_is_what_it_was_whatever_it_is_to_be_like(tmp_path, saved: Any, like: Any):
    source = nn.ModuleDict({"fc": saved(4, 4), "other": nn.Linear(2, 3)})
    other = nn.ModuleDict({"fc": like(4, 4), "other": nn.Linear(2, 3)})
    firekeep.save(source, tmp_path / "a.bpk")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout="torch", like=other)
    made = firekeep.load_file(tmp_path / "b.safetensors")
    assert {name: value.tolist() for name, value in made.items()} == {
        name: value.tolist() for name, value in source.state_dict().items()
    }


def test_what_an_optimizer_keeps_of_it_lies_as_it_does(tmp_path):
    """In a checkpoint that Burn reads."""

    def make() -> firekeep.TrainingState:
        model = encoder(Own)
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        return firekeep.TrainingState(model=model, optimizer=optimizer, layout="burn")

    source, state = make(), make()
    with firekeep.CheckpointManager(tmp_path, layout="burn") as manager:
        manager.save(source, step=1)
        manager.restore(state)
    for (name, value), other in zip(source.model.named_parameters(), state.model.parameters(), strict=True):
        assert torch.equal(value, other), name
        mine, theirs = source.optimizer.state[value], state.optimizer.state[other]
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
