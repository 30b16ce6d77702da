"""Torch tensors whose memory was taken away, as sharding does: their shape says one thing, and other bytes would be read or written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep import LoadError, UnsupportedError
from firekeep.tensors import storage_fault


def taken_away(*shape: int, left: int) -> torch.Tensor:
    """Make a tensor of whose memory a few bytes are left."""
    made = torch.empty(0)
    made.resize_(*shape)
    made.untyped_storage().resize_(left)
    return made


@pytest.mark.parametrize("left", [0, 16, 63])
def test_a_tensor_without_its_memory_is_not_saved(tmp_path, left):
    model = nn.Linear(4, 4)
    model.weight.data = taken_away(4, 4, left=left)
    for save in (
        lambda path: firekeep.save(model, path),
        lambda path: firekeep.save_file({"weight": model.weight.data}, path),
    ):
        with pytest.raises(UnsupportedError, match=f"taken away: {left} are left") as caught:
            save(tmp_path / "model.safetensors")
        assert caught.value.tensor == "weight"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [0, 16])
def test_nothing_is_loaded_into_a_tensor_without_its_memory(tmp_path, left):
    path = tmp_path / "model.safetensors"
    firekeep.save(nn.Linear(4, 4), path)
    model = nn.Linear(4, 4)
    before = model.bias.detach().clone()
    model.weight.data = taken_away(4, 4, left=left)
    with pytest.raises(LoadError, match="'weight': its memory of 64 bytes was taken away"):
        firekeep.load_into(model, path)
    assert torch.equal(model.bias, before)


def test_views_that_lie_inside_their_memory_are_whole():
    base = torch.arange(12.0).reshape(3, 4)
    views = (
        base,
        base.t(),
        base[1:],
        base[:, 2:],
        base[2, 3],
        base[:0],
        torch.empty(0),
        base.expand(5, 3, 4),
        base[::2],
    )
    assert [storage_fault(view) for view in views] == [None] * len(views)
    whole = torch.empty(0)
    whole.resize_(3, 4)
    inside, outside = (whole[:2], whole[2:, :3], whole[:0]), (whole, whole[2:], whole[:, 3:], whole.t())
    whole.untyped_storage().resize_(44)
    assert [storage_fault(view) for view in inside] == [None] * len(inside)
    assert all("of 48 bytes was taken away: 44 are left" in (storage_fault(view) or "") for view in outside)


def test_a_tensor_inside_a_function_transform_is_refused(tmp_path):
    def step(value: torch.Tensor) -> torch.Tensor:
        firekeep.save_file({"value": value}, tmp_path / "value.safetensors")
        return value.sum()

    for transformed in (torch.func.vmap(step), torch.func.grad(step)):
        with pytest.raises(UnsupportedError, match="no memory of its own") as caught:
            transformed(torch.ones(3))
        assert caught.value.tensor == "value"


def test_memory_that_cannot_be_written_to_is_told(tmp_path):
    path = tmp_path / "model.safetensors"
    firekeep.save(nn.Linear(4, 4), path)
    model = nn.Linear(4, 4)
    mapped = np.memmap(path, np.uint8, "r")[:64]
    with pytest.warns(UserWarning, match="not writable"):
        model.weight.data = torch.from_numpy(mapped).view(torch.float32).reshape(4, 4)
    with pytest.raises(LoadError, match=r"read-only\s+array"):
        firekeep.load_into(model, path)
