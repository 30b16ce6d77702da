"""Arrays over eight devices, which a process of its own pretends to have, and over two processes: written once, filled where they lie."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

CODE = r"""
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from firekeep import CheckpointManager, TrainingState, models
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

TX = optax.adam(1e-3)


def place(tree, count, seed):
    # Other values for all of it. What divides is spread over the devices; the rest is on each of them.
    def put(leaf):
        random = np.random.default_rng([seed, leaf.size])
        value = random.integers(0, 9, leaf.shape).astype(leaf.dtype)
        divides = leaf.shape and leaf.shape[0] % count == 0
        return jax.device_put(value, spread(count, "x") if divides else spread(count))

    return jax.tree.map(put, tree)


def of_nnx(count, seed):
    model = nnx.eval_shape(lambda: nnx.Sequential(nnx.Linear(8, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, 3, rngs=nnx.Rngs(0))))
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(model, TX, wrt=nnx.Param))
    for number, part in enumerate((model, optimizer)):
        nnx.update(part, place(nnx.state(part), count, [seed, number]))
    return TrainingState(model=model, optimizer=optimizer)


def of_optax(count, seed):
    shapes = {"w": jax.ShapeDtypeStruct((16, 4), np.float32), "b": jax.ShapeDtypeStruct((3,), np.float32)}
    return TrainingState(
        model=place(shapes, count, seed), optimizer=place(jax.eval_shape(TX.init, shapes), count, seed + 1), tx=TX
    )


def leaves(state):
    return [jax.tree.leaves(part if isinstance(part, dict | tuple) else nnx.state(part)) for part in (state.model, state.optimizer)]


for number, trained in enumerate((of_nnx, of_optax)):
    saved = trained(8, 3)
    for background in (False, True):
        home = folder / f"run-{number}-{background}"
        with CheckpointManager(home, background=background, durable=False) as manager:
            manager.save(saved, step=7)
            manager.wait()
        for count in (1, 2, 4):
            state = trained(count, 5)
            before = leaves(state)
            with CheckpointManager(home) as manager:
                assert manager.restore(state).report.exact
            for old, new, kept in zip(*map(sum, (before, leaves(state), leaves(saved)), ([], [], [])), strict=True):
                assert new.sharding == old.sharding
                assert len(new.sharding.device_set) == count
                assert (new.dtype, np.asarray(new).tobytes()) == (kept.dtype, np.asarray(kept).tobytes())
print("all is well")
"""


PROCESS = r"""
import sys
from pathlib import Path

import jax
import numpy as np

number, address, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
jax.distributed.initialize(address, 2, number, initialization_timeout=100)

from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from firekeep import CheckpointManager, TrainingState, models
from firekeep.errors import UnsupportedError

sharding = NamedSharding(jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), PartitionSpec("x"))
value = np.arange(8, dtype=np.float32)
tree = {"own": jax.numpy.ones(3), "both": jax.make_array_from_callback((8,), sharding, lambda index: value[index])}
assert len(tree["both"].addressable_shards) == 1


def refused(save):
    try:
        save()
    except UnsupportedError as error:
        assert all(word in str(error) for word in ("both'", "devices of other processes", "process_allgather")), error
        return True


assert refused(lambda: models.save(tree, folder / f"{number}.safetensors"))
for background in (False, True):
    with CheckpointManager(folder / f"run-{number}", background=background, durable=False) as manager:
        assert refused(lambda: manager.save(TrainingState(model=tree), step=1))
        assert manager.steps() == []
gathered = {**tree, "both": multihost_utils.process_allgather(tree["both"], tiled=True)}
path = folder / "gathered.safetensors"
if number == 0:
    models.save(gathered, path)
multihost_utils.sync_global_devices("saved")
tree["both"] = tree["both"] * 0
models.load_into(tree, path)
assert tree["both"].sharding == sharding
(mine,) = tree["both"].addressable_shards
assert np.asarray(mine.data).tobytes() == value[mine.index].tobytes()
multihost_utils.sync_global_devices("loaded")
jax.distributed.shutdown()
print("all is well")
"""


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="nothing else keeps a port free for another process")
def test_an_array_over_two_processes_is_refused_and_filled_where_it_lies(tmp_path):
    with socket.socket() as kept:  # bound while the processes run, so that nobody else is given the port
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        environment = {"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
        running = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(number), address, str(tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for number in range(2)
        ]
        try:
            told = [process.communicate(timeout=240) for process in running]
        finally:
            for process in running:
                process.kill()
    assert [process.returncode for process in running] == [0, 0], told
    assert all(out.rstrip().endswith("all is well") for out, _ in told)
    left = [file.name for file in tmp_path.rglob("*") if file.is_file() and file.name != ".firekeep.lock"]
    assert left == ["gathered.safetensors"]


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
