"""Constants that no tensor holds, compared where both models are at hand: PyTorch, Flax, Equinox and Burn's own."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")
pytest.importorskip("flax")
pytest.importorskip("equinox")

import equinox as eqx
import flax.nnx as nnx
import jax
import numpy as np
import torch
from torch import nn

import firekeep
from firekeep import module as fk
from firekeep.bridges import bridge_of

KEY = jax.random.key(0)


def told(found):
    return {(one.path, one.constant): (one.model, one.source) for one in found}


def values(obj):
    return {one.path: dict(one.values) for one in bridge_of(obj).constants(obj)}


class Torch(nn.Module):
    def __init__(self, **norms):
        super().__init__()
        self.bn = nn.BatchNorm2d(4, **norms)
        self.ln = nn.LayerNorm(4, **norms)
        self.gn = nn.GroupNorm(2, 4, **norms)
        self.rms = nn.RMSNorm(4, **norms)


class Flax(nnx.Module):
    def __init__(self, **norms):
        rngs = nnx.Rngs(0)
        self.bn = nnx.BatchNorm(4, rngs=rngs, **norms)
        self.ln = nnx.LayerNorm(4, rngs=rngs, **norms)
        self.gn = nnx.GroupNorm(4, num_groups=2, rngs=rngs, **norms)
        self.rms = nnx.RMSNorm(4, rngs=rngs, **norms)


def test_default_epsilons_differ_as_the_frameworks_do():
    assert told(firekeep.compare_constants(Flax(), Torch())) == {
        ("bn", "momentum"): (0.99, 0.9),
        ("ln", "epsilon"): (1e-6, 1e-5),
        ("gn", "epsilon"): (1e-6, 1e-5),
        ("rms", "epsilon"): (1e-6, pytest.approx(torch.finfo(torch.float32).eps)),
    }


def test_equal_constants_are_not_reported():
    flax = Flax(epsilon=1e-4)
    flax.bn.momentum = 0.9
    assert firekeep.compare_constants(flax, Torch(eps=1e-4)) == ()


def test_a_load_changes_no_constant_and_tells_it_in_words_and_data():
    flax = Flax()
    report = firekeep.apply(flax, Torch(), dry_run=False)
    assert flax.ln.epsilon == 1e-6
    assert report.ok
    assert len(report.constants) == 4
    assert "'ln': epsilon 1e-06 in the model, 1e-05 in the source" in str(report)
    assert {
        "path": "ln",
        "source_path": "ln",
        "constant": "epsilon",
        "model": 1e-6,
        "source": 1e-5,
    } in report.to_dict()["constants"]


def test_renamed_parts_are_paired_as_their_tensors_are():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.LayerNorm(4), nn.GELU())

    class Mine(nnx.Module):
        def __init__(self):
            self.enc = nnx.List([nnx.LayerNorm(4, epsilon=1e-5, rngs=nnx.Rngs(0)), jax.nn.gelu])

    found = firekeep.compare_constants(Mine(), Outer(), rename=r"^encoder\.=>enc.")
    assert [str(one) for one in found] == ["'enc.1': gelu (tanh) in the model, gelu (erf) in the source"]
    assert found[0].source_path == "encoder.1"


def test_a_collection_carries_them_through_renames():
    names = nn.ModuleDict({"old": nn.LayerNorm(4, eps=1e-3)})
    held = firekeep.collect(names, rename=r"^old\.=>new.")
    report = firekeep.apply(nn.ModuleDict({"new": nn.LayerNorm(4)}), held)
    assert told(report.constants) == {("new", "epsilon"): (1e-5, 1e-3)}


def test_a_bare_tree_tells_none():
    assert firekeep.compare_constants(nn.LayerNorm(4), nn.LayerNorm(4, eps=1.0).state_dict()) == ()


def test_layers_of_one_kind_are_told_as_one_line():
    mine = nn.ModuleList([nn.LayerNorm(4) for _ in range(12)])
    theirs = nn.ModuleList([nn.LayerNorm(4, eps=1e-3) for _ in range(12)])
    text = str(firekeep.apply(mine, theirs))
    assert text.count("epsilon") == 1
    assert "'{0…11}'" in text


def test_modules_of_firekeep_tell_theirs():
    found = firekeep.compare_constants(fk.BatchNorm(4, epsilon=1e-3), nn.BatchNorm2d(4))
    assert told(found) == {("", "epsilon"): (1e-3, 1e-5)}
    assert str(found[0]).startswith("the model: epsilon 0.001")


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (fk.Conv2d(2, 4, 3, padding="same"), nn.Conv2d(2, 4, 3, padding=1)),
        (fk.ConvTranspose1d(2, 4, 3, stride=2, padding_out=1), nn.ConvTranspose1d(2, 4, 3, stride=2, output_padding=1)),
        (fk.GroupNorm(2, 4), nn.GroupNorm(2, 4)),
        (fk.MultiHeadAttention(4, 2), nn.MultiheadAttention(4, 2)),
    ],
)
def test_modules_of_firekeep_spell_theirs_as_pytorchs_do(mine, theirs):
    assert values(mine) == values(theirs)


def test_the_gelu_of_a_burn_layer_is_not_pytorchs_relu():
    mine, theirs = fk.TransformerEncoderLayer(4, 8, 2), nn.TransformerEncoderLayer(4, 2, 8)
    found = firekeep.compare_constants(mine, theirs)
    assert [str(one) for one in found] == ["the model: gelu (erf) in the model, relu in the source"]


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "padding", "extra"),
    [(3, 2, 1, 1, 1), (4, 2, 1, 1, 0), (3, 1, 2, 0, 0), (2, 3, 1, 0, 1)],
)
def test_pads_of_transposed_convolutions_are_spelled_as_pytorch_does(kernel, stride, dilation, padding, extra):
    net = nn.ConvTranspose1d(2, 3, kernel, stride=stride, dilation=dilation, padding=padding, output_padding=extra)
    reach = dilation * (kernel - 1)
    pads = [(reach - padding, reach - padding + extra)]
    twin = nnx.ConvTranspose(2, 3, (kernel,), strides=stride, kernel_dilation=dilation, padding=pads, rngs=nnx.Rngs(0))
    equinox = eqx.nn.ConvTranspose1d(
        2, 3, kernel, stride=stride, dilation=dilation, padding=padding, output_padding=extra, key=KEY
    )
    assert values(net) == values(twin) == values(equinox)
    assert firekeep.apply(twin, net).constants == ()
    x = torch.randn(1, 2, 5)
    with torch.no_grad():
        theirs = net(x).numpy()
    mine = np.asarray(twin(x.numpy().transpose(0, 2, 1))).transpose(0, 2, 1)
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("word", ["VALID", "SAME"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (4, 2), (2, 3), (5, 4)])
def test_words_for_pads_of_transposed_convolutions_are_what_jax_makes_of_them(word, kernel, stride):
    twin = nnx.ConvTranspose(1, 1, (kernel,), strides=stride, padding=word, rngs=nnx.Rngs(0))
    said = values(twin)[""]
    low = kernel - 1 - int(said["padding"])
    pads = [(low, low + int(said["output_padding"]))]
    x = np.ones((1, 6, 1), np.float32)
    wanted = twin(x)
    twin.padding = pads
    np.testing.assert_array_equal(twin(x), wanted)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (nn.Conv2d(2, 3, 3, padding="same"), nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0))),
        (nn.Conv2d(2, 3, 4, padding="same", dilation=2), nnx.Conv(2, 3, (4, 4), kernel_dilation=2, rngs=nnx.Rngs(0))),
        (nn.Conv2d(2, 3, 3), eqx.nn.Conv2d(2, 3, 3, key=KEY)),
        (nn.Conv1d(2, 3, 3, stride=2, padding=1), nnx.Conv(2, 3, (3,), strides=2, padding=1, rngs=nnx.Rngs(0))),
        (nn.Conv2d(2, 3, 3, padding=(1, 0)), nnx.Conv(2, 3, (3, 3), padding=((1, 1), (0, 0)), rngs=nnx.Rngs(0))),
        (
            nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"),
            nnx.Conv(2, 3, (3,), padding="CIRCULAR", rngs=nnx.Rngs(0)),
        ),
    ],
)
def test_paddings_that_come_to_the_same_are_spelled_alike(mine, theirs):
    assert values(mine) == values(theirs)


def test_same_with_a_stride_is_told_as_a_word():
    strided = nnx.Conv(2, 3, (3,), strides=2, rngs=nnx.Rngs(0))
    found = firekeep.compare_constants(strided, nn.Conv1d(2, 3, 3, stride=2, padding=1))
    assert told(found) == {("", "padding"): ("same", "1")}


@pytest.mark.parametrize(
    ("mine", "theirs", "differ"),
    [
        (eqx.nn.Lambda(jax.nn.gelu), nn.GELU(), True),
        (eqx.nn.Lambda(jax.nn.gelu), nn.GELU(approximate="tanh"), False),
        (eqx.nn.Lambda(jax.tree_util.Partial(jax.nn.gelu, approximate=False)), nn.GELU(), False),
        (eqx.nn.Lambda(jax.nn.leaky_relu), nn.LeakyReLU(), False),
        (eqx.nn.Lambda(jax.tree_util.Partial(jax.nn.leaky_relu, negative_slope=0.2)), nn.LeakyReLU(0.3), True),
        (eqx.nn.Lambda(jax.nn.relu), nn.SiLU(), True),
        (eqx.nn.Lambda(jax.nn.silu), nn.SiLU(), False),
    ],
)
def test_activations(mine, theirs, differ):
    net = eqx.nn.Sequential([eqx.nn.Linear(2, 2, key=KEY), mine])
    twin = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(2, 2), theirs)})
    assert bool(firekeep.compare_constants(net, twin)) is differ


def test_transformer_layers_tell_their_activation():
    mine = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", norm_first=True)
    theirs = nn.TransformerEncoderLayer(4, 2, 8)
    found = told(firekeep.compare_constants(mine, theirs))
    assert found == {("", "norm_first"): (True, False), ("", "function"): ("gelu (erf)", "relu")}


def test_a_layer_of_ones_own_without_its_parents_attributes_tells_what_it_can():
    class Odd(nn.LayerNorm):
        @property
        def eps(self):
            raise AttributeError("no eps")

        @eps.setter
        def eps(self, _value): ...

    assert firekeep.apply(Odd(4), nn.LayerNorm(4)).constants == ()


def test_layers_of_two_kinds_that_hold_the_same_tensors_are_told():
    net, other = Torch(), Torch()
    other.ln = nn.GroupNorm(2, 4)
    assert told(firekeep.compare_constants(net, other)) == {("ln", "kind"): ("layer_norm", "group_norm")}
    flax = Flax(epsilon=1e-5)
    flax.ln = nnx.GroupNorm(4, num_groups=2, epsilon=1e-5, rngs=nnx.Rngs(0))
    report = firekeep.apply(flax, net)
    assert ("ln", "kind") in told(report.constants)
    assert "'ln': kind group_norm in the model, layer_norm in the source" in str(report)
