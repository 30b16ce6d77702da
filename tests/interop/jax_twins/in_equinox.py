"""The ten architectures in Equinox, with the names that they have in PyTorch: a model of one example, which is mapped over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import nn
from jax import Array

from interop.jax_twins.in_nnx import gelu, turned

Keys = Iterator[Any]


def keys() -> Keys:
    """Give as many keys as are asked for. What they make is always replaced."""
    number = 0
    while True:
        yield jax.random.key(number)
        number += 1


def batch_norm(width: int, mode: Any = "batch") -> nn.BatchNorm:
    return nn.BatchNorm(width, "batch", eps=1e-5, momentum=0.9, inference=True, mode=mode)


class MLP(eqx.Module):
    fc1: nn.Linear
    norm: nn.LayerNorm
    fc2: nn.Linear
    act: nn.PReLU
    fc3: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.fc1 = nn.Linear(6, 8, key=next(key))
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.fc2 = nn.Linear(8, 8, use_bias=False, key=next(key))
        self.act = nn.PReLU()
        self.fc3 = nn.Linear(8, 3, key=next(key))

    def __call__(self, x: Array, state: Any) -> Array:
        x = gelu(self.norm(self.fc1(x)))
        return self.fc3(self.act(self.fc2(x)))


class CNN(eqx.Module):
    down: nn.Conv2d
    wide: nn.Conv2d
    up: nn.ConvTranspose2d
    out: nn.ConvTranspose2d
    line: nn.Conv1d
    back: nn.ConvTranspose1d

    def __init__(self, key: Keys, *, groups: int = 1) -> None:
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, key=next(key))
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, key=next(key))
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=groups, key=next(key))
        self.out = nn.ConvTranspose2d(6, 2, (2, 3), use_bias=False, key=next(key))
        self.line = nn.Conv1d(2, 3, 5, padding=2, key=next(key))
        self.back = nn.ConvTranspose1d(3, 2, 4, stride=3, key=next(key))

    def __call__(self, x: Array, state: Any) -> Array:
        x = jax.nn.relu(self.wide(jax.nn.relu(self.down(x))))
        x = self.out(gelu(self.up(x)))
        return self.back(self.line(x.mean(1)))


class ResBlock(eqx.Module):
    conv1: nn.Conv2d
    bn1: nn.BatchNorm
    conv2: nn.Conv2d
    bn2: nn.BatchNorm
    shortcut: list[Any]

    def __init__(self, width: int, out: int, stride: int, key: Keys) -> None:
        self.conv1 = nn.Conv2d(width, out, 3, stride=stride, padding=1, use_bias=False, key=next(key))
        self.bn1 = batch_norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, use_bias=False, key=next(key))
        self.bn2 = batch_norm(out)
        self.shortcut = [nn.Conv2d(width, out, 1, stride=stride, use_bias=False, key=next(key)), batch_norm(out)]

    def __call__(self, x: Array, state: Any) -> Array:
        short, _ = self.shortcut[1](self.shortcut[0](x), state)
        x, _ = self.bn1(self.conv1(x), state)
        x, _ = self.bn2(self.conv2(jax.nn.relu(x)), state)
        return jax.nn.relu(x + short)


class ResNet(eqx.Module):
    stem: nn.Conv2d
    norm: nn.BatchNorm
    blocks: list[ResBlock]
    head: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.stem = nn.Conv2d(3, 4, 3, padding=1, use_bias=False, key=next(key))
        self.norm = batch_norm(4)
        self.blocks = [ResBlock(4, 6, 2, key), ResBlock(6, 6, 1, key)]
        self.head = nn.Linear(6, 5, key=next(key))

    def __call__(self, x: Array, state: Any) -> Array:
        x, _ = self.norm(self.stem(x), state)
        x = jax.nn.relu(x)
        for block in self.blocks:
            x = block(x, state)
        return self.head(x.mean((1, 2)))


class GPTBlock(eqx.Module):
    ln1: nn.LayerNorm
    qkv: nn.Linear
    proj: nn.Linear
    ln2: nn.LayerNorm
    fc: nn.Linear
    out: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.ln1 = nn.LayerNorm(8, eps=1e-5)
        self.qkv = nn.Linear(8, 24, key=next(key))
        self.proj = nn.Linear(8, 8, key=next(key))
        self.ln2 = nn.LayerNorm(8, eps=1e-5)
        self.fc = nn.Linear(8, 32, key=next(key))
        self.out = nn.Linear(32, 8, key=next(key))

    def __call__(self, x: Array) -> Array:
        projected = jax.vmap(self.qkv)(jax.vmap(self.ln1)(x))
        q, k, v = (one.reshape(-1, 2, 4) for one in jnp.split(projected, 3, -1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jax.vmap(self.proj)(mixed.reshape(x.shape))
        inner = jax.nn.gelu(jax.vmap(self.fc)(jax.vmap(self.ln2)(x)), approximate=True)
        return x + jax.vmap(self.out)(inner)


class GPT(eqx.Module):
    """The head is a Linear whose weight is the embedding's, the very array."""

    embed: nn.Embedding
    places: nn.Embedding
    blocks: list[GPTBlock]
    norm: nn.LayerNorm
    head: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.embed = nn.Embedding(17, 8, key=next(key))
        self.places = nn.Embedding(6, 8, key=next(key))
        self.blocks = [GPTBlock(key) for _ in range(2)]
        self.norm = nn.LayerNorm(8, eps=1e-5)
        head = nn.Linear(8, 17, use_bias=False, key=next(key))
        self.head = eqx.tree_at(lambda linear: linear.weight, head, self.embed.weight)

    def __call__(self, ids: Array, state: Any) -> Array:
        x = self.embed.weight[ids] + self.places.weight[jnp.arange(ids.shape[0])]
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def attention(heads: int, key: Keys) -> nn.MultiheadAttention:
    biases: Any = {f"use_{part}_bias": True for part in ("query", "key", "value", "output")}
    return nn.MultiheadAttention(heads, 8, **biases, key=next(key))


class Attention(eqx.Module):
    norm: nn.LayerNorm
    attn: nn.MultiheadAttention
    cross: nn.MultiheadAttention

    def __init__(self, key: Keys) -> None:
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.attn = attention(2, key)
        self.cross = attention(4, key)

    def __call__(self, x: Array, context: Array, state: Any) -> Array:
        inner = jax.vmap(self.norm)(x)
        x = x + self.attn(inner, inner, inner)
        return x + self.cross(x, context, context)


class Tagger(eqx.Module):
    embed: nn.Embedding
    lstm: nn.LSTMCell
    head: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.embed = nn.Embedding(11, 5, key=next(key))
        self.lstm = nn.LSTMCell(5, 6, key=next(key))
        self.head = nn.Linear(6, 4, key=next(key))

    def __call__(self, ids: Array, state: Any) -> Array:
        carry, found = (jnp.zeros(6), jnp.zeros(6)), []
        for step in self.embed.weight[ids]:
            carry = self.lstm(step, carry)
            found.append(self.head(carry[0]))
        return jnp.stack(found)


class Gated(eqx.Module):
    embed: nn.Embedding
    gru: nn.GRUCell
    head: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.embed = nn.Embedding(11, 5, key=next(key))
        self.gru = nn.GRUCell(5, 6, key=next(key))
        self.head = nn.Linear(6, 4, key=next(key))

    def __call__(self, ids: Array, state: Any) -> Array:
        carry, found = jnp.zeros(6), []
        for step in self.embed.weight[ids]:
            carry = self.gru(step, carry)
            found.append(self.head(carry))
        return jnp.stack(found)


class Tower(eqx.Module):
    embed: nn.Embedding
    fc: nn.Linear
    norm: nn.BatchNorm
    out: nn.Linear

    def __init__(self, many: int, key: Keys) -> None:
        self.embed = nn.Embedding(many, 6, key=next(key))
        self.fc = nn.Linear(6, 8, key=next(key))
        self.norm = batch_norm(8, "ema")
        self.out = nn.Linear(8, 4, key=next(key))

    def __call__(self, ids: Array, state: Any) -> Array:
        x, _ = self.norm(self.fc(self.embed.weight[ids].mean(0)), state)
        x = self.out(gelu(x))
        return x / jnp.linalg.norm(x)


class Towers(eqx.Module):
    users: Tower
    items: Tower
    scale: Array

    def __init__(self, key: Keys) -> None:
        self.users = Tower(7, key)
        self.items = Tower(13, key)
        self.scale = jnp.array(2.0)

    def __call__(self, users: Array, items: Array, state: Any) -> Array:
        others = jax.lax.all_gather(self.items(items, state), "batch")
        return self.scale * others @ self.users(users, state)


class UNet(eqx.Module):
    enter: nn.Conv2d
    norm1: nn.GroupNorm
    down: nn.Conv2d
    norm2: nn.GroupNorm
    up: nn.ConvTranspose2d
    out: nn.Conv2d

    def __init__(self, key: Keys) -> None:
        self.enter = nn.Conv2d(2, 4, 3, padding=1, key=next(key))
        self.norm1 = nn.GroupNorm(2, 4, eps=1e-5)
        self.down = nn.Conv2d(4, 8, 2, stride=2, key=next(key))
        self.norm2 = nn.GroupNorm(4, 8, eps=1e-5)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2, key=next(key))
        self.out = nn.Conv2d(8, 1, 1, key=next(key))

    def __call__(self, x: Array, state: Any) -> Array:
        skip = jax.nn.silu(self.norm1(self.enter(x)))
        x = jax.nn.silu(self.norm2(self.down(skip)))
        return self.out(jnp.concatenate([self.up(x), skip]))


class LlamaBlock(eqx.Module):
    norm1: nn.RMSNorm
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    norm2: nn.RMSNorm
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.norm1 = nn.RMSNorm(8, eps=1e-6, use_bias=False)
        self.q = nn.Linear(8, 8, use_bias=False, key=next(key))
        self.k = nn.Linear(8, 4, use_bias=False, key=next(key))
        self.v = nn.Linear(8, 4, use_bias=False, key=next(key))
        self.o = nn.Linear(8, 8, use_bias=False, key=next(key))
        self.norm2 = nn.RMSNorm(8, eps=1e-6)  # with a bias, which Equinox gives it unless told otherwise
        self.gate = nn.Linear(8, 20, use_bias=False, key=next(key))
        self.up = nn.Linear(8, 20, use_bias=False, key=next(key))
        self.down = nn.Linear(20, 8, use_bias=False, key=next(key))

    def __call__(self, x: Array) -> Array:
        inner = jax.vmap(self.norm1)(x)
        q, k, v = (jax.vmap(one)(inner).reshape(x.shape[0], -1, 2) for one in (self.q, self.k, self.v))
        mixed = jax.nn.dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + jax.vmap(self.o)(mixed.reshape(x.shape))
        inner = jax.vmap(self.norm2)(x)
        return x + jax.vmap(self.down)(jax.nn.silu(jax.vmap(self.gate)(inner)) * jax.vmap(self.up)(inner))


class Llama(eqx.Module):
    embed: nn.Embedding
    blocks: list[LlamaBlock]
    norm: nn.RMSNorm
    head: nn.Linear

    def __init__(self, key: Keys) -> None:
        self.embed = nn.Embedding(17, 8, key=next(key))
        self.blocks = [LlamaBlock(key) for _ in range(2)]
        self.norm = nn.RMSNorm(8, eps=1e-6, use_bias=False)
        self.head = nn.Linear(8, 17, use_bias=False, key=next(key))

    def __call__(self, ids: Array, state: Any) -> Array:
        x = self.embed.weight[ids]
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


MODELS: Mapping[str, Callable[[Keys], eqx.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "resnet": ResNet,
    "gpt": GPT,
    "attention": Attention,
    "lstm": Tagger,
    "gru": Gated,
    "towers": Towers,
    "unet": UNet,
    "llama": Llama,
}
