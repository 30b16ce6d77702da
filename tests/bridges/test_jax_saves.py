"""Saves of JAX arrays: what the CPU has is written from where it is, what other devices have is fetched while other tensors are written."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firekeep import CheckpointManager, TrainingState, blobs, models
from firekeep.bridges import jax as bridge
from firekeep.bridges.jax import _leaves
from firekeep.checkpoint._store import Store
from firekeep.errors import UnsupportedError


def ones(*shape):
    return jnp.ones(shape, jnp.float32)


def test_what_comes_next_is_fetched_from_other_devices_meanwhile_and_not_more_than_some(tmp_path, monkeypatch):
    tree = {name: ones(1000) * number for number, name in enumerate("abcdef")}
    tree["large"], tree["last"] = ones(9000), ones(1000)
    asked = []
    kind = type(tree["a"])
    fetch = kind.copy_to_host_async
    monkeypatch.setattr(_leaves, "_is_at_hand", lambda value: False)
    monkeypatch.setattr(kind, "copy_to_host_async", lambda array: [asked.append(int(array[-1])), fetch(array)])
    monkeypatch.setattr(blobs, "AHEAD", 8500)
    seen = []
    entries = bridge.entries(tree)
    for entry, _ in zip(entries, blobs.expecting([entry.blob for entry in entries]), strict=True):
        seen.append((entry.name, len(asked)))
    # Of 4,000 bytes each, two are on their way beside the one that is drawn; the large one waits for its turn.
    assert seen == [("a", 2), ("b", 3), ("c", 4), ("d", 5), ("e", 5), ("f", 5), ("large", 6), ("last", 6)]
    assert asked == [1, 2, 3, 4, 5, 1]


def test_a_save_asks_devices_once_for_each_array_and_keeps_nothing(tmp_path, monkeypatch):
    tree = {"a": ones(30_000), "b": ones(3, 2)}
    asked = []
    kind = type(tree["a"])
    fetch = kind.copy_to_host_async
    monkeypatch.setattr(_leaves, "_is_at_hand", lambda value: False)
    monkeypatch.setattr(kind, "copy_to_host_async", lambda array: [asked.append(array.shape), fetch(array)])
    models.save(tree, tmp_path / "x.bpk")
    assert asked == [(30_000,), (3, 2)]
    assert all(array._npy_value is None for array in tree.values())
    made, _ = models.load_as(tree, tmp_path / "x.bpk")
    assert all(bool((made[name] == tree[name]).all()) for name in tree)
    asked.clear()
    with CheckpointManager(tmp_path / "run", background=True, durable=False) as manager:
        manager.save(TrainingState(model=tree, rng=False), step=1)
    assert asked == [(3, 2)], "the first is drawn at once"


def test_a_background_save_holds_arrays_of_the_cpu_and_copies_none(tmp_path, monkeypatch):
    state = TrainingState(model={"x": ones(50_000)}, rng=False)
    opened = threading.Event()
    real = Store.save
    monkeypatch.setattr(Store, "save", lambda *args, **kwargs: [opened.wait(60), real(*args, **kwargs)][1])
    with CheckpointManager(tmp_path, background=True, durable=False) as manager:
        manager.save(state, step=1)
        assert manager._buffers.nbytes < 50_000
        old = state.model["x"]
        state.model["x"] = jax.jit(lambda x: x + 1, donate_argnums=0)(old)
        jax.block_until_ready(state.model)
        opened.set()
        manager.wait()
        manager.restore(state)
    assert (np.asarray(state.model["x"]) == 1).all()
    given = state.model["x"] + 1
    jax.jit(lambda x: x + 1, donate_argnums=0)(given)
    assert given.is_deleted()


def test_an_array_without_values_is_refused_by_the_background_save_itself(tmp_path):
    tree = {"x": ones(64)}
    jax.jit(lambda x: x + 1, donate_argnums=0)(tree["x"])
    with CheckpointManager(tmp_path, background=True, durable=False) as manager:
        with pytest.raises(UnsupportedError, match="'x': its memory was given away"):
            manager.save(TrainingState(model=tree), step=1)
        assert manager.wait() is None
