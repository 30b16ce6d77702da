"""Norms of classes of one's own: they take the scale that another framework's norm calls otherwise, where that is told; matrices never."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from torch import nn

import firekeep
from firekeep import LoadError


class MyNorm(nn.Module):
    def __init__(self, size: int = 4, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        if bias:
            self.bias = nn.Parameter(torch.zeros(size))


class Theirs(nnx.Module):
    """Nobody knows what kind of layer this is."""

    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.arange(4.0))


class Source(nnx.Module):
    def __init__(self, norm: Any) -> None:
        self.fc = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.norm = norm


class Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = norm


def rms() -> Any:
    made = nnx.RMSNorm(4, rngs=nnx.Rngs(0))
    made.scale[...] = jnp.arange(4.0)
    return made


def layer() -> Any:
    made = nnx.LayerNorm(4, rngs=nnx.Rngs(0))
    made.scale[...], made.bias[...] = jnp.arange(4.0), -jnp.arange(4.0)
    return made


def put(model: nn.Module, source: Any, how: str, tmp_path, **options: Any) -> Any:
    if how == "object":
        return firekeep.apply(model, source, **options)
    name, layout = how.split(" ")
    firekeep.save(source, tmp_path / f"m.{name}", layout=layout)
    return firekeep.load_into(model, tmp_path / f"m.{name}", **options)


HOWS = ["object", "bpk burn", "bpk flax", "safetensors burn", "safetensors flax", "safetensors keras"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_norm_of_flax_goes_into_a_class_that_nobody_knows(tmp_path, how: str, bias: bool):
    model, source = Net(MyNorm(bias=bias)), Source(layer() if bias else rms())
    report = put(model, source, how, tmp_path)
    assert report.exact
    assert model.norm.weight.tolist() == [0, 1, 2, 3]
    assert not bias or model.norm.bias.tolist() == [0, -1, -2, -3]
    assert model.fc.weight.tolist() == source.fc.kernel[...].T.tolist()
    assert any("norm.weight" in step for step in report.steps)


def test_behind_a_wrapper_and_in_lists():
    class Many(nnx.Module):
        def __init__(self) -> None:
            self.blocks = nnx.List([Source(rms()) for _ in range(3)])

    model = nn.ModuleDict({"model": nn.ModuleDict({"blocks": nn.ModuleList([Net(MyNorm()) for _ in range(3)])})})
    assert firekeep.apply(model, Many()).exact
    assert model["model"]["blocks"][2].norm.weight.tolist() == [0, 1, 2, 3]


def test_a_class_that_the_source_does_not_know_either_is_left_to_a_remedy():
    model = Net(MyNorm())
    with pytest.raises(LoadError) as caught:
        firekeep.apply(model, Source(Theirs()))
    (remedy,) = caught.value.report.remedies
    assert remedy.python == r'rename=[r"\.scale$=>.weight"]'
    assert firekeep.apply(model, Source(Theirs()), rename=[r"\.scale$=>.weight"]).exact
    assert model.norm.weight.tolist() == [0, 1, 2, 3]


def test_equal_names_only_where_that_was_asked_for(tmp_path):
    with pytest.raises(LoadError, match="1 missing, 1 unused"):
        put(Net(MyNorm()), Source(rms()), "bpk flax", tmp_path, match="exact")


class Both(nn.Module):
    """Has a tensor of the source's own name, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.scale = nn.Parameter(torch.zeros(4))


@pytest.mark.parametrize("how", ["object", "bpk flax"])
def test_what_has_the_very_name_takes_it(tmp_path, how: str):
    model = Net(Both())
    with pytest.raises(LoadError) as caught:
        put(model, Source(rms()), how, tmp_path)
    assert list(caught.value.report.missing) == ["norm.weight"]


def test_a_scale_beside_a_kernel_is_no_norm(tmp_path):
    class Scaled(nnx.Module):
        def __init__(self) -> None:
            self.kernel, self.scale = nnx.Param(jnp.ones((4, 4))), nnx.Param(jnp.ones(4))

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.weight = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(4))

    with pytest.raises(LoadError, match="1 missing, 1 unused"):
        put(Net(Mine()), Source(Scaled()), "bpk flax", tmp_path)


def test_matrices_are_never_taken_for_norms(tmp_path):
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4))

    wide = Theirs()
    wide.scale = nnx.Param(jnp.ones((4, 4)))
    with pytest.raises(LoadError) as caught:
        put(Net(Wide()), Source(wide), "bpk flax", tmp_path)
    assert not any("rename" in remedy.python for remedy in caught.value.report.remedies)


def test_the_older_names_of_norms_in_a_state_dict_are_a_remedy_and_no_other_layout(tmp_path):
    given = {
        "fc.weight": torch.ones(4, 4),
        "fc.bias": torch.ones(4),
        "norm.gamma": torch.ones(4),
        "norm.beta": torch.ones(4),
    }
    torch.save(given, tmp_path / "m.pt")
    with pytest.raises(LoadError) as caught:
        firekeep.load_into(Net(MyNorm(bias=True)), tmp_path / "m.pt")
    (remedy,) = caught.value.report.remedies
    assert remedy.python == r'rename=[r"\.gamma$=>.weight", r"\.beta$=>.bias"]'


def test_a_norm_of_pytorch_goes_into_a_class_of_flax_that_nobody_knows():
    source = Net(nn.LayerNorm(4, bias=False))
    target = Source(Theirs())
    assert firekeep.apply(target, source).exact
    assert target.norm.scale[...].tolist() == [1, 1, 1, 1]
