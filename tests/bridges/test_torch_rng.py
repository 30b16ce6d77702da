"""Random numbers and facts of PyTorch by the doors of the bridge; devices are played."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firekeep.bridges import torch as bridge
from firekeep.errors import UnsupportedError
from firekeep.tensors import describe


@pytest.fixture
def devices(monkeypatch):
    """Have CUDA devices, whose states are lists of bytes."""
    states = [torch.full((4,), number, dtype=torch.uint8) for number in range(2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(states))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.__setitem__(device, state.clone()))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"device {device}")
    return states


def test_the_generator_of_the_cpu_goes_on():
    state = bridge.rng_state()
    assert set(state) == {"cpu"}
    expected = torch.rand(3)
    bridge.set_rng_state(state)
    assert torch.equal(torch.rand(3), expected)


def test_those_of_devices_go_on(devices):
    state = bridge.rng_state()
    devices[:] = [torch.zeros(4, dtype=torch.uint8)] * 2
    assert bridge.rng_fault(state) is None
    bridge.set_rng_state(state)
    assert [one.tolist() for one in devices] == [[0] * 4, [1] * 4]


def test_devices_that_are_gone_are_left(devices):
    state = bridge.rng_state()
    devices[:] = [torch.full((4,), 9, dtype=torch.uint8)]
    bridge.set_rng_state(state)
    assert [one.tolist() for one in devices] == [[0] * 4]
    assert bridge.cuda_devices() == 1


def test_states_of_another_kind_of_device_are_told(devices):
    state = {"cuda": [torch.zeros(5, dtype=torch.uint8)]}
    assert bridge.rng_fault(state) == "it is no state of the generator of cuda:0, which takes 4 bytes"


def test_devices_are_among_the_facts(devices, monkeypatch):
    facts = bridge.facts()
    assert facts["cuda_devices"] == "device 0, device 1"
    assert facts["torch_threads"] == torch.get_num_threads()
    monkeypatch.undo()
    assert "cuda_devices" not in bridge.facts()


def test_a_seeded_context_draws_by_its_seed_and_leaves_nothing():
    before = torch.get_rng_state()
    drawn = []
    for _ in range(2):
        with bridge.seeded(1 << 64 | 5):
            drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError), bridge.seeded(5):
        torch.rand(1) @ torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_an_entry_becomes_a_tensor_of_its_own(dtype):
    value = torch.arange(6).reshape(2, 3).to(dtype)
    made = bridge.tensor_of(describe("x", value))
    assert made.dtype == dtype
    assert torch.equal(made, value)
    assert made.data_ptr() != value.data_ptr()
    assert bridge.tensor_of(describe("x", value[0, 1])).shape == ()


def test_what_pytorch_has_no_dtype_for_is_refused():
    import ml_dtypes
    import numpy as np

    entry = describe("x", np.zeros(4, ml_dtypes.float4_e2m1fn))
    with pytest.raises(UnsupportedError, match="no dtype"):
        bridge.tensor_of(entry)


def test_extra_states_are_found_by_path_through_wrappers():
    class Keeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = 1

        def get_extra_state(self):
            return self.held

        def set_extra_state(self, state):
            self.held = state

    model = nn.Sequential(nn.Linear(2, 2), Keeper())
    assert bridge.extra_state(model) == {"1": 1}
    assert bridge.extra_state(nn.DataParallel(model)) == {"1": 1}
    assert bridge.extra_state(torch.compile(model, backend="eager")) == {"1": 1}
    bridge.set_extra_state(model, {"1": 5, "0": 7})
    assert model[1].held == 5
