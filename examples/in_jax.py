"""Move weights from PyTorch into a model of Flax NNX, and keep a run in JAX with its optimizer and its key."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.training import TrainingState


class Net(nnx.Module):
    def __init__(self, rngs):
        self.fc1 = nnx.Linear(8, 16, rngs=rngs)
        self.fc2 = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.fc2(nnx.relu(self.fc1(x)))


weights = {"fc1.weight": (16, 8), "fc1.bias": (16,), "fc2.weight": (2, 16), "fc2.bias": (2,)}  # as PyTorch has them
firekeep.save_file({name: np.ones(shape, np.float32) for name, shape in weights.items()}, "net.safetensors")

model = Net(nnx.Rngs(0))
print(firekeep.load_into(model, "net.safetensors"))  # kernels are turned round

optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
state = TrainingState(model=model, optimizer=optimizer, values={"key": jax.random.key(0)})
gradients = nnx.grad(lambda model: jnp.mean(model(jnp.ones((4, 8))) ** 2))
with CheckpointManager("jax-run", every=2) as manager:
    if manager.latest():
        print(manager.restore(state))  # weights, moments, keys: all of it or nothing
    while state.step < 4:
        optimizer.update(model, gradients(model))
        state.step += 1
        manager.tick(state, step=state.step)
