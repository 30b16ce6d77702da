"""Arrays over eight devices, which a process of its own pretends to have: written once, and filled where they lie."""

from __future__ import annotations

import subprocess
import sys

CODE = r"""
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from firekeep import models
from firekeep.bridges import entries_of

folder = Path(sys.argv[1])
assert len(jax.devices()) == 8


def mesh(count):
    return jax.make_mesh((count,), ("x",), devices=jax.devices()[:count], axis_types=(jax.sharding.AxisType.Auto,))


def spread(count, *names):
    return NamedSharding(mesh(count), PartitionSpec(*names))


values = {
    "rows": np.arange(96, dtype=np.float32).reshape(16, 6),
    "columns": np.arange(80, dtype=np.float32).reshape(5, 16)[:, ::-1].copy(),
    "whole": np.arange(7, dtype=np.int32),
    "half": np.arange(16).astype(jnp.bfloat16),
}
names = {"rows": ("x",), "columns": (None, "x"), "whole": (), "half": ("x",)}
state = {name: jax.device_put(value, spread(8, *names[name])) for name, value in values.items()}
state["one"] = jax.device_put(np.ones(3, np.float32), jax.devices()[3])
state["key"] = jax.device_put(jax.random.split(jax.random.key(5), 8), spread(8, "x"))
for name, value in values.items():
    entry = next(entry for entry in entries_of(state) if entry.name == name)
    assert bytes(entry.read()) == value.tobytes(), name
    assert state[name]._npy_value is None, name  # nothing gathered stays behind
for suffix in ("safetensors", "bpk"):
    path = folder / f"state.{suffix}"
    models.save(state, path)
    for count in (1, 2, 4, 8):
        shapes = {
            name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=spread(count, *names[name]))
            for name, value in values.items()
        }
        shapes["one"] = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[2]))
        shapes["key"] = jax.ShapeDtypeStruct((8,), state["key"].dtype, sharding=spread(count, "x"))
        zeros = {name: jax.device_put(jnp.zeros(s.shape, s.dtype), s.sharding) for name, s in shapes.items() if name != "key"}
        zeros["key"] = jax.device_put(jax.random.split(jax.random.key(0), 8), shapes["key"].sharding)
        made, _ = models.load_as(shapes, path)
        models.load_into(zeros, path)
        for target in (made, zeros):
            for name, value in values.items():
                assert target[name].sharding == shapes[name].sharding, (name, target[name].sharding)
                assert np.asarray(target[name]).tobytes() == value.tobytes(), (name, count)
            assert target["one"].devices() == {jax.devices()[2]}
            assert target["key"].sharding == shapes["key"].sharding
            assert (np.asarray(jax.random.key_data(target["key"])) == np.asarray(jax.random.key_data(state["key"]))).all()
    bytes_before = path.read_bytes()
    assert str(path) not in Path("/proc/self/maps").read_text()

model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
model.kernel[...] = jax.device_put(model.kernel[...], spread(8, "x"))
models.save(model, folder / "model.bpk", layout="flax")
other = nnx.Linear(8, 8, rngs=nnx.Rngs(1))
other.kernel.set_value(jax.device_put(other.kernel[...], spread(4, None, "x")))
models.load_into(other, folder / "model.bpk")
assert other.kernel.get_value().sharding == spread(4, None, "x")
assert (np.asarray(other.kernel.get_value()) == np.asarray(model.kernel.get_value())).all()
print("all is well")
"""


def test_arrays_over_many_devices_are_written_once_and_filled_where_they_lie(tmp_path):
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-W", "error", "-c", CODE, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "all is well"


def test_a_bridge_is_chosen_without_importing_jax():
    code = "import sys; from firekeep.bridges import bridge_of; print(bridge_of({'a': [1]}).name, 'jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "plain False"
