"""Variables of Flax Linen, which do not tell their layers, filled and written by what another model tells."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("torch")

import flax.linen as fl
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax.core import FrozenDict
from torch import nn

import firekeep
from firekeep.rules.layout import without_collections

X = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype("f4")


class Linen(fl.Module):
    """Between the first and the last are layers whose tensors alone would not tell what they are."""

    first: str = "conv"

    @fl.compact
    def __call__(self, x):
        x = fl.Conv(4, (3, 3), padding="VALID", name=self.first)(x)
        x = fl.ConvTranspose(4, (2, 2), strides=(2, 2), padding="VALID", name="up")(x)
        x = fl.BatchNorm(use_running_average=True, name="bn")(x).mean((1,))
        x = fl.MultiHeadDotProductAttention(2, name="attn")(x)
        return fl.Dense(5, name="fc")(x.mean(1))


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.bn, self.attn, self.fc = nn.BatchNorm2d(4), nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 5)

    def forward(self, x):
        x = self.bn(self.up(self.conv(x))).mean(2).transpose(1, 2)
        return self.fc(self.attn(x, x, x)[0].mean(1))


def twin():
    torch.manual_seed(2)
    model = Torch().eval()
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.uniform_(0.1, 0.6)
    return model


def variables(first="conv"):
    shapes = jax.eval_shape(Linen(first).init, jax.random.key(0), X)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), dict(shapes))


def agree(model, made, first="conv"):
    with torch.no_grad():
        theirs = model(torch.tensor(X.transpose(0, 3, 1, 2))).numpy()
    np.testing.assert_allclose(np.asarray(Linen(first).apply(made, X)), theirs, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def model():
    return twin()


@pytest.mark.parametrize(("suffix", "layout"), [("safetensors", "torch"), ("bpk", "burn"), ("bpk", "linen")])
def test_a_file_of_another_layout_goes_in(model, tmp_path, suffix, layout):
    firekeep.save(model, tmp_path / f"a.{suffix}", layout=layout)
    made = variables()
    assert firekeep.load_into(made, tmp_path / f"a.{suffix}", like=model).complete
    agree(model, made)


def test_without_like_it_is_refused_and_says_what_to_give(model, tmp_path):
    firekeep.save(model, tmp_path / "a.safetensors")
    with pytest.raises(firekeep.RuleError, match="give like= a model with the same layers"):
        firekeep.load_into(variables(), tmp_path / "a.safetensors")


def test_a_model_and_a_file_of_a_whole_one_tell_it_themselves(model, tmp_path):
    made = variables()
    assert firekeep.apply(made, model).complete
    agree(model, made)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4))
    torch.save(net, tmp_path / "whole.pt")
    small = {"params": {"0": {"kernel": jnp.zeros((3, 3, 3, 4)), "bias": jnp.zeros(4)}}}
    small["params"]["1"] = {"kernel": jnp.zeros((4, 4)), "bias": jnp.zeros(4)}
    assert firekeep.load_into(small, tmp_path / "whole.pt").exact
    np.testing.assert_array_equal(small["params"]["1"]["kernel"], net[1].weight.detach().numpy().T)


def test_frozen_variables_and_params_alone_are_made_anew(model, tmp_path):
    firekeep.save(model, tmp_path / "a.safetensors")
    made, report = firekeep.load_as(FrozenDict(variables()), tmp_path / "a.safetensors", like=model)
    assert isinstance(made, FrozenDict)
    assert report.complete
    agree(model, made)
    alone, report = firekeep.load_as(
        FrozenDict(variables()["params"]), tmp_path / "a.safetensors", like=model, allow_unused=True
    )
    assert report.unused == ("bn.running_mean", "bn.running_var")
    agree(model, {"params": alone, "batch_stats": made["batch_stats"]})


def test_layers_of_other_names_are_told_through_the_renames(model, tmp_path):
    firekeep.save(model, tmp_path / "a.safetensors")
    made = variables("Conv_0")
    assert firekeep.load_into(made, tmp_path / "a.safetensors", like=model, rename=r"^conv\.=>Conv_0.").complete
    agree(model, made, "Conv_0")


def test_names_are_those_without_collections(model, tmp_path):
    firekeep.save(model, tmp_path / "a.safetensors")
    made = variables()
    report = firekeep.load_into(made, tmp_path / "a.safetensors", like=model, include=r"^bn\.", allow_unused=True)
    assert report.applied == ("bn.bias", "bn.mean", "bn.scale", "bn.var")
    assert "attn.out.bias" in report.skipped
    np.testing.assert_array_equal(made["batch_stats"]["bn"]["var"], model.bn.running_var.numpy())


def test_they_are_written_in_another_layout_and_come_back(model, tmp_path):
    made, fresh = variables(), twin()
    firekeep.apply(made, model)
    assert firekeep.save(made, tmp_path / "b.safetensors", layout="torch", like=model).layout == "torch"
    with torch.no_grad():
        for value in fresh.parameters():
            value.zero_()
    assert firekeep.load_into(fresh, tmp_path / "b.safetensors").complete
    for (name, one), other in zip(model.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_a_file_of_them_goes_into_a_model_as_it_is(model, tmp_path):
    made, fresh = variables(), twin()
    firekeep.apply(made, model)
    firekeep.save(made, tmp_path / "c.bpk")
    with torch.no_grad():
        for value in fresh.parameters():
            value.zero_()
    assert firekeep.load_into(fresh, tmp_path / "c.bpk").complete
    assert torch.equal(fresh.attn.in_proj_weight, model.attn.in_proj_weight)
    assert firekeep.apply(fresh, made).complete


def test_a_layer_that_the_model_has_not_is_named(model, tmp_path):
    firekeep.save(model, tmp_path / "a.safetensors")
    made = variables()
    made["params"]["extra"] = {"kernel": jnp.ones((2, 2))}
    before = np.asarray(made["params"]["fc"]["kernel"]).copy()
    with pytest.raises(firekeep.RuleError, match=r"nothing like 'extra\.kernel'"):
        firekeep.load_into(made, tmp_path / "a.safetensors", like=model)
    np.testing.assert_array_equal(made["params"]["fc"]["kernel"], before)


def test_what_tells_no_layers_is_refused(model, tmp_path):
    firekeep.save(model, tmp_path / "a.safetensors")
    with pytest.raises(
        firekeep.RuleError, match=r"'up\.weight': its shape .* may be that of a convolution and of a transposed"
    ):
        firekeep.load_into(variables(), tmp_path / "a.safetensors", like=tmp_path / "a.safetensors")
    firekeep.save(model, tmp_path / "a.bpk")
    with pytest.raises(firekeep.RuleError, match="does not tell what layers"):
        firekeep.load_into(variables(), tmp_path / "a.safetensors", like=tmp_path / "a.bpk")


def test_a_state_dict_takes_a_file_of_burns_where_a_model_tells_its_layers(model, tmp_path):
    firekeep.save(model, tmp_path / "a.bpk")
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    assert firekeep.load_into(state, tmp_path / "a.bpk", like=model).complete
    assert torch.equal(state["fc.weight"], model.fc.weight)


def test_two_names_that_would_become_one_are_refused():
    with pytest.raises(firekeep.RuleError, match=r"both be 'a\.kernel'"):
        without_collections(["params.a.kernel", "batch_stats.a.kernel"])
    assert without_collections(["batch_stats.a"]) == {"batch_stats.a": "batch_stats.a"}
