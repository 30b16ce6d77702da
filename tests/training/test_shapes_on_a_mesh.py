"""States of shapes whose shardings name a mesh with explicit axes, as `jax.eval_shape` leaves them: without devices."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.training import TrainingState

TX = optax.adam(1e-3)


def shaped(mesh):
    return {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("d")))}


def without_devices(params):
    """Give the same shapes as a function of JAX returns them."""
    return jax.eval_shape(lambda tree: jax.tree.map(lambda leaf: leaf + 0, tree), params)


def state(params, opt_state):
    return TrainingState(model=params, optimizer=opt_state, tx=TX, rng=False)


@pytest.fixture
def saved(tmp_path):
    params = {"w": jnp.arange(32.0).reshape(8, 4)}
    with CheckpointManager(tmp_path / "run", durable=False) as manager:
        manager.save(state(params, TX.init(params)), step=1)
    return tmp_path / "run"


def test_the_mesh_of_the_model_is_that_of_its_moments(saved):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Explicit,))
    params = shaped(mesh)
    asked = state(params, jax.eval_shape(TX.init, params))
    assert CheckpointManager(saved).restore(asked).report.exact
    assert asked.model["w"].sharding.mesh == asked.optimizer[0].mu["w"].sharding.mesh == mesh
    np.testing.assert_array_equal(asked.model["w"], np.arange(32.0).reshape(8, 4))


def test_a_mesh_of_one_device_needs_no_other_array(saved):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Explicit,))
    made, _ = firekeep.load_as(without_devices(shaped(mesh)), saved / "step-00000001" / "model.bpk")
    assert made["w"].sharding.mesh == mesh


FOUR = """
import sys, jax, firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.training import RestoreError
from training.test_shapes_on_a_mesh import TX, AxisType, shaped, state, without_devices
run = sys.argv[1]
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
params = shaped(mesh)
asked = state(params, jax.eval_shape(TX.init, params))
CheckpointManager(run).restore(asked)
assert asked.model["w"].sharding.mesh == asked.optimizer[0].mu["w"].sharding.mesh == mesh

bare = without_devices(shaped(mesh))
asked = state({"w": jax.numpy.zeros((8, 4))}, jax.eval_shape(TX.init, bare))
before = asked.model["w"]
try:
    CheckpointManager(run).restore(asked)
except RestoreError as error:
    assert "no devices" in str(error) and "nothing was changed" in str(error), error
else:
    raise AssertionError("four devices have more than one order")
assert asked.model["w"] is before
try:
    firekeep.load_as(bare, f"{run}/step-00000001/model.bpk")
except firekeep.LoadError as error:
    assert "no devices" in str(error), error
else:
    raise AssertionError("four devices have more than one order")
with jax.set_mesh(mesh):
    made, _ = firekeep.load_as(bare, f"{run}/step-00000001/model.bpk")
assert made["w"].sharding.mesh == mesh
"""


def test_of_several_devices_the_mesh_is_known_or_nothing_is_touched(saved):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", FOUR, str(saved)],
        env={**os.environ, **flags, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
