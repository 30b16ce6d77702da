"""SwiGlu, which only Burn has as a layer, to and from models of one's own with a gate and an up."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")
pytest.importorskip("torch")

import equinox as eqx
import jax
import numpy as np
import torch
from flax import nnx
from torch import nn

import firekeep
from firekeep import module as fm

X = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")


class Burns(fm.Module):
    def __init__(self, layout="row"):
        self.mlp = fm.SwiGlu(4, 6, bias=True, layout=layout)


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.ModuleDict({"gate": nn.Linear(4, 6), "up": nn.Linear(4, 6)})

    def forward(self, x):
        with torch.no_grad():
            x = torch.tensor(x)
            return (nn.functional.silu(self.mlp["gate"](x)) * self.mlp["up"](x)).numpy()


class Flax(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.mlp = nnx.Dict({name: nnx.Linear(4, 6, rngs=rngs) for name in ("gate", "up")})

    def __call__(self, x):
        return nnx.silu(self.mlp["gate"](x)) * self.mlp["up"](x)


class Equinox(eqx.Module):
    mlp: dict

    def __init__(self):
        self.mlp = {name: eqx.nn.Linear(4, 6, key=jax.random.key(0)) for name in ("gate", "up")}

    def __call__(self, x):
        return jax.vmap(lambda row: jax.nn.silu(self.mlp["gate"](row)) * self.mlp["up"](row))(x)


def filled(other, path):
    if isinstance(other, Equinox):
        return firekeep.load_as(other, path)
    return other, firekeep.load_into(other, path)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("other", [Torch, Flax, Equinox])
def test_the_gate_is_the_inner_one_and_goes_through_silu(other, layout, tmp_path):
    burns = Burns(layout)
    firekeep.save(burns, tmp_path / "a.bpk", layout=other.__name__.lower())
    made, report = filled(other(), tmp_path / "a.bpk")
    assert report.exact, str(report)
    np.testing.assert_allclose(np.asarray(made(X)), burns.mlp(X), atol=1e-6)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("other", [Torch, Flax, Equinox])
def test_it_takes_theirs(other, layout, tmp_path):
    theirs, burns = other(), Burns(layout)
    firekeep.save(theirs, tmp_path / "a.safetensors")
    assert firekeep.load_into(burns, tmp_path / "a.safetensors").exact
    np.testing.assert_allclose(burns.mlp(X), np.asarray(theirs(X)), atol=1e-6)


@pytest.mark.parametrize("layout", ["flax", "linen", "equinox", "keras", "torch"])
def test_every_layout_holds_it_and_gives_it_back(layout, tmp_path):
    one, two = Burns(), Burns("col")
    firekeep.save(one, tmp_path / "a.bpk", layout=layout)
    assert firekeep.load_into(two, tmp_path / "a.bpk").exact
    np.testing.assert_array_equal(two.mlp(X), one.mlp(X))
