"""Numbers that are keys: experts 0 and 2 of a dict are not the first and the second of a list."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep import CheckpointManager, LoadError, RestoreError, TrainingState


def experts(*keys: int) -> nn.Module:
    return nn.ModuleDict({"experts": nn.ModuleDict({str(key): nn.Linear(2, 2) for key in keys})})


def leaves(*keys: int) -> dict[str, Any]:
    return {"experts": {str(key): np.full(3, key, np.float32) for key in keys}}


def jax_leaves(*keys: int) -> dict[str, Any]:
    return {"experts": {key: jnp.full(3, key, jnp.float32) for key in keys}}


@pytest.mark.parametrize("make", [experts, leaves, jax_leaves])
@pytest.mark.parametrize(("saved", "wanted"), [((0, 2), (0, 1)), ((0, 1), (0, 2)), ((1, 3, 4), (0, 1, 2))])
@pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
def test_other_keys_are_other_parts(tmp_path, make: Any, saved: tuple[int, ...], wanted: tuple[int, ...], suffix: str):
    firekeep.save(make(*saved), tmp_path / f"m.{suffix}")
    with pytest.raises(LoadError) as refused:
        firekeep.load_into(make(*wanted), tmp_path / f"m.{suffix}")
    keys = {name.split(".")[1] for name in refused.value.report.missing}
    assert keys == {str(key) for key in set(wanted) - set(saved)}


def test_a_list_still_takes_other_numbers(tmp_path):
    """A Sequential with an activation between, and one without."""
    source, model = (
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
        nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
    )
    torch.save(source.state_dict(), tmp_path / "m.pt")
    assert firekeep.load_into(model, tmp_path / "m.pt").exact
    assert torch.equal(model[1].weight, source[2].weight)


def test_names_with_dots_in_a_dict_may_go_through_lists(tmp_path):
    source = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    torch.save(source.state_dict(), tmp_path / "m.pt")
    target = {
        name: torch.zeros_like(value)
        for name, value in nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict().items()
    }
    assert firekeep.load_into(target, tmp_path / "m.pt").exact
    assert torch.equal(target["1.weight"], source[2].weight)


def test_a_run_does_not_go_on_with_the_weights_of_another_key(tmp_path):
    def state(*keys: int) -> TrainingState:
        model = experts(*keys)
        return TrainingState(model=model, optimizer=torch.optim.Adam(model.parameters()))

    with CheckpointManager(tmp_path) as manager:
        manager.save(state(0, 2), step=1)
        with pytest.raises(RestoreError):
            manager.restore(state(0, 1))
