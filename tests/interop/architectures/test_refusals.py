"""What Burn's layout has no form of is refused by name, nothing is written, and the remedy that is told does it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import firekeep
from firekeep import UnsupportedError
from interop.architectures import language, vision
from interop.architectures.zoo import ZOO, assert_equal_states, fresh, trained


def mixer_over_two_axes() -> nn.Module:
    model = vision.Mixer()
    model.norm = nn.LayerNorm((16, 16))
    return model


def resnet_with_instance_statistics() -> nn.Module:
    model = vision.ResNet()
    model.bn1 = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
    return model


def vit_with_extra_keys() -> nn.Module:
    model = vision.ViT()
    model.pool = nn.MultiheadAttention(12, 3, add_bias_kv=True)
    return model


def vit_of_two_widths() -> nn.Module:
    model = vision.ViT()
    model.pool = nn.MultiheadAttention(12, 3, kdim=10, vdim=8)
    return model


def tagger_with_projection() -> nn.Module:
    model = language.Tagger()
    model.lstm = nn.LSTM(6, 5, num_layers=2, proj_size=3)
    return model


def vae_with_weight_norm() -> nn.Module:
    model = vision.VAE()
    nn.utils.parametrizations.weight_norm(model.mean)
    return model


REFUSED = {
    mixer_over_two_axes: ["norm.weight", "norm.bias"],
    resnet_with_instance_statistics: ["bn1.running_mean", "bn1.running_var"],
    vit_with_extra_keys: ["pool.bias_k", "pool.bias_v"],
    vit_of_two_widths: ["pool.q_proj_weight", "pool.k_proj_weight", "pool.v_proj_weight"],
    tagger_with_projection: ["lstm.weight_hr_l0", "lstm.weight_hr_l1"],
    vae_with_weight_norm: [f"mean.parametrizations.weight.original{part}" for part in range(2)],
}


@pytest.mark.parametrize("make", REFUSED)
def test_what_burn_cannot_hold_is_refused_by_name(make, tmp_path):
    model = make()
    with pytest.raises(UnsupportedError) as caught:
        firekeep.save(model, tmp_path / "model.bpk", durable=False)
    assert f"no place for {len(REFUSED[make])} tensors" in str(caught.value)
    assert all(repr(name) in str(caught.value) for name in REFUSED[make])
    assert not list(tmp_path.iterdir())
    assert "layout='torch'" in str(caught.value.remedy)


@pytest.mark.parametrize("make", REFUSED)
def test_the_remedies_of_a_refusal_work(make, tmp_path):
    torch.manual_seed(1)
    model = make()
    torch.manual_seed(2)
    target = make()
    firekeep.save(model, tmp_path / "model.bpk", layout="torch", durable=False)
    assert firekeep.load_into(target, tmp_path / "model.bpk").exact
    assert_equal_states(target, model)
    firekeep.save(model, tmp_path / "part.bpk", exclude=REFUSED[make], durable=False)
    part = firekeep.load_into(make(), tmp_path / "part.bpk", exclude=REFUSED[make])
    assert set(REFUSED[make]) <= set(part.skipped)


@pytest.mark.parametrize("make", REFUSED)
def test_a_model_with_what_burn_cannot_hold_says_so_when_a_file_of_burns_is_to_be_loaded(make, tmp_path):
    """The file's layers have Burn's names, and lack what this model has besides."""
    name = next(name for name in ZOO if type(trained(name)) is type(make()))
    firekeep.save(trained(name), tmp_path / "model.bpk", durable=False)
    target = make()
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(target, tmp_path / "model.bpk")
    told = {*caught.value.report.missing, *(problem.name for problem in caught.value.report.errors)}
    assert told >= set(REFUSED[make])
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


def test_a_parameter_without_axes_is_kept_as_it_is(tmp_path):
    """The container allows it, and a model that is not Burn's reads it back."""
    model, target = trained("clip"), fresh("clip")
    firekeep.save(model, tmp_path / "model.bpk", durable=False)
    with firekeep.open(tmp_path / "model.bpk") as file:
        assert file.entries["logit_scale"].shape == ()
    assert firekeep.load_into(target, tmp_path / "model.bpk").exact
    assert target.logit_scale.shape == ()
    assert target.logit_scale.item() == model.logit_scale.item() != fresh("clip").logit_scale.item()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Bilinear(2, 3, 4),
        lambda: nn.ParameterList([nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(()))]),
        lambda: nn.EmbeddingBag(5, 3),
        lambda: nn.Sequential(nn.LSTMCell(3, 2), nn.GRUCell(2, 2)),
    ],
    ids=["bilinear", "parameters", "bag", "cells"],
)
def test_a_model_without_a_layer_that_burn_lays_otherwise_is_saved_as_it_is(make, tmp_path):
    model, target = make(), make()
    firekeep.save(model, tmp_path / "model.bpk", durable=False)
    assert firekeep.load_into(target, tmp_path / "model.bpk").exact
    assert_equal_states(target, model)
