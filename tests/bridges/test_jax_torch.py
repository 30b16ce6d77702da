"""Weights between PyTorch and JAX: the same numbers come out of the model, and the same tensors come back."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import firekeep
from firekeep import models
from firekeep.bridges import slots_of

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def random(model: nn.Module) -> nn.Module:
    """Give every parameter and every statistic a number of its own."""
    torch.manual_seed(1)
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.uniform_(0.2, 0.9)
    return model.eval()


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).random(shape, np.float32)


def images(x: Any) -> Any:
    """From PyTorch's order of axes to Flax's."""
    return jnp.moveaxis(jnp.asarray(x), 1, -1)


def out(x: Any) -> Any:
    return np.moveaxis(np.asarray(x), -1, 1)


RNGS = nnx.Rngs(0)

LAYERS: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    # torch, flax, input, forward of torch, forward of flax
    "linear": (
        lambda: nn.Linear(3, 4),
        lambda: nnx.Linear(3, 4, rngs=RNGS),
        numbers(2, 3),
        lambda layer, x: layer(torch.from_numpy(x)),
        lambda layer, x: layer(x),
    ),
    "conv": (
        lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
        lambda: nnx.Conv(4, 6, (3, 3), padding=1, feature_group_count=2, rngs=RNGS),
        numbers(2, 4, 5, 5),
        lambda layer, x: layer(torch.from_numpy(x)),
        lambda layer, x: out(layer(images(x))),
    ),
    "conv_transpose": (
        lambda: nn.ConvTranspose2d(2, 3, 3, stride=2),
        lambda: nnx.ConvTranspose(2, 3, (3, 3), strides=2, padding="VALID", rngs=RNGS),
        numbers(2, 2, 4, 4),
        lambda layer, x: layer(torch.from_numpy(x)),
        lambda layer, x: out(layer(images(x))),
    ),
    "batch_norm": (
        lambda: nn.BatchNorm2d(3),
        lambda: nnx.BatchNorm(3, use_running_average=True, rngs=RNGS),
        numbers(2, 3, 4, 4),
        lambda layer, x: layer(torch.from_numpy(x)),
        lambda layer, x: out(layer(images(x))),
    ),
    "layer_norm": (
        lambda: nn.LayerNorm(5, eps=1e-6),
        lambda: nnx.LayerNorm(5, rngs=RNGS),
        numbers(3, 5),
        lambda layer, x: layer(torch.from_numpy(x)),
        lambda layer, x: layer(x),
    ),
    "embedding": (
        lambda: nn.Embedding(5, 3),
        lambda: nnx.Embed(5, 3, rngs=RNGS),
        np.array([[0, 4], [2, 2]]),
        lambda layer, x: layer(torch.from_numpy(x)),
        lambda layer, x: layer(jnp.asarray(x, jnp.int32)),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: nnx.MultiHeadAttention(2, 8, decode=False, rngs=RNGS),
        numbers(2, 4, 8),
        lambda layer, x: layer(*(torch.from_numpy(x),) * 3, need_weights=False)[0],
        lambda layer, x: layer(x),
    ),
}


class Torch(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer


class Flax(nnx.Module):
    def __init__(self, layer: Any) -> None:
        self.layer = layer


@pytest.mark.parametrize("suffix", ["safetensors", "bpk"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_gives_the_same_in_flax_and_comes_back_bit_by_bit(tmp_path, kind, suffix):
    make, twin, x, run, run_twin = LAYERS[kind]
    model, other = Torch(random(make())), Flax(twin())
    there, back = tmp_path / f"there.{suffix}", tmp_path / f"back.{suffix}"
    models.save(model, there)
    assert models.load_into(other, there).ok
    with torch.no_grad():
        wanted = run(model.layer, x).numpy()
    np.testing.assert_allclose(np.asarray(run_twin(other.layer, x)), wanted, **CLOSE)
    models.save(other, back)
    assert set(firekeep.open(back).keys()) == {
        name for name in list(firekeep.open(there).keys()) if "num_batches" not in name
    }
    again = Torch(make())
    assert models.load_into(again, back).ok
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell])
def test_a_recurrent_layer_gives_the_same_in_flax(tmp_path, cell):
    lstm = cell is not nnx.GRUCell
    make = nn.LSTM if lstm else nn.GRU
    model = Torch(random(make(3, 4, batch_first=True)))
    if not lstm:
        with torch.no_grad():
            model.layer.bias_hh_l0[8:] = 0  # which nnx.GRUCell has no place for
    other = Flax(nnx.RNN(cell(3, 4, rngs=RNGS)))
    models.save(model, tmp_path / "there.safetensors")
    assert models.load_into(other, tmp_path / "there.safetensors", exclude=r"rngs").ok
    x = numbers(2, 5, 3)
    with torch.no_grad():
        wanted = model.layer(torch.from_numpy(x))[0].numpy()
    np.testing.assert_allclose(np.asarray(other.layer(jnp.asarray(x))), wanted, **CLOSE)
    models.save(other, tmp_path / "back.safetensors")
    again = Torch(make(3, 4, batch_first=True))
    assert models.load_into(again, tmp_path / "back.safetensors").ok
    with torch.no_grad():
        np.testing.assert_allclose(again.layer(torch.from_numpy(x))[0].numpy(), wanted, **CLOSE)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        assert torch.equal(getattr(again.layer, name), getattr(model.layer, name))


def test_random_numbers_are_state_and_neither_missing_nor_unused(tmp_path):
    model = Torch(random(nn.Linear(3, 3)))
    models.save(model, tmp_path / "there.safetensors")
    other = nnx.Dict(layer=nnx.Linear(3, 3, rngs=RNGS), drop=nnx.Dropout(0.5, rngs=RNGS))
    count = other.drop.rngs.count[...]
    report = models.load_into(other, tmp_path / "there.safetensors")
    assert report.missing == ()
    assert other.drop.rngs.count[...] == count
    models.save(other, tmp_path / "back.safetensors")
    assert sorted(firekeep.open(tmp_path / "back.safetensors").keys()) == ["layer.bias", "layer.weight"]


class Equinox(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    lstm: eqx.nn.LSTMCell
    linear: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.conv = eqx.nn.Conv2d(2, 3, 3, key=key)
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch", inference=True)
        self.lstm = eqx.nn.LSTMCell(3, 4, key=key)
        self.linear = eqx.nn.Linear(4, 2, key=key)


class TorchTwin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        sequence = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.linear(self.lstm(sequence)[0][:, -1])


def test_a_model_with_its_state_gives_the_same_in_equinox(tmp_path):
    model = random(TorchTwin())
    models.save(model, tmp_path / "there.safetensors")
    target = eqx.nn.make_with_state(Equinox)(jax.random.key(0))
    (made, state), report = models.load_as(target, tmp_path / "there.safetensors")
    assert report.ok

    def run(x: Any) -> Any:
        image, _ = made.norm(made.conv(x), state)
        carry = (jnp.zeros(4), jnp.zeros(4))
        for step in jnp.reshape(image, (3, -1)).T:
            carry = made.lstm(step, carry)
        return made.linear(carry[0])

    x = numbers(2, 2, 4, 4)
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.asarray(jax.vmap(run, axis_name="batch")(jnp.asarray(x))), wanted, **CLOSE)
    models.save((made, state), tmp_path / "back.safetensors")
    again = TorchTwin()
    assert models.load_into(again, tmp_path / "back.safetensors").ok
    with torch.no_grad():
        np.testing.assert_allclose(again.eval()(torch.from_numpy(x)).numpy(), wanted, **CLOSE)


def test_a_tied_head_is_one_tensor_on_both_sides(tmp_path):
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Embedding(5, 3)
            self.head.weight = self.embed.weight

    model = random(Tower())
    embed = nnx.Embed(5, 3, rngs=RNGS)
    other = nnx.Dict(embed=embed, head=embed)
    models.save(model, tmp_path / "there.safetensors")
    models.load_into(other, tmp_path / "there.safetensors")
    assert [slot.tied_to for slot in slots_of(other)] == [None, "embed.embedding"]
    assert (np.asarray(embed.embedding[...]) == model.embed.weight.detach().numpy()).all()


@pytest.mark.parametrize("nested", [False, True])
def test_the_list_of_a_sequential_is_found_without_renames(tmp_path, nested):
    def flax() -> Any:
        rngs = nnx.Rngs(0)
        net = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.relu, nnx.Linear(4, 2, rngs=rngs))
        return nnx.Sequential(net, nnx.relu) if nested else net

    theirs = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model: nn.Module = nn.Sequential(theirs, nn.ReLU()) if nested else theirs
    firekeep.save(model, tmp_path / "torch.safetensors")
    mine = flax()
    report = firekeep.load_into(mine, tmp_path / "torch.safetensors")
    assert report.exact
    assert any("as the list of a Sequential is called" in step for step in report.steps)
    x = numbers(5, 3)
    np.testing.assert_allclose(
        np.asarray(mine(jnp.asarray(x))), model(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6
    )
    firekeep.save(mine, tmp_path / "flax.safetensors", layout="flax")
    before = {name: one.clone() for name, one in model.state_dict().items()}
    for one in model.parameters():
        one.data.zero_()
    assert firekeep.load_into(model, tmp_path / "flax.safetensors").exact
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


def test_weights_that_share_their_memory_with_arrays_of_jax_are_swapped_whole():
    """JAX never writes to its arrays, and PyTorch does to those it has given away: all is read before anything is written."""
    model = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in "ab"})
    first, second = (model[name].weight.detach().clone() for name in "ab")
    shared = {name: jax.dlpack.from_dlpack(model[name].weight.detach()) for name in "ab"}
    assert firekeep.apply(model, {"a.weight": shared["b"], "b.weight": shared["a"]}).exact
    assert torch.equal(model["a"].weight, second)
    assert torch.equal(model["b"].weight, first)


class OwnTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))


class OwnEquinox(eqx.Module):
    weight: jax.Array
    bias: jax.Array


@pytest.mark.parametrize("saved", [nn.Linear, OwnTorch])
@pytest.mark.parametrize("loaded", ["linear", "own"])
@pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
def test_a_class_of_ones_own_takes_a_square_weight_as_pytorch_has_it(tmp_path, saved: Any, loaded: str, suffix: str):
    """In a file of Burn's layout as in one of PyTorch's, into a linear layer of Equinox or a class that nobody knows."""
    source = saved(4, 4) if saved is nn.Linear else saved()
    model = (
        OwnEquinox(jnp.zeros((4, 4)), jnp.zeros(4)) if loaded == "own" else eqx.nn.Linear(4, 4, key=jax.random.key(0))
    )
    firekeep.save(source, tmp_path / f"m.{suffix}")
    made, report = firekeep.load_as(model, tmp_path / f"m.{suffix}")
    assert report.exact
    assert np.array_equal(np.asarray(made.weight), source.weight.detach().numpy())
