"""A run that goes on in a wrapper around its model, or without the one it had: names differ, and all comes back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firekeep.checkpoint import CheckpointManager
from firekeep.training import TrainingState


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(3, 8)
        self.norm = nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        h = self.norm(self.body(x))
        return self.attend(h, h, h)[0]


def plain(model):
    return model


class Compiled(nn.Module):
    """Names its model as `torch.compile` does, whose own import takes seconds."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


def nested(model):
    return nn.DataParallel(Compiled(model))


WRAPS = {"plain": plain, "parallel": nn.DataParallel, "compiled": Compiled, "nested": nested}


def made(wrap, seed, **more):
    """Give a state of a wrapped model, and the model within."""
    model = Net(seed)
    wrapped = WRAPS[wrap](model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    return TrainingState(model=wrapped, optimizer=optimizer, rng=False, **more), model


def step(state, model):
    state.optimizer.zero_grad()
    model(torch.ones(2, 5, 3)).square().mean().backward()
    state.optimizer.step()


def moments(state, model):
    return {name: state.optimizer.state[value]["exp_avg"] for name, value in model.named_parameters()}


@pytest.mark.parametrize("layout", [None, "burn"])
@pytest.mark.parametrize(
    ("before", "after"), [("plain", wrap) for wrap in WRAPS if wrap != "plain"] + [("nested", "plain")]
)
def test_a_run_goes_on_in_another_wrapper(before, after, layout, tmp_path):
    state, model = made(before, 0, layout=layout)
    step(state, model)
    other, inner = made(after, 1)
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state, step=1)
        report = manager.restore(other).report
    assert report.exact, str(report)
    assert len(report.optimizer.restored) == len(list(model.parameters()))
    for name, moment in moments(state, model).items():
        assert torch.equal(moments(other, inner)[name], moment), name
    step(state, model)
    step(other, inner)
    for one, two in zip(model.parameters(), inner.parameters(), strict=True):
        assert torch.equal(one, two)


def test_an_average_follows_the_renames_of_a_burn_layout(tmp_path):
    state, model = made("plain", 0, layout="burn")
    step(state, model)
    state.ema = torch.optim.swa_utils.AveragedModel(model)
    other, inner = made("compiled", 1)
    other.ema = torch.optim.swa_utils.AveragedModel(inner)
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state, step=1)
        report = manager.restore(other).report
    assert report.exact, str(report)
    assert torch.equal(other.ema.module.norm.weight, state.ema.module.norm.weight)


@pytest.mark.parametrize("layout", [None, "burn"])
@pytest.mark.parametrize("after", ["plain", "parallel", "compiled"])
def test_parameters_that_take_gradients_again_are_told(after, layout, tmp_path):
    state, model = made("plain", 0, layout=layout)
    model.body.weight.requires_grad_(False)
    model.norm.bias.requires_grad_(False)
    other, inner = made(after, 1)
    inner.norm.bias.requires_grad_(False)
    inner.attend.in_proj_weight.requires_grad_(False)
    prefix = "_orig_mod." if after == "compiled" else ""
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state, step=1)
        report = manager.restore(other).report
        inner.body.weight.requires_grad_(False)
        inner.attend.in_proj_weight.requires_grad_(True)
        again = manager.restore(other).report
    thawed, stopped = report.changed
    remedy = "before the restore, or have it done by TrainingState(frozen=True)"
    assert thawed == (
        f"model: '{prefix}body.weight' took no gradient, and takes one now: call requires_grad_(False) of it {remedy}"
    )
    assert stopped == (
        f"model: '{prefix}attend.in_proj_weight' took a gradient, and takes none now: "
        f"call requires_grad_(True) of it {remedy}"
    )
    assert not report.exact
    assert again.exact, str(again)


@pytest.mark.parametrize("layout", [None, "burn"])
@pytest.mark.parametrize("after", ["plain", "parallel", "compiled"])
def test_parameters_take_gradients_as_in_the_saved_run_where_that_is_asked_for(after, layout, tmp_path):
    state, model = made("plain", 0, layout=layout)
    model.body.weight.requires_grad_(False)
    other, inner = made(after, 1, frozen=True)
    inner.attend.in_proj_weight.requires_grad_(False)
    prefix = "_orig_mod." if after == "compiled" else ""
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state, step=1)
        report = manager.restore(other).report
    assert report.exact, str(report)
    assert report.notes == (
        f"model: '{prefix}body.weight' takes no gradient, as in the saved run",
        f"model: '{prefix}attend.in_proj_weight' takes a gradient, as in the saved run",
    )
    assert [one.requires_grad for one in inner.parameters()] == [one.requires_grad for one in model.parameters()]


def test_a_frozen_layer_that_is_new_is_no_change(tmp_path):
    state, _ = made("plain", 0)
    other, inner = made("plain", 1, strict=False)
    inner.more = nn.Linear(2, 2).requires_grad_(False)
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state, step=1)
        assert not manager.restore(other).report.changed
