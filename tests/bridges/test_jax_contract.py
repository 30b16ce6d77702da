"""Objects of JAX keep the contract of bridges: nnx modules and states, Equinox and Linen in a dict, trees of arrays."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contracts.bridge_contract import BridgeContract


@pytest.fixture(autouse=True)
def _wide():
    """Let JAX have 64 bits, as the contract asks for."""
    with jax.enable_x64(True):
        yield


def some(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).random(shape, np.float32))


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        kind = {"rngs": rngs, "param_dtype": jnp.float32}
        self.embed = nnx.Embed(3, 4, **kind)
        self.layers = nnx.List([nnx.Linear(4, 4, **kind), nnx.BatchNorm(4, **kind), nnx.Dropout(0.5, rngs=rngs)])
        self.attention = nnx.MultiHeadAttention(2, 4, **kind)
        self.head = nnx.Linear(4, 3, **kind)
        self.again = self.head.kernel
        self.plain = nnx.data([some(7, 2)])


class Block(eqx.Module):
    norm: eqx.nn.BatchNorm
    layers: list[Any]
    first: jax.Array
    second: jax.Array
    activation: Any = jax.nn.relu

    def __init__(self, key: Any) -> None:
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch", dtype=jnp.float32)
        self.layers = [eqx.nn.Linear(3, 3, key=key, dtype=jnp.float32), eqx.nn.Dropout(0.5)]
        self.first = self.second = jax.random.normal(key, (2,), jnp.float32)


class TestModule(BridgeContract):
    name = "jax"
    keeps_ids = False

    def make(self, seed: int) -> Any:
        return Net(nnx.Rngs(seed))


class TestState(BridgeContract):
    name = "jax"
    keeps_ids = False

    def make(self, seed: int) -> Any:
        return nnx.state(Net(nnx.Rngs(seed)))


class TestEquinox(BridgeContract):
    name = "jax"
    keeps_ids = False

    def make(self, seed: int) -> Any:
        return {"pair": eqx.nn.make_with_state(Block)(jax.random.key(seed)), "key": jax.random.key(seed)}


class TestTree(BridgeContract):
    name = "jax"
    keeps_ids = False

    def make(self, seed: int) -> Any:
        return {
            "frozen": flax.core.FrozenDict({"params": {"w": some(seed, 2, 3), "b": some(seed + 10, 3)}}),
            "list": [some(seed, 2), (some(seed + 20, 4), np.full(2, seed, np.float32))],
            0: {1: some(seed, 1, 1)},
            "empty": some(seed, 0),
            "half": some(seed, 3).astype(jnp.bfloat16),
            "count": jnp.asarray(seed, jnp.int32),
            "flag": jnp.asarray([True, seed == 1]),
        }
