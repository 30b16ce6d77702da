"""Runs of Linen, whose variables do not tell their layers, to other frameworks and from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import nn

from firekeep.checkpoint import CheckpointManager
from firekeep.training import RestoreError, TrainingState

TX = optax.adamw(1e-2, weight_decay=1e-2)


class TorchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.outer = nn.Linear(4, 2)

    def forward(self, x):
        return self.outer(self.norm(self.inner(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.outer = nnx.Linear(4, 2, rngs=rngs)


def variables():
    def layer(number, shape):
        made = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) / number
        return {"kernel": made, "bias": jnp.full(shape[1:], 1.0 / number)}

    return {
        "params": {
            "inner": layer(3, (4, 4)),
            "norm": {"scale": jnp.full(4, 0.5), "bias": jnp.full(4, 0.25)},
            "outer": layer(7, (4, 2)),
        },
        "batch_stats": {"norm": {"mean": jnp.full(4, 2.0), "var": jnp.full(4, 3.0)}},
    }


def linen_state(made=None, **options):
    made = variables() if made is None else made
    return TrainingState(model=made, optimizer=TX.init(made["params"]), tx=TX, rng=False, **options)


def stepped_linen():
    state = linen_state()
    params = state.model["params"]
    moved = jax.tree.map(lambda leaf: leaf + 1.0, params)
    _, state.optimizer = TX.update(moved, state.optimizer, params)
    state.step = 1
    return state


def torch_state(steps=0):
    torch.manual_seed(0)
    model = TorchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        model(torch.arange(12.0).reshape(3, 4)).square().sum().backward()
        optimizer.step()
    return TrainingState(model=model, optimizer=optimizer, rng=False, step=steps)


def saved(folder, state):
    with CheckpointManager(folder, durable=False) as manager:
        manager.save(state, step=1)
    return folder


def restored(folder, state):
    with CheckpointManager(folder) as manager:
        return manager.restore(state).report


def same(state, pytorch):
    """Compare weights, statistics and moments of Linen with PyTorch's."""
    model, moments = pytorch.model, pytorch.optimizer.state
    params, mu = state.model["params"], state.optimizer[0].mu
    for name in ("inner", "outer"):
        layer = getattr(model, name)
        np.testing.assert_array_equal(params[name]["kernel"], layer.weight.detach().numpy().T)
        np.testing.assert_array_equal(mu[name]["kernel"], moments[layer.weight]["exp_avg"].numpy().T)
        np.testing.assert_array_equal(mu[name]["bias"], moments[layer.bias]["exp_avg"].numpy())
    np.testing.assert_array_equal(mu["norm"]["scale"], moments[model.norm.weight]["exp_avg"].numpy())
    np.testing.assert_array_equal(state.model["batch_stats"]["norm"]["var"], model.norm.running_var.numpy())
    assert int(state.optimizer[0].count) == moments[model.norm.weight]["step"] == state.step


def test_a_run_of_pytorch_goes_on_in_linen_by_the_layers_of_like(tmp_path):
    before = torch_state(steps=1)
    folder = saved(tmp_path, before)
    after = linen_state(like=TorchNet())
    report = restored(folder, after)
    assert (len(report.model.applied), len(report.optimizer.restored)) == (8, 6)
    same(after, before)


@pytest.mark.parametrize("options", [{}, {"layout": "torch", "like": TorchNet()}], ids=["own", "torch"])
def test_a_run_of_linen_goes_on_in_pytorch(options, tmp_path):
    before = stepped_linen()
    before.layout, before.like = options.get("layout"), options.get("like")
    after = torch_state()
    restored(saved(tmp_path, before), after)
    same(before, after)


def test_linen_and_nnx_go_on_from_each_other(tmp_path):
    before = stepped_linen()
    model = NnxNet(nnx.Rngs(1))
    between = TrainingState(model=model, optimizer=nnx.Optimizer(model, TX, wrt=nnx.Param), rng=False)
    restored(saved(tmp_path / "one", before), between)
    after = linen_state(jax.tree.map(jnp.zeros_like, variables()), like=NnxNet(nnx.Rngs(2)))
    restored(saved(tmp_path / "two", between), after)
    for one, two in ((before.model, after.model), (before.optimizer, after.optimizer)):
        assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x == y).all()), one, two)))


def test_without_like_it_is_refused_with_what_to_give(tmp_path):
    folder = saved(tmp_path, torch_state(steps=1))
    after = linen_state()
    with pytest.raises(RestoreError, match="like=") as caught:
        restored(folder, after)
    assert "nothing was changed" in str(caught.value)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x == y).all()), after.model, variables())))


def test_linen_goes_on_from_itself_exactly_with_moments_by_name(tmp_path):
    before = stepped_linen()
    folder = saved(tmp_path, before)
    after = linen_state(jax.tree.map(jnp.zeros_like, variables()), like=TorchNet())
    report = restored(folder, after)
    assert report.exact
    assert len(report.optimizer.restored) == 6
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x == y).all()), before.optimizer, after.optimizer)))


def test_params_alone_move_too(tmp_path):
    before = torch_state(steps=1)
    params = variables()["params"]
    after = TrainingState(model=params, optimizer=TX.init(params), tx=TX, rng=False, like=TorchNet(), strict=False)
    report = restored(saved(tmp_path, before), after)
    assert set(report.model.unused) == {"norm.running_mean", "norm.running_var"}
    np.testing.assert_array_equal(after.model["inner"]["kernel"], before.model.inner.weight.detach().numpy().T)
    assert len(report.optimizer.restored) == 6


def test_a_schedule_of_pytorch_is_refused_in_jax_with_what_works(tmp_path):
    before = torch_state(steps=1)
    before.scheduler = torch.optim.lr_scheduler.StepLR(before.optimizer, 5)
    folder = saved(tmp_path, before)
    with pytest.raises(RestoreError, match="part of tx"):
        restored(folder, linen_state(like=TorchNet()))
    after = linen_state(like=TorchNet(), strict=False)
    assert not restored(folder, after).model.missing
    same(after, before)
