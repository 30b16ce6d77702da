"""Checkpoints of one framework restored into a run of another, and what a tree of JAX cannot keep."""

import jax.numpy as jnp
import optax
import pytest
import torch
from flax import nnx

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.training import TrainingState


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)


class Mine(nnx.Module):
    def __init__(self):
        self.inner = nnx.Linear(3, 4, rngs=nnx.Rngs(0))


def torch_state():
    model = Theirs()
    return TrainingState(model=model, optimizer=torch.optim.AdamW(model.parameters()), rng=False)


@pytest.mark.parametrize("layout", [None, "burn"])
def test_moments_of_renamed_and_turned_weights_come_along_both_ways(tmp_path, layout):
    first = torch_state()
    first.layout = layout
    first.model.inner(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
    first.optimizer.step()
    model = Mine()
    second = TrainingState(
        model=model, optimizer=nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param), rng=False, layout=layout
    )
    third = torch_state()
    with CheckpointManager(tmp_path) as manager:
        manager.save(first, step=1)
        report = manager.restore(second).report.optimizers["optimizer"]
        assert sorted(report.restored) == ["inner.bias", "inner.kernel"]
        assert not report.fresh
        manager.save(second, step=2)
        assert not manager.restore(third).report.optimizers["optimizer"].fresh
    moments = [one.optimizer.state[one.model.inner.weight]["exp_avg"] for one in (first, third)]
    assert torch.equal(*moments)
    assert moments[0].any()


def test_numbers_of_python_among_arrays_are_told_and_not_lost(tmp_path):
    model = {"w": jnp.ones(3), "inner": [{"step": 3}, None, "a name"]}
    with pytest.warns(firekeep.LeftOutWarning, match=r"'inner' \(2 values\)"):
        report = firekeep.save(model, tmp_path / "model.bpk")
    assert "left out, being no tensors: 'inner.0.step'" in str(report)
    with CheckpointManager(tmp_path / "run") as manager:
        with pytest.raises(firekeep.UnsupportedError, match=r"'inner\.0\.step' is a number of Python"):
            manager.save(TrainingState(model=model, rng=False), step=1)
        model["inner"][0]["step"] = jnp.asarray(3)
        with pytest.warns(firekeep.LeftOutWarning, match=r"'model\.inner\.2' \(str\)"):
            manager.save(TrainingState(model=model, rng=False), step=1)
