"""A torch model and a native one of the same layers: what one saves the other computes."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.torch
import torch

import firekeep
import firekeep.module as fm
from interop.architectures.twins import TWINS
from interop.architectures.zoo import assert_same_model, bits, forward, fresh, inputs, trained

# One LSTM of two layers in PyTorch's names is a list of two in Burn's, and only the torch model itself can tell that they are one.
TO_TWIN = {"tagger": [r"^lstm\.(\w+)_l(\d)(\w*)$=>lstm.\2.\1_l0\3"]}
TO_TORCH = {"tagger": [r"^lstm\.(\d)\.(\w+)_l0(\w*)$=>lstm.\2_l\1\3"]}

every_twin = pytest.mark.parametrize("name", TWINS)


def assert_same_numbers(name: str, twin: fm.Module, model: torch.nn.Module) -> None:
    found = twin(*(one.numpy() for one in inputs(name)))
    for mine, theirs in zip(found if isinstance(found, tuple) else (found,), forward(name, model), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-5)


@every_twin
@pytest.mark.parametrize("suffix", ["bpk", "safetensors", "pt", "state.pt"])
def test_a_twin_computes_what_the_torch_model_does(name, suffix, tmp_path):
    model, twin = trained(name), TWINS[name]()
    path = tmp_path / f"model.{suffix}"
    if suffix.endswith("pt"):
        torch.save(model.state_dict() if suffix == "state.pt" else model, path)
    else:
        firekeep.save(model, path, durable=False)
    report = firekeep.load_into(twin, path, rename=[] if suffix == "bpk" else TO_TWIN.get(name, []))
    assert report.exact
    assert set(report.applied) == {visited.path for visited in fm.walk(twin)}
    assert_same_numbers(name, twin, model)


@every_twin
def test_a_twin_takes_the_tensors_of_a_model_at_hand_and_gives_them_back(name):
    model, twin, again = trained(name), TWINS[name](), fresh(name)
    assert firekeep.apply(twin, firekeep.collect(model, layout="burn")).exact
    assert_same_numbers(name, twin, model)
    for key, value in model.state_dict().items():
        if key.endswith("num_batches_tracked"):
            again.state_dict()[key].copy_(value)
    assert firekeep.apply(again, twin).complete
    assert_same_model(name, again, model)


@every_twin
def test_the_file_of_a_twin_gives_the_torch_model_back(name, tmp_path):
    """All but the counters of batches, which no native norm has."""
    model, twin, again = trained(name), TWINS[name](), fresh(name)
    firekeep.apply(twin, firekeep.collect(model, layout="burn"))
    firekeep.save(twin, tmp_path / "twin.bpk", durable=False)
    report = firekeep.load_into(again, tmp_path / "twin.bpk")
    expected = {key: bits(value) for key, value in model.state_dict().items() if "num_batches" not in key}
    assert {key: bits(value) for key, value in again.state_dict().items() if "num_batches" not in key} == expected
    assert report.complete
    assert set(report.no_counterpart) == set(model.state_dict()) - set(expected)


@every_twin
@pytest.mark.parametrize("like", ["model", "file"])
def test_a_twin_writes_what_the_torch_model_reads_strictly(name, like, tmp_path):
    """Its names and indices of lists; joined tensors are joined, and PyTorch does without counters."""
    model, twin, again = trained(name), TWINS[name](), fresh(name)
    firekeep.apply(twin, firekeep.collect(model, layout="burn"))
    torch.save(again, tmp_path / "like.pt")
    reader = again if like == "model" else tmp_path / "like.pt"
    firekeep.save(twin, tmp_path / "twin.safetensors", like=reader, rename=TO_TORCH.get(name, []), durable=False)
    again.load_state_dict(safetensors.torch.load_file(tmp_path / "twin.safetensors"), strict=True)
    for mine, theirs in zip(forward(name, again), forward(name, model), strict=True):
        assert torch.equal(mine, theirs)
