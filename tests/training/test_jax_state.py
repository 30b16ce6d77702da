"""Runs in JAX that are taken up again: models, states of optax, keys, places in the data."""

from functools import partial

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

from firekeep.checkpoint import CheckpointManager
from firekeep.training import RestoreError, TrainingState

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
X = jax.random.normal(jax.random.key(1), (8, 6))
SCHEDULE = optax.linear_schedule(0.05, 0.001, 30)


def same(first, second):
    """Compare two trees to the last bit."""
    one, two = (jax.tree_util.tree_flatten_with_path(tree) for tree in (first, second))
    assert [jax.tree_util.keystr(path) for path, _ in one[0]] == [jax.tree_util.keystr(path) for path, _ in two[0]]
    for (path, left), (_, right) in zip(one[0], two[0], strict=True):
        left, right = map(plain, (left, right))
        assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes()), jax.tree_util.keystr(path)


def plain(leaf):
    key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if key else leaf)


def restored(folder, state):
    with CheckpointManager(folder) as manager:
        return manager.restore(state).report


class Net(nnx.Module):
    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(6, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.List([nnx.Linear(5, 3, rngs=rngs)])

    def __call__(self, x):
        return self.last[0](self.drop(nnx.relu(self.norm(self.first(x)))))


def loss_of(model, x):
    return jnp.mean((model(x) - 1.0) ** 2)


@nnx.jit
def nnx_step(model, optimizer, number):
    grads = nnx.grad(loss_of)(model, X * (1 + 0.1 * number))
    optimizer.update(model, grads)


def nnx_state(seed):
    model = Net(seed)
    optimizer = nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE)), wrt=nnx.Param)
    return TrainingState(model=model, optimizer=optimizer)


def nnx_run(state, steps):
    for _ in range(steps):
        nnx_step(state.model, state.optimizer, jnp.float32(state.step))
        state.step += 1


def leaves_of_nnx(state):
    return nnx.to_pure_dict(nnx.state(state.model)), nnx.to_pure_dict(nnx.state(state.optimizer))


def test_nnx_with_dropout_and_batch_norm_goes_on_to_the_bit(tmp_path):
    first = nnx_state(0)
    nnx_run(first, 10)
    with CheckpointManager(tmp_path) as manager:
        manager.save(first, step=first.step)
    nnx_run(first, 10)
    second = nnx_state(1)
    model, optimizer = second.model, second.optimizer
    report = restored(tmp_path, second)
    assert report.exact, str(report)
    assert second.model is model
    assert second.optimizer is optimizer
    assert second.step == 10
    assert int(optimizer.step[...]) == 10
    nnx_run(second, 10)
    same(leaves_of_nnx(second), leaves_of_nnx(first))


class Layered(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(6, 5, key=keys[0])
        self.norm = eqx.nn.BatchNorm(5, axis_name="batch", mode="batch")
        self.drop = eqx.nn.Dropout(0.3)
        self.last = eqx.nn.Linear(5, 3, key=keys[1])

    def __call__(self, x, state, key):
        x, state = self.norm(self.first(x), state)
        return self.last(self.drop(x, key=key)), state


TX = optax.MultiSteps(optax.adam(SCHEDULE), every_k_schedule=2)


@partial(eqx.filter_jit)
def eqx_step(model, stats, moments, key):
    def loss(model, stats):
        keys = jax.random.split(key, 8)
        out, made = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(X, stats, keys)
        return jnp.mean((out - 1.0) ** 2), made

    (_, stats), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model, stats)
    updates, moments = TX.update(grads, moments, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), stats, moments, jax.random.split(key)[0]


def eqx_start(seed):
    model, stats = eqx.nn.make_with_state(Layered)(jax.random.key(seed))
    return model, stats, TX.init(eqx.filter(model, eqx.is_inexact_array)), jax.random.key(seed)


def test_a_tuple_of_equinox_goes_on_to_the_bit(tmp_path):
    parts = eqx_start(0)
    for _ in range(5):
        parts = eqx_step(*parts)
    with CheckpointManager(tmp_path) as manager:
        manager.save(TrainingState(model=parts, step=5), step=5)
    state = TrainingState(model=eqx_start(1))
    report = restored(tmp_path, state)
    assert report.exact, str(report)
    same(state.model, parts)
    more = state.model
    for _ in range(5):
        more, parts = eqx_step(*more), eqx_step(*parts)
    same(more, parts)


def test_a_module_and_a_state_of_optax_are_made_anew(tmp_path):
    model, stats, moments, key = eqx_start(0)
    for _ in range(5):
        model, stats, moments, key = eqx_step(model, stats, moments, key)
    saved = TrainingState(model=(model, stats), optimizer=moments, values={"key": key, "mean": jnp.arange(3.0)}, tx=TX)
    with CheckpointManager(tmp_path) as manager:
        manager.save(saved, step=5)
    other = eqx_start(1)
    state = TrainingState(model=other[:2], optimizer=other[2], tx=TX)
    report = restored(tmp_path, state)
    assert report.exact, str(report)
    same((*state.model, state.optimizer), (model, stats, moments))
    same(state.values, {"key": key, "mean": jnp.arange(3.0)})
    assert isinstance(state.values["mean"], jax.Array)
    assert jax.random.key_impl(state.values["key"]) == jax.random.key_impl(key)


def linen_state(seed):
    model = nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(3)])
    params = model.init(jax.random.key(seed), X)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.inject_hyperparams(optax.adam)(SCHEDULE))


@jax.jit
def linen_step(state):
    grads = jax.grad(lambda params: jnp.mean((state.apply_fn({"params": params}, X) - 1.0) ** 2))(state.params)
    return state.apply_gradients(grads=grads)


def test_a_train_state_goes_on_to_the_bit(tmp_path):
    first = linen_state(0)
    for _ in range(5):
        first = linen_step(first)
    with CheckpointManager(tmp_path) as manager:
        manager.save(TrainingState(model=first), step=5)
    state = TrainingState(model=linen_state(1))
    assert restored(tmp_path, state).exact
    assert int(state.model.step) == 5
    same(state.model.replace(step=first.step), first)
    same(linen_step(state.model), linen_step(first))


class Stream:
    """An iterator as Grain's: its position is what it says it is."""

    def __init__(self, position):
        self.position = position

    def get_state(self):
        return self.position

    def set_state(self, position):
        self.position = position


@pytest.mark.parametrize("position", [{"next_index": 7}, b'{"workers": 2}'])
def test_a_plain_dict_and_an_iterator(position, tmp_path):
    model = {"a": jnp.arange(4.0), "deep": [jnp.ones((2, 3), jnp.bfloat16)]}
    with CheckpointManager(tmp_path) as manager:
        manager.save(TrainingState(model=model, data=Stream(position)), step=1)
    stream = Stream(type(position)())
    state = TrainingState(model=jax.tree.map(jnp.zeros_like, model), data=stream)
    assert restored(tmp_path, state).exact
    same(state.model, model)
    assert stream.position == position
    refusing = TrainingState(model=model, data=Stream(3))
    with pytest.raises(RestoreError, match="position"):
        restored(tmp_path, refusing)


def test_a_save_beside_the_loop_holds_what_was_there_when_it_began(tmp_path):
    give = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree), donate_argnums=0)
    model = {"a": jnp.arange(100_000.0), "b": jnp.ones((3, 4))}
    want = jax.tree.map(lambda leaf: np.asarray(leaf).copy(), model)
    with CheckpointManager(tmp_path, background=True) as manager:
        manager.save(TrainingState(model=model), step=1)
        model = give(model)  # its memory is taken over
    state = TrainingState(model=jax.tree.map(jnp.zeros_like, model))
    assert restored(tmp_path, state).exact
    same(state.model, want)


def test_a_restore_that_is_refused_has_changed_nothing(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save(nnx_state(0), step=1)
    second = nnx_state(1)
    second.model.first = nnx.Linear(6, 7, rngs=nnx.Rngs(0))
    before = jax.tree.map(lambda leaf: plain(leaf).copy(), leaves_of_nnx(second))
    with pytest.raises(RestoreError, match="was not restored"):
        restored(tmp_path, second)
    same(jax.tree.map(plain, leaves_of_nnx(second)), before)
