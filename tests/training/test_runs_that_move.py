"""Runs that go on in another framework: ten steps of AdamW in one and ten in the other are twenty in PyTorch."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from firekeep.checkpoint import CheckpointManager
from firekeep.training import RestoreError, TrainingState
from training.twins import DECAY, MODELS, RATE, RUNS, TX, EqxRun, FlaxRun, TorchRun

STEPS, HALF, NEAR = 20, 10, 1e-4


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Several threads only wait for each other with numbers as few as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def straight(kind):
    return TorchRun(kind).steps(STEPS)


def apart(losses, others):
    return float(np.abs(np.subtract(losses, others)).max())


def begun(framework, kind, folder):
    """Begin a run with the weights that PyTorch's begins with, and make half of its steps."""
    run = RUNS[framework](kind)
    if framework != "torch":
        folder.mkdir()
        TorchRun(kind).save(folder, None)
        run.load(folder)
    assert apart(run.steps(HALF), straight(kind)[:HALF]) < NEAR
    return run


def check_second_half(run):
    run.step = HALF
    assert apart(run.steps(HALF), straight(run.kind)[HALF:]) < NEAR


@pytest.mark.parametrize("layout", [None, "burn"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("before", "after"), [("torch", "flax"), ("torch", "equinox"), ("flax", "torch"), ("equinox", "torch")]
)
def test_a_run_goes_on_in_the_other_framework(before, after, kind, layout, tmp_path):
    first, second = begun(before, kind, tmp_path / "start"), RUNS[after](kind)
    (folder := tmp_path / "saved").mkdir()
    first.save(folder, layout)
    report = second.load(folder)
    assert report.restored
    assert not any((report.fresh, report.dropped, report.orphaned)), str(report)
    check_second_half(second)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("framework", RUNS)
def test_without_its_moments_it_would_be_another_run(framework, kind, tmp_path):
    """Or the comparisons above would compare nothing."""
    begun("torch", kind, None).save(tmp_path, None)
    second = RUNS[framework](kind)
    second.load(tmp_path)
    second.optimizer, second.step = second.fresh(), HALF
    assert apart(second.steps(HALF), straight(kind)[HALF:]) > 100 * NEAR


def state_of(run, **more):
    tx = TX if isinstance(run, EqxRun) else None
    return TrainingState(model=run.model, optimizer=run.optimizer, step=run.step, tx=tx, rng=False, **more)


@pytest.mark.parametrize("layout", [None, "burn"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("before", "after"),
    [("torch", "flax"), ("torch", "equinox"), ("flax", "torch"), ("equinox", "torch"), ("equinox", "flax")],
)
def test_a_whole_state_is_restored_by_the_other_framework(before, after, kind, layout, tmp_path):
    first, second = begun(before, kind, tmp_path / "start"), RUNS[after](kind)
    state = state_of(second)
    with CheckpointManager(tmp_path / "saved", durable=False) as manager:
        manager.save(state_of(first, layout=layout, values={"seen": (3, "batches")}), step=HALF)
        report = manager.restore(state).report
    assert report.ok
    assert (state.step, state.values) == (HALF, {"seen": (3, "batches")})
    assert not report.exact, "the options of the other framework's optimizer are not known to be the same"
    moments = report.optimizer
    not_whole = (report.fresh, report.dropped, report.changed, moments.fresh, moments.dropped, moments.orphaned)
    assert not any(not_whole), str(report)
    second.model, second.optimizer = state.model, state.optimizer
    check_second_half(second)


RATES = (0.03, 0.003, 15)
"""From, to, and within how many steps."""
FALLING = optax.adamw(optax.linear_schedule(*RATES), weight_decay=DECAY)


class FallingTorch(TorchRun):
    """A run whose rate falls from step to step."""

    def made(self, x):
        loss = super().made(x)
        self.schedule.step()
        return loss

    def fresh(self):
        start, end, steps = RATES
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=start, weight_decay=DECAY)
        self.schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end / start, total_iters=steps)
        return optimizer


class FallingFlax(FlaxRun):
    def fresh(self):
        return nnx.Optimizer(self.model, FALLING, wrt=nnx.Param)


def test_a_schedule_of_optax_goes_on_where_that_of_torch_was(tmp_path):
    wanted = FallingTorch("mlp").steps(STEPS)
    first = FallingTorch("mlp")
    first.steps(HALF)
    second = FallingFlax("mlp")
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state_of(first, scheduler=first.schedule), step=HALF)
        with pytest.raises(RestoreError) as caught:
            manager.restore(state_of(second))
        assert "with strict=False to go on without it" in caught.value.report.refusals[0]
        assert all(np.all(leaf == 0.25) for leaf in numbers_of(second))
        report = manager.restore(state_of(second, strict=False)).report
    assert list(report.dropped) == ["scheduler"]
    assert int(second.optimizer.opt_state[2].count[...]) == HALF
    second.step = HALF
    losses = second.steps(HALF)
    assert apart(losses, wanted[HALF:]) < NEAR
    assert apart(losses, straight("mlp")[HALF:]) > 10 * NEAR, "the rate has fallen"


def numbers_of(run):
    return jax.tree.leaves(nnx.state(run.model))


@pytest.mark.parametrize(("kind", "reason"), [("NAdam", "another formula"), ("Adagrad", "Adagrad")])
def test_moments_that_mean_something_else_are_refused_and_the_whole_state_stays(kind, reason, tmp_path):
    first, second = TorchRun("mlp"), FlaxRun("mlp")
    first.optimizer = getattr(torch.optim, kind)(first.model.parameters(), lr=RATE)
    first.steps(2)
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state_of(first), step=2)
        state = state_of(second)
        with pytest.raises(RestoreError) as caught:
            manager.restore(state)
        (told,) = caught.value.report.refusals
        assert told == (
            f"optimizer: the record is of {kind}, and the optimizer is optax.Adam (ScaleByAdamState), 4 states that cannot "
            "be taken over; with strict=False what fits is taken over, and the rest starts anew"
        )
        assert all(reason in told for told in caught.value.report.optimizer.dropped.values())
        assert state.step == 0
        assert all(np.all(leaf == 0.25) for leaf in numbers_of(second))
        report = manager.restore(state_of(second, strict=False)).report
    assert len(report.optimizer.dropped) == 4
    np.testing.assert_array_equal(second.model.first.bias[...], first.model.first.bias.detach().numpy())
    assert int(second.optimizer.step[...]) == 0
