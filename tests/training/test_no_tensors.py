"""Objects that hold no tensor: refused, with what to give instead, where they would be saved as nothing."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.records import OptimizerRecord
from firekeep.training import TrainingState

TX = optax.adamw(1e-3)
PARAMS = {"w": jnp.ones((2, 2))}
HOLLOW = {
    "linen": (nn.Dense(2), "init"),
    "bound": (nn.Dense(2).bind({"params": {}}), "module.variables"),
    "graphdef": (nnx.graphdef(nnx.Linear(2, 2, rngs=nnx.Rngs(0))), "nnx.split"),
    "transformation": (TX, "tx.init"),
    "steps": (optax.MultiSteps(TX, 2), "tx.init"),
}
NONE = {
    **HOLLOW,
    "class": (nnx.Linear, "Linear"),
    "function": (nnx.relu, "object"),
    "path": ("model.pt", "load_into"),
}


@pytest.mark.parametrize("kind", NONE)
@pytest.mark.parametrize("part", ["model", "optimizer", "ema"])
def test_a_state_is_not_made_of_what_holds_none(kind, part):
    one, remedy = NONE[kind]
    with pytest.raises(firekeep.RuleError, match=f"^{part}") as caught:
        TrainingState(**{"model": PARAMS, part: one})
    assert remedy in caught.value.remedy
    with pytest.raises(firekeep.RuleError, match=f"^{part}-a"):
        TrainingState(**{"model": PARAMS, part: {"a": one}})


@pytest.mark.parametrize("kind", HOLLOW)
def test_no_door_takes_it(kind, tmp_path):
    one, remedy = HOLLOW[kind]
    path = tmp_path / "it.safetensors"
    firekeep.save(PARAMS, path)
    for door in (
        lambda: firekeep.save(one, tmp_path / "other.safetensors"),
        lambda: firekeep.load_into(one, path),
        lambda: firekeep.load_as(one, path),
        lambda: firekeep.apply(dict(PARAMS), one),
    ):
        with pytest.raises(firekeep.UnsupportedError) as caught:
            door()
        assert remedy in caught.value.remedy
    assert not (tmp_path / "other.safetensors").exists()


def test_a_transformation_is_no_state_for_a_record():
    with pytest.raises(firekeep.UnsupportedError, match="pair of functions"):
        OptimizerRecord.of(TX, PARAMS)


def test_a_schedule_that_is_a_function_is_left_out():
    with pytest.raises(firekeep.RuleError, match="no state") as caught:
        TrainingState(model=PARAMS, scheduler=optax.constant_schedule(1.0))
    assert "tx" in caught.value.remedy


def test_a_train_state_has_functions_among_its_fields_and_is_taken(tmp_path):
    from flax.training.train_state import TrainState

    made = TrainState.create(apply_fn=nn.Dense(2).apply, params=PARAMS, tx=TX)
    TrainingState(model=made)
    firekeep.save(made, tmp_path / "it.bpk")


def test_a_restore_of_no_tensors_is_not_exact(tmp_path):
    state = TrainingState(model={"params": None}, rng=False)
    with CheckpointManager(tmp_path, durable=False) as manager:
        manager.save(state, step=1)
        report = manager.restore(state).report
    assert not report.exact
    assert "no tensor was found" in report.fresh["model"]
