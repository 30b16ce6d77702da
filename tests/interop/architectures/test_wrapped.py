"""Models inside the wrappers of torch, on the meta device, and in memory of other forms."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import firekeep
from interop.architectures.zoo import (
    ZOO,
    assert_equal_states,
    assert_same_model,
    bits,
    every_architecture,
    fresh,
    trained,
)


def compiled(model: nn.Module) -> nn.Module:
    """Wrap a model for `torch.compile`, which compiles nothing before it runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about parts of itself that it imports
        wrapped: nn.Module = torch.compile(model, backend="eager")
    return wrapped


WRAPPERS = {
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "both": lambda model: nn.DataParallel(compiled(model)),
    "compiled inside": lambda model: compiled(nn.DataParallel(model)),
}
every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
every_suffix = pytest.mark.parametrize("suffix", ["bpk", "safetensors"])


@every_architecture
@every_wrapper
@every_suffix
def test_a_wrapped_model_saves_and_loads_under_clean_names(name, wrap, suffix, tmp_path):
    model, target, plain = trained(name), fresh(name), fresh(name)
    firekeep.save(wrap(model), tmp_path / f"wrapped.{suffix}", durable=False)
    firekeep.save(model, tmp_path / f"plain.{suffix}", durable=False)
    with firekeep.open(tmp_path / f"wrapped.{suffix}") as wrapped, firekeep.open(tmp_path / f"plain.{suffix}") as clean:
        assert list(wrapped.entries) == list(clean.entries)
    assert firekeep.load_into(wrap(target), tmp_path / f"plain.{suffix}").exact
    assert firekeep.load_into(plain, tmp_path / f"wrapped.{suffix}").exact
    assert_same_model(name, target, model)
    assert_same_model(name, plain, model)


@every_architecture
@every_wrapper
def test_a_state_dict_of_a_wrapped_model_is_found_by_the_model(name, wrap, tmp_path):
    """Here the names of the file are torch's own, with those of the wrappers in them."""
    model, target = trained(name), fresh(name)
    torch.save(wrap(model).state_dict(), tmp_path / "model.pt")
    report = firekeep.load_into(target, tmp_path / "model.pt")
    assert report.exact
    assert {one.via for one in report.renamed} == {("wrapper",)}
    assert_same_model(name, target, model)


@every_architecture
@every_suffix
def test_a_model_on_the_meta_device_is_filled(name, suffix, tmp_path):
    model = trained(name)
    with torch.device("meta"):
        target = ZOO[name].make().eval()
    grads = {key: value.requires_grad for key, value in target.named_parameters()}
    firekeep.save(model, tmp_path / f"model.{suffix}", durable=False)
    assert firekeep.load_into(target, tmp_path / f"model.{suffix}").exact
    assert_equal_states(target, model)
    assert {key: value.requires_grad for key, value in target.named_parameters()} == grads
    assert not any(value.is_meta for value in target.parameters())
    for first, second in ZOO[name].ties:
        assert target.get_parameter(first) is target.get_parameter(second)


@every_architecture
def test_a_model_on_the_meta_device_has_nothing_to_save(name, tmp_path):
    with torch.device("meta"):
        model = ZOO[name].make()
    with pytest.raises(firekeep.FirekeepError, match="meta"):
        firekeep.save(model, tmp_path / "model.safetensors", durable=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["resnet", "unet", "vae", "efficientnet"])
@every_suffix
def test_a_model_in_channels_last_memory_stays_so(name, suffix, tmp_path):
    model = trained(name).to(memory_format=torch.channels_last)
    target = fresh(name).to(memory_format=torch.channels_last)
    strides = {key: value.stride() for key, value in target.state_dict().items()}
    firekeep.save(model, tmp_path / f"model.{suffix}", durable=False)
    firekeep.load_into(target, tmp_path / f"model.{suffix}")
    assert {key: value.stride() for key, value in target.state_dict().items()} == strides
    assert_same_model(name, target, model)


@every_architecture
def test_parameters_that_are_windows_of_one_memory_stay_so(name, tmp_path):
    """As optimizers with flat buffers, and DDP's buckets, have them."""
    model, target = trained(name), fresh(name)
    flat = torch.nn.utils.parameters_to_vector(target.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat, target.parameters())
    firekeep.save(model, tmp_path / "model.bpk", durable=False)
    firekeep.load_into(target, tmp_path / "model.bpk")
    assert_same_model(name, target, model)
    assert bits(flat) == bits(torch.nn.utils.parameters_to_vector(model.parameters()))


@pytest.mark.parametrize("name", ["resnet", "gpt", "vae"])
def test_a_traced_model_is_saved_as_the_model(name, tmp_path):
    model, target = trained(name), fresh(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates tracing, and people have such files
        traced = torch.jit.trace(model, ZOO[name].inputs(), check_trace=False)
    firekeep.save(traced, tmp_path / "model.bpk", durable=False)
    assert firekeep.load_into(target, tmp_path / "model.bpk").exact
    assert_same_model(name, target, model)
