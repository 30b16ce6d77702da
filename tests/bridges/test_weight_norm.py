"""Weights that are made of a direction and lengths: kept as they are within a framework, refused by name across."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("torch")

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import firekeep
from firekeep.bridges import slots_of


class Normed(nnx.Module):
    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.fc = nnx.WeightNorm(nnx.Linear(3, 4, rngs=rngs), rngs=rngs)


def test_flax_keeps_the_lengths_by_the_path_of_their_variable(tmp_path):
    mine, other = Normed(0), Normed(1)
    mine.fc.scales = nnx.data({("kernel",): jnp.arange(4.0)})
    assert "fc.scales.kernel" in slots_of(mine).paths()
    firekeep.save(mine, tmp_path / "a.bpk")
    assert firekeep.load_into(other, tmp_path / "a.bpk").exact
    x = jax.random.normal(jax.random.key(0), (2, 3))
    np.testing.assert_array_equal(mine.fc(x), other.fc(x))


def test_a_key_of_anything_else_makes_no_name():
    with pytest.raises(firekeep.UnsupportedError, match="has no name"):
        slots_of({("a", 1.5): jnp.ones(2)})
    with pytest.raises(firekeep.UnsupportedError, match=r"'a\.b'"):
        slots_of({"a.b": jnp.ones(2), ("a", "b"): jnp.ones(2)})


@pytest.mark.parametrize("layout", ["burn", "flax", "linen", "equinox", "keras"])
def test_pytorchs_are_refused_across_with_what_makes_them_plain(tmp_path, layout):
    model = nn.ModuleDict({"fc": parametrizations.weight_norm(nn.Linear(3, 4))})
    with pytest.raises(
        firekeep.UnsupportedError, match=r"original0'.*torch\.nn\.utils\.parametrize\.remove_parametrizations"
    ):
        firekeep.save(model, tmp_path / "a.safetensors", layout=layout)
    weight = model["fc"].weight.detach().clone()
    parametrize.remove_parametrizations(model["fc"], "weight")
    firekeep.save(model, tmp_path / "a.safetensors", layout=layout)
    plain = nn.ModuleDict({"fc": nn.Linear(3, 4)})
    firekeep.load_into(plain, tmp_path / "a.safetensors")
    assert torch.equal(plain["fc"].weight, weight)
