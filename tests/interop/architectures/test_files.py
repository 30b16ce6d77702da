"""Every architecture through every kind of file, and back the same, bit for bit."""

from __future__ import annotations

import io

import pytest
import safetensors.torch
import torch
from torch import nn

import firekeep
from interop.architectures.zoo import (
    ZOO,
    assert_equal_states,
    assert_same_model,
    bits,
    every_architecture,
    forward,
    fresh,
    inputs,
    trained,
)


def counters(model: nn.Module) -> dict[str, int]:
    return {name: int(value) for name, value in model.named_buffers() if name.endswith("num_batches_tracked")}


def freeze_every_other(model: nn.Module) -> dict[str, bool]:
    for place, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(place % 2 == 0)
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


@every_architecture
def test_no_tensor_of_a_trained_model_is_that_of_a_fresh_one(name):
    """Else the other tests could not tell a tensor that was loaded from one that was not."""
    trained_one, fresh_one = trained(name).state_dict(), fresh(name).state_dict()
    constants = {"position_ids", *(f"transformer.h.{block}.bias" for block in range(2))}
    same = {key for key, value in trained_one.items() if bits(value) == bits(fresh_one[key])}
    assert same <= constants
    assert all(count == 3 for count in counters(trained(name)).values())


@every_architecture
def test_a_file_in_burns_layout_gives_the_same_model(name, tmp_path):
    model, target = trained(name), fresh(name)
    saved = firekeep.save(model, tmp_path / "model.bpk", durable=False)
    grads = freeze_every_other(target)
    objects = {key: id(value) for key, value in target.named_parameters()}
    report = firekeep.load_into(target, tmp_path / "model.bpk")
    freeze_every_other(model)  # torch's LSTM rounds otherwise where a weight has a gradient
    assert saved.layout == "burn"
    assert_same_model(name, target, model)
    assert report.exact
    assert set(report.applied) == set(model.state_dict())
    assert {key: value.requires_grad for key, value in target.named_parameters()} == grads
    assert {key: id(value) for key, value in target.named_parameters()} == objects
    assert {value.device.type for value in target.state_dict().values()} == {"cpu"}


@every_architecture
def test_a_dry_run_says_what_the_load_then_does(name, tmp_path):
    model, target, before = trained(name), fresh(name), fresh(name)
    firekeep.save(model, tmp_path / "model.bpk", durable=False)
    promised = firekeep.load_into(target, tmp_path / "model.bpk", dry_run=True)
    assert_equal_states(target, before)
    done = firekeep.load_into(target, tmp_path / "model.bpk")
    told = promised.to_dict(), done.to_dict()
    assert {key for key, value in told[0].items() if value != told[1][key]} == {"dry_run"}


@every_architecture
def test_a_file_in_burns_layout_keeps_every_number_of_the_model(name, tmp_path):
    """What is in the file is neither more nor less than the state dict, seen with no rule of layouts."""
    model = trained(name)
    firekeep.save(model, tmp_path / "model.bpk", durable=False)
    held = firekeep.load_file(tmp_path / "model.bpk")
    state = {key: value for key, value in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    ours = sorted(value for array in held.values() for value in array.reshape(-1).tolist())
    assert ours == sorted(value for tensor in state.values() for value in tensor.reshape(-1).tolist())


@every_architecture
def test_a_second_generation_of_files_is_the_first(name, tmp_path):
    """Ids of parameters come back, too, so that the second file says what the first one does."""
    model, target = trained(name), fresh(name)
    firekeep.save(model, tmp_path / "first.bpk", durable=False)
    firekeep.load_into(target, tmp_path / "first.bpk")
    firekeep.save(target, tmp_path / "second.bpk", durable=False)
    assert firekeep.diff(tmp_path / "first.bpk", tmp_path / "second.bpk").equal
    with firekeep.open(tmp_path / "first.bpk") as first, firekeep.open(tmp_path / "second.bpk") as second:
        assert list(first.entries) == list(second.entries)
        assert first.scalars == second.scalars


@every_architecture
def test_safetensors_reads_what_is_written_for_it(name, tmp_path):
    model, target = trained(name), fresh(name)
    firekeep.save(model, tmp_path / "model.safetensors", durable=False)
    if ZOO[name].ties:
        safetensors.torch.load_model(target, tmp_path / "model.safetensors", strict=True)
    else:
        target.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"), strict=True)
    assert_same_model(name, target, model)


@every_architecture
def test_a_safetensors_file_is_loaded_back(name, tmp_path):
    model, target = trained(name), fresh(name)
    firekeep.save(model, tmp_path / "model.safetensors", durable=False)
    report = firekeep.load_into(target, tmp_path / "model.safetensors")
    assert report.exact
    assert_same_model(name, target, model)


@every_architecture
def test_a_file_that_safetensors_wrote_is_loaded(name, tmp_path):
    model, target = trained(name), fresh(name)
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    assert firekeep.load_into(target, tmp_path / "model.safetensors").complete
    assert_same_model(name, target, model)


@every_architecture
@pytest.mark.parametrize("what", ["state dict", "whole model", "checkpoint"])
def test_a_file_that_torch_wrote_is_loaded(name, what):
    model, target = trained(name), fresh(name)
    kept = {
        "state dict": model.state_dict(),
        "whole model": model,
        "checkpoint": {"epoch": 3, "model": model.state_dict(), "rng": torch.get_rng_state()},
    }
    out = io.BytesIO()
    torch.save(kept[what], out)
    report = firekeep.load_into(target, out.getvalue())
    assert report.exact
    assert_same_model(name, target, model)


@every_architecture
def test_one_model_is_put_into_another_without_a_file(name):
    model, target = trained(name), fresh(name)
    assert firekeep.apply(target, model).exact
    assert_same_model(name, target, model)


@every_architecture
def test_a_state_dict_is_converted_to_burns_layout_by_the_word_of_a_model(name, tmp_path):
    """The same file as the model itself gives when it is saved, but for ids of parameters."""
    model, target = trained(name), fresh(name)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    firekeep.convert(tmp_path / "model.pt", tmp_path / "converted.bpk", layout="burn", like=fresh(name), durable=False)
    firekeep.save(model, tmp_path / "saved.bpk", durable=False)
    assert firekeep.diff(tmp_path / "converted.bpk", tmp_path / "saved.bpk").equal
    firekeep.load_into(target, tmp_path / "converted.bpk")
    assert_same_model(name, target, model)


@every_architecture
def test_a_model_goes_on_training_after_a_load(name, tmp_path):
    """Memory that was filled behind autograd's back is still memory that an optimizer changes."""
    model, target = trained(name), fresh(name)
    firekeep.save(model, tmp_path / "model.bpk", durable=False)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, target)]
    firekeep.load_into(target, tmp_path / "model.bpk")
    for one, optimizer in zip((model, target), optimizers, strict=True):
        given = one(*inputs(name))
        loss = sum(
            (value.square().mean() for value in (given if isinstance(given, tuple) else (given,))), torch.zeros(())
        )
        loss.backward()
        optimizer.step()
    assert_equal_states(target, model)
    assert all(torch.isfinite(value).all() for value in forward(name, target))
