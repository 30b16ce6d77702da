"""Ten architectures, each in PyTorch, Flax NNX and Equinox: what one has learned the others compute, and every tensor comes back."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import firekeep
from interop.jax_twins import in_equinox, in_nnx, in_torch
from interop.jax_twins.both import (
    INPUTS,
    SIDES,
    Equinox,
    Nnx,
    bits,
    nnx_shapes,
    run_torch,
    train,
    trained,
)

CLOSE = {"rtol": 0, "atol": 1e-5}
SUFFIXES = ("safetensors", "bpk")

every_side = pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
every_suffix = pytest.mark.parametrize("suffix", SUFFIXES)

# What the two sides know as a sum: PyTorch's names, and the other's.
SUMS = {
    "lstm": (("lstm.bias_ih_l0", "lstm.bias_hh_l0"), {"nnx": "lstm.cell.hf.bias", "equinox": "lstm.bias"}),
    "gru": (("gru.bias_ih_l0", "gru.bias_hh_l0"), {"nnx": "gru.cell.dense_i.bias", "equinox": "gru.bias"}),
}


def without_hidden_bias(model: Any) -> Any:
    """Take away what `nnx.GRUCell` has no place for."""
    with torch.no_grad():
        model.gru.bias_hh_l0[2 * model.gru.hidden_size :] = 0
    return model


def given(name: str, side: Any) -> nn.Module:
    if name == "gru" and side is Nnx:
        return without_hidden_bias(train(in_torch.Gated()))
    return trained(name)


def counters_of(model: nn.Module) -> set[str]:
    return {name for name in model.state_dict() if name.endswith("num_batches_tracked")}


def assert_alike(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    assert [one.tobytes() for one in first] == [one.tobytes() for one in second]


@every_side
@pytest.mark.parametrize("name", in_torch.MODELS)
def test_twins_compute_the_same_and_every_tensor_comes_back(name, side, tmp_path):
    model, inputs = given(name, side), INPUTS[name]
    wanted, counters = run_torch(model, inputs), counters_of(model)
    twins = []
    for suffix in SUFFIXES:
        there, back = tmp_path / f"there.{suffix}", tmp_path / f"back.{suffix}"
        firekeep.save(model, there, durable=False)
        twin, report = side.load(there, side.make(name))
        assert report.exact
        assert set(report.no_counterpart) == counters
        twins.append(twin)
        saved = firekeep.save(twin, back, durable=False)
        again = in_torch.MODELS[name]()
        fresh = bits(again)
        returned = firekeep.load_into(again, back)
        assert returned.exact
        assert set(returned.no_counterpart) == counters
        summed, others = SUMS.get(name, ((), {}))
        assert not summed or others[side.name] in str(report)
        if summed and suffix == "safetensors":  # in Burn's layout each gate has names of its own
            assert f"all, and the other zeros: {', '.join(map(repr, summed))}" in " ".join(str(saved).split())
        expected = {
            key: fresh[key] if key in counters else value for key, value in bits(model).items() if key not in summed
        }
        assert {key: value for key, value in bits(again).items() if key not in summed} == expected
        assert_same_sums(model, again, summed)
        np.testing.assert_allclose(run_torch(again, inputs), wanted, **CLOSE)
    assert_alike(*map(side.leaves, twins))
    found = side.run(twins[0], inputs)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, **CLOSE)


def assert_same_sums(model: nn.Module, again: nn.Module, names: tuple[str, ...]) -> None:
    if names:
        before, after = model.state_dict(), again.state_dict()
        assert torch.equal(sum(after[name] for name in names), sum(before[name] for name in names))
        assert not all(torch.equal(after[name], before[name]) for name in names)


def test_a_shared_embedding_stays_one(tmp_path):
    firekeep.save(trained("gpt"), tmp_path / "there.bpk", durable=False)
    flax, _ = Nnx.load(tmp_path / "there.bpk", in_nnx.GPT)
    assert flax.head is flax.embed
    (model, _state), _ = Equinox.load(tmp_path / "there.bpk", in_equinox.GPT)
    assert model.head.weight is model.embed.weight


@every_suffix
def test_a_head_that_is_another_is_refused_by_a_model_with_a_shared_one(suffix, tmp_path):
    untied = in_torch.GPT()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    firekeep.save(train(untied), tmp_path / f"there.{suffix}", durable=False)
    firekeep.save(trained("gpt"), tmp_path / "tied.bpk", durable=False)
    twin, _ = Nnx.load(tmp_path / "tied.bpk", in_nnx.GPT)
    before = Nnx.leaves(twin)
    with pytest.raises(firekeep.LoadError, match=r"as 'head\.embedding' and\s+'embed\.embedding', and the file two"):
        firekeep.load_into(twin, tmp_path / f"there.{suffix}")
    assert_alike(Nnx.leaves(twin), before)


class Headless(in_nnx.GPT):
    """As it is mostly written: what is shared has one name."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        del self.head


def test_a_twin_without_a_head_takes_a_file_that_knows_it_to_be_the_embedding(tmp_path):
    firekeep.save(trained("gpt"), tmp_path / "there.safetensors", durable=False)
    twin, report = Nnx.load(tmp_path / "there.safetensors", Headless)
    assert report.exact
    assert report.notes[0] == "'head.weight' is 'embed.weight' in the file, and the model has it once"
    firekeep.save(twin, tmp_path / "back.safetensors", durable=False)
    again = in_torch.GPT()
    assert firekeep.load_into(again, tmp_path / "back.safetensors").exact
    assert bits(again) == bits(trained("gpt"))


def test_a_twin_without_a_head_takes_one_that_lies_across_when_that_is_said(tmp_path):
    """In Burn's layout the two are not one array."""
    firekeep.save(trained("gpt"), tmp_path / "there.bpk", durable=False)
    with pytest.raises(firekeep.LoadError) as caught:
        Nnx.load(tmp_path / "there.bpk", Headless)
    assert caught.value.report.unused == ("head.weight",)
    assert caught.value.report.remedies[0].python == "allow_unused=True"
    twin, report = Nnx.load(tmp_path / "there.bpk", Headless, allow_unused=True)
    assert report.complete
    firekeep.save(twin, tmp_path / "back.bpk", durable=False)
    again = in_torch.GPT()
    assert firekeep.load_into(again, tmp_path / "back.bpk").exact
    assert bits(again) == bits(trained("gpt"))


@pytest.mark.parametrize("name", in_torch.MODELS)
def test_models_at_hand_give_each_other_what_they_have(name, tmp_path):
    """Without a file each side knows how the other's layers lie: transposed kernels, cells in what runs them, norms without a bias."""
    model = given(name, Nnx)
    summed, _ = SUMS.get(name, ((), {}))
    wanted = {key: value for key, value in bits(model).items() if key not in (*counters_of(model), *summed)}
    flax = nnx_shapes(in_nnx.MODELS[name])
    assert firekeep.apply(flax, model).exact
    firekeep.save(model, tmp_path / "there.bpk", durable=False)
    made, _ = Equinox.load(tmp_path / "there.bpk", in_equinox.MODELS[name])
    for twin in (flax, made):
        again = in_torch.MODELS[name]()
        assert firekeep.apply(again, twin).exact
        assert {key: value for key, value in bits(again).items() if key in wanted} == wanted


@every_suffix
def test_a_hidden_bias_is_refused_where_it_has_no_place(suffix, tmp_path):
    firekeep.save(without_hidden_bias(train(in_torch.Gated())), tmp_path / f"zeros.{suffix}", durable=False)
    twin, _ = Nnx.load(tmp_path / f"zeros.{suffix}", in_nnx.Gated)
    before = Nnx.leaves(twin)
    firekeep.save(trained("gru"), tmp_path / f"there.{suffix}", durable=False)
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(twin, tmp_path / f"there.{suffix}")
    (problem,) = caught.value.report.errors
    assert problem.name == ("gru.bias_hh_l0" if suffix == "safetensors" else "gru.new_gate.hidden_transform.bias")
    assert "new gate, which is not all zeros" in problem.message
    assert_alike(Nnx.leaves(twin), before)


class GroupedTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.each = nn.ConvTranspose1d(6, 12, 4, groups=6, bias=False)

    def forward(self, x: Any) -> Any:
        return self.each(self.up(x).mean(2))


class GroupedEquinox(eqx.Module):
    up: eqx.nn.ConvTranspose2d
    each: eqx.nn.ConvTranspose1d

    def __init__(self, key: Any) -> None:
        self.up = eqx.nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=2, key=next(key))
        self.each = eqx.nn.ConvTranspose1d(6, 12, 4, groups=6, use_bias=False, key=next(key))

    def __call__(self, x: Any, state: Any) -> Any:
        return self.each(self.up(x).mean(1))


class GroupedNnx(nnx.Module):
    """As near as Flax comes to it."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.ConvTranspose(8, 6, (3, 3), strides=2, padding=((1, 2), (1, 2)), rngs=rngs)
        self.each = nnx.ConvTranspose(6, 12, (4,), padding="VALID", use_bias=False, rngs=rngs)


@every_suffix
def test_transposed_convolutions_in_groups_are_equinoxs_too_and_refused_for_flax(suffix, tmp_path):
    model, there = train(GroupedTorch()), tmp_path / f"there.{suffix}"
    firekeep.save(model, there, durable=False)
    made, report = Equinox.load(there, GroupedEquinox)
    assert report.exact
    inputs = (INPUTS["cnn"][0].repeat(2, 1),)
    np.testing.assert_allclose(Equinox.run(made, inputs), run_torch(model, inputs), **CLOSE)
    firekeep.save(made, tmp_path / f"back.{suffix}", durable=False)
    again = GroupedTorch()
    assert firekeep.load_into(again, tmp_path / f"back.{suffix}").exact
    assert bits(again) == bits(model)

    twin = nnx_shapes(GroupedNnx)
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(twin, there)
    assert [problem.name for problem in caught.value.report.errors] == ["each.kernel", "up.kernel"]
    told = "is of a transposed convolution in {} groups by its shape, and Flax NNX's has no groups"
    assert caught.value.report.notes == (f"'each.weight' {told.format(6)}", f"'up.weight' {told.format(2)}")
    assert all(isinstance(one, jax.ShapeDtypeStruct) for one in jax.tree.leaves(nnx.state(twin)))
    with pytest.raises(firekeep.LoadError, match=r"in 2 groups by its shape, and\s+Flax NNX's has no groups"):
        firekeep.apply(twin, model)
    with pytest.raises(firekeep.UnsupportedError, match=r"'up\.weight': Flax NNX's ConvTranspose has no groups"):
        firekeep.save(model, tmp_path / f"flax.{suffix}", layout="flax")
    assert not (tmp_path / f"flax.{suffix}").exists()


class TorchStack(nn.Module):
    def __init__(self, *, both: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=both)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0]


class NnxRnns(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        cells = [nnx.LSTMCell(3, 4, rngs=rngs), nnx.LSTMCell(4, 4, rngs=rngs)]
        self.lstm = nnx.List([nnx.RNN(cell, rngs=False) for cell in cells])

    def __call__(self, x: Any) -> Any:
        nothing = jax.numpy.zeros((x.shape[0], 4))
        for layer in self.lstm:
            x = layer(x, initial_carry=(nothing, nothing))
        return x


class NnxCells(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.lstm = nnx.List([nnx.OptimizedLSTMCell(3, 4, rngs=rngs), nnx.OptimizedLSTMCell(4, 4, rngs=rngs)])

    def __call__(self, x: Any) -> Any:
        nothing = jax.numpy.zeros((x.shape[0], 4))
        for cell in self.lstm:
            carry, steps = (nothing, nothing), []
            for place in range(x.shape[1]):
                carry, step = cell(carry, x[:, place])
                steps.append(step)
            x = jax.numpy.stack(steps, 1)
        return x


class NnxBothWays(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.lstm = nnx.List([self.layer(size, rngs) for size in (3, 8)])

    @staticmethod
    def layer(size: int, rngs: nnx.Rngs) -> nnx.Bidirectional:
        ways = [
            nnx.RNN(nnx.LSTMCell(size, 4, rngs=rngs), reverse=way, keep_order=way, rngs=False) for way in (False, True)
        ]
        return nnx.Bidirectional(*ways, rngs=False)

    def __call__(self, x: Any) -> Any:
        nothing = (jax.numpy.zeros((x.shape[0], 4)),) * 2
        for layer in self.lstm:
            x = layer(x, initial_carry=(nothing, nothing))
        return x


class EquinoxCells(eqx.Module):
    lstm: list[eqx.nn.LSTMCell]

    def __init__(self, key: Any) -> None:
        self.lstm = [eqx.nn.LSTMCell(3, 4, key=next(key)), eqx.nn.LSTMCell(4, 4, key=next(key))]

    def __call__(self, x: Any, state: Any) -> Any:
        for cell in self.lstm:
            carry, steps = (jax.numpy.zeros(4),) * 2, []
            for step in x:
                carry = cell(step, carry)
                steps.append(carry[0])
            x = jax.numpy.stack(steps)
        return x


@pytest.mark.parametrize(
    ("side", "make"),
    [(Nnx, NnxRnns), (Nnx, NnxCells), (Nnx, NnxBothWays), (Equinox, EquinoxCells)],
    ids=["rnns", "cells", "both ways", "equinox"],
)
def test_layers_upon_one_another_are_a_list_of_layers(side, make, tmp_path):
    """One LSTM of two layers in PyTorch, a list of two in JAX, under the same name: no rule is needed either way."""
    both = make is NnxBothWays
    model, x = train(TorchStack(both=both)), (INPUTS["attention"][0][..., :3],)
    twins = []
    for suffix in SUFFIXES:
        there, back = tmp_path / f"there.{suffix}", tmp_path / f"back.{suffix}"
        firekeep.save(model, there, durable=False)
        twin, report = side.load(there, make)
        assert report.exact
        twins.append(twin)
        firekeep.save(twin, back, durable=False)
        again = TorchStack(both=both)
        assert firekeep.load_into(again, back).exact
        before, after = model.state_dict(), again.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before if "weight" in name)
        np.testing.assert_allclose(run_torch(again, x), run_torch(model, x), **CLOSE)
    assert_alike(*map(side.leaves, twins))
    np.testing.assert_allclose(side.run(twins[0], x), run_torch(model, x), **CLOSE)


class TorchSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


class NnxSequence(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.net = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), jax.nn.relu, nnx.Linear(4, 2, rngs=rngs))


class EquinoxSequence(eqx.Module):
    net: eqx.nn.Sequential

    def __init__(self, key: Any) -> None:
        linears = [eqx.nn.Linear(3, 4, key=next(key)), eqx.nn.Linear(4, 2, key=next(key))]
        self.net = eqx.nn.Sequential([linears[0], eqx.nn.Lambda(jax.nn.relu), linears[1]])


@every_suffix
@pytest.mark.parametrize(("side", "make"), [(Nnx, NnxSequence), (Equinox, EquinoxSequence)], ids=["nnx", "equinox"])
def test_a_sequential_that_keeps_its_layers_under_a_name_of_its_own_is_found_both_ways(side, make, suffix, tmp_path):
    model, there, back = train(TorchSequence()), tmp_path / f"there.{suffix}", tmp_path / f"back.{suffix}"
    firekeep.save(model, there, durable=False)
    twin, report = side.load(there, make)
    assert len(report.applied) == 4
    assert "'layers', as the list of a Sequential is called" in str(report)
    firekeep.save(twin, back, durable=False)
    again = TorchSequence()
    assert len(firekeep.load_into(again, back).applied) == 4
    assert bits(again) == bits(model)
