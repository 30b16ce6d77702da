"""Runs in JAX, straight or in two halves: started as a program, so that the second half has a process of its own.

    python jax_runs.py first|second DIRECTORY

"first" runs each configuration straight, then anew and not so far: it saves after ten steps, goes on for two, and is killed in the last.
"second" takes them up again.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

from firekeep.checkpoint import CheckpointManager
from firekeep.training import ResumableSampler, TrainingState

STEPS, HALF, FURTHER = 20, 10, 2
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.05, 4, 30)
CHAIN = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE))
NOISY = optax.chain(optax.clip_by_global_norm(1.0), optax.add_noise(0.01, 0.5, jax.random.key(3)), optax.adam(SCHEDULE))
SEVERAL = optax.MultiSteps(NOISY, every_k_schedule=3)  # ten steps are not a multiple of it
TWO = optax.MultiSteps(optax.adam(SCHEDULE), every_k_schedule=4)
INJECTED = optax.inject_hyperparams(optax.adamw)(SCHEDULE)
DATA = np.random.default_rng(7).normal(size=(30, 6)).astype(np.float32)
"""As many samples as no whole number of batches has."""


class Stream:
    """An iterator as Grain's: a shuffled order without an end, and a position that is bytes of its own."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Any:
        while True:
            epoch, place = divmod(self.next, len(DATA))
            self.next += 1
            yield int(np.random.default_rng((11, epoch)).permutation(len(DATA))[place])

    def get_state(self) -> bytes:
        return json.dumps({"next": self.next}).encode()

    def set_state(self, state: bytes) -> None:
        self.next = json.loads(state)["next"]


def endless(data: Any) -> Any:
    """Give samples of one epoch after the other, with noise of the process' own generator."""
    while True:
        for index in data:
            yield DATA[index] + np.float32(0.1) * np.random.standard_normal(6).astype(np.float32)
        data.set_epoch(data.epoch + 1)


class Flax(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(6, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, momentum=0.8, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.List([nnx.Linear(5, 3, rngs=rngs)])

    def __call__(self, x: Any) -> Any:
        return self.last[0](self.drop(nnx.relu(self.norm(self.first(x)))))


@partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def flax_numbers(seed: int) -> Any:
    return nnx.state(Flax(nnx.Rngs(seed)))


@partial(jax.jit, static_argnums=2, compiler_options=QUICKLY)
def flax_step(state: Any, x: Any, kind: Any) -> Any:
    model, optimizer = nnx.merge(kind, state)
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1.0) ** 2))(model)
    optimizer.update(model, grads)
    return loss, nnx.state((model, optimizer))


class FlaxRun:
    def __init__(self, tx: Any, data: Any, seed: int) -> None:
        model = nnx.eval_shape(lambda: Flax(nnx.Rngs(0)))
        nnx.update(model, flax_numbers(seed))
        self.state = TrainingState(model=model, optimizer=nnx.Optimizer(model, tx, wrt=nnx.Param), data=data)

    def step(self, x: Any) -> Any:
        both = (self.state.model, self.state.optimizer)
        kind, state = nnx.split(both)
        loss, state = flax_step(state, x, kind)
        nnx.update(both, state)
        return loss

    def leaves(self) -> Any:
        return nnx.to_pure_dict(nnx.state((self.state.model, self.state.optimizer)))


class Layered(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(6, 5, key=keys[0])
        self.norm = eqx.nn.BatchNorm(5, axis_name="batch", mode="batch")
        self.drop = eqx.nn.Dropout(0.3)
        self.last = eqx.nn.Linear(5, 3, key=keys[1])

    def __call__(self, x: Any, state: Any, key: Any) -> Any:
        x, state = self.norm(self.first(x), state)
        return self.last(self.drop(x, key=key)), state


make_layered = eqx.nn.make_with_state(Layered)


@partial(jax.jit, compiler_options=QUICKLY)
def layered_numbers(key: Any) -> Any:
    return eqx.filter(make_layered(key), eqx.is_array)


@partial(jax.jit, static_argnums=(2, 3), compiler_options=QUICKLY)
def layered_step(arrays: Any, x: Any, leaves: Any, shape: Any) -> Any:
    model, stats, moments, key = eqx.combine(arrays, jax.tree.unflatten(shape, leaves))
    key, mine = jax.random.split(key)

    def loss(model: Any, stats: Any) -> Any:
        run = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        out, made = run(x, stats, jax.random.split(mine, len(x)))
        return jnp.mean((out - 1.0) ** 2), made

    (value, stats), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model, stats)
    updates, moments = TWO.update(grads, moments, eqx.filter(model, eqx.is_inexact_array))
    return eqx.filter((eqx.apply_updates(model, updates), stats, moments, key), eqx.is_array), value


class EqxRun:
    def __init__(self, data: Any, seed: int) -> None:
        key = jax.random.key(seed)
        shapes = eqx.filter_eval_shape(make_layered, key)
        fixed = eqx.filter(shapes, lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))
        both = eqx.combine(layered_numbers(key), fixed)
        moments = TWO.init(eqx.filter(both[0], eqx.is_inexact_array))
        values = {"keys": {"drop": key}}
        self.state = TrainingState(model=both, optimizer=moments, tx=TWO, values=values, data=data)

    def step(self, x: Any) -> Any:
        state = self.state
        arrays, fixed = eqx.partition((*state.model, state.optimizer, state.values["keys"]["drop"]), eqx.is_array)
        leaves, shape = jax.tree.flatten(fixed)
        arrays, loss = layered_step(arrays, x, tuple(leaves), shape)
        *both, state.optimizer, key = eqx.combine(arrays, fixed)
        state.model, state.values["keys"]["drop"] = tuple(both), key
        return loss

    def leaves(self) -> Any:
        return [eqx.filter(self.state.model, eqx.is_array), self.state.optimizer, self.state.values["keys"]["drop"]]


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False, momentum=0.8)(nn.Dense(5)(x))
        return nn.Dense(3)(nn.Dropout(0.3, deterministic=False)(nn.relu(x)))


class LinenState(TrainState):
    """As the examples of Flax make it."""

    batch_stats: Any
    key: Any


@partial(jax.jit, compiler_options=QUICKLY)
def linen_numbers(key: Any) -> Any:
    return Linen().init({"params": key, "dropout": key}, DATA[:4])


@partial(jax.jit, compiler_options=QUICKLY)
def linen_step(state: Any, x: Any) -> Any:
    key = jax.random.fold_in(state.key, state.step)

    def loss(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        out, made = state.apply_fn(variables, x, rngs={"dropout": key}, mutable=["batch_stats"])
        return jnp.mean((out - 1.0) ** 2), made["batch_stats"]

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats), value


LINEN = Linen().apply


class LinenRun:
    def __init__(self, data: Any, seed: int) -> None:
        key = jax.random.key(seed)
        made = linen_numbers(key)
        model = LinenState.create(
            apply_fn=LINEN, params=made["params"], tx=INJECTED, batch_stats=made["batch_stats"], key=key
        )
        self.state = TrainingState(model=model.replace(step=jnp.int32(0)), data=data)

    def step(self, x: Any) -> Any:
        self.state.model, loss = linen_step(self.state.model, x)
        return loss

    def leaves(self) -> Any:
        return self.state.model


CONFIGURATIONS: dict[str, Any] = {
    "nnx, a chain": lambda seed: FlaxRun(CHAIN, ResumableSampler(len(DATA), seed=5), seed),
    "nnx, several steps": lambda seed: FlaxRun(SEVERAL, Stream(), seed),
    "linen": lambda seed: LinenRun(Stream(), seed),
    "equinox": lambda seed: EqxRun(ResumableSampler(len(DATA), seed=5), seed),
}


def make(configuration: str, seed: int) -> Any:
    np.random.seed(seed)
    return CONFIGURATIONS[configuration](seed)


def train(run: Any, upto: int, *, half_way: Any = None) -> list[float]:
    """Go on up to a step, and give the losses; `half_way` is called within the loop."""
    samples = endless(run.state.data)
    losses = []
    while run.state.step < upto:
        losses.append(float(run.step(np.stack(list(islice(samples, 4))))))
        run.state.step += 1
        if half_way is not None and run.state.step == HALF:
            half_way()
    return losses


def bits(run: Any) -> dict[str, str]:
    """Give what every array of a run is to the last bit, by its name."""
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype} {hashlib.sha256(plain(leaf).tobytes()).hexdigest()}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(run.leaves())
    }


def plain(leaf: Any) -> Any:
    return np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def first_halves(directory: Path) -> None:
    straight, first = {}, {}
    for configuration in CONFIGURATIONS:
        run = make(configuration, seed=1)
        straight[configuration] = {"losses": train(run, STEPS), "bits": bits(run)}
    (directory / "straight.json").write_text(json.dumps(straight))
    for configuration in CONFIGURATIONS:
        run = make(configuration, seed=1)
        with CheckpointManager(directory / configuration, durable=False, background=True) as manager:
            save = partial(manager.save, run.state, step=HALF)
            first[configuration] = train(run, HALF + FURTHER, half_way=save)
    (directory / "first.json").write_text(json.dumps(first))
    os.kill(os.getpid(), signal.SIGKILL)


def second_halves(directory: Path) -> None:
    second = {}
    for configuration in CONFIGURATIONS:
        run = make(configuration, seed=99)
        other = bits(run)
        report = CheckpointManager(directory / configuration, durable=False).restore(run.state).report
        second[configuration] = {
            "exact": report.exact,
            "report": str(report),
            "losses": train(run, STEPS),
            "bits": bits(run),
            "begun": other,
        }
    (directory / "second.json").write_text(json.dumps(second))


if __name__ == "__main__":
    (first_halves if sys.argv[1] == "first" else second_halves)(Path(sys.argv[2]))
