"""The ten architectures in Flax NNX, with the names that they have in PyTorch. Images go in and come out with PyTorch's axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


def last(x: Array) -> Array:
    return jnp.moveaxis(x, 1, -1)


def first(x: Array) -> Array:
    return jnp.moveaxis(x, -1, 1)


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def batch_norm(width: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(width, use_running_average=True, momentum=0.9, epsilon=1e-5, rngs=rngs)


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.fc1 = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.fc2 = nnx.Linear(8, 8, use_bias=False, rngs=rngs)
        self.act = nnx.PReLU()
        self.fc3 = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = gelu(self.norm(self.fc1(x)))
        return self.fc3(self.act(self.fc2(x)))


class CNN(nnx.Module):
    """Flax pads a transposed convolution as it is computed: by d(k-1)-p, and the output's padding at the end."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.down = nnx.Conv(4, 8, (3, 3), strides=2, padding=1, feature_group_count=2, rngs=rngs)
        self.wide = nnx.Conv(8, 8, (3, 3), padding=2, kernel_dilation=2, feature_group_count=8, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 6, (3, 3), strides=2, padding=((1, 2), (1, 2)), rngs=rngs)
        self.out = nnx.ConvTranspose(6, 2, (2, 3), padding="VALID", use_bias=False, transpose_kernel=True, rngs=rngs)
        self.line = nnx.Conv(2, 3, (5,), padding=2, rngs=rngs)
        self.back = nnx.ConvTranspose(3, 2, (4,), strides=3, padding="VALID", rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = jax.nn.relu(self.wide(jax.nn.relu(self.down(last(x)))))
        x = self.out(gelu(self.up(x)))
        return first(self.back(self.line(x.mean(1))))


class ResBlock(nnx.Module):
    def __init__(self, width: int, out: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(width, out, (3, 3), strides=stride, padding=1, use_bias=False, rngs=rngs)
        self.bn1 = batch_norm(out, rngs)
        self.conv2 = nnx.Conv(out, out, (3, 3), padding=1, use_bias=False, rngs=rngs)
        self.bn2 = batch_norm(out, rngs)
        self.shortcut = nnx.List(
            [nnx.Conv(width, out, (1, 1), strides=stride, use_bias=False, rngs=rngs), batch_norm(out, rngs)]
        )

    def __call__(self, x: Array) -> Array:
        short = self.shortcut[1](self.shortcut[0](x))
        return jax.nn.relu(self.bn2(self.conv2(jax.nn.relu(self.bn1(self.conv1(x))))) + short)


class ResNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 4, (3, 3), padding=1, use_bias=False, rngs=rngs)
        self.norm = batch_norm(4, rngs)
        self.blocks = nnx.List([ResBlock(4, 6, 2, rngs), ResBlock(6, 6, 1, rngs)])
        self.head = nnx.Linear(6, 5, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = jax.nn.relu(self.norm(self.stem(last(x))))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class GPTBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.ln1 = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.qkv = nnx.Linear(8, 24, rngs=rngs)
        self.proj = nnx.Linear(8, 8, rngs=rngs)
        self.ln2 = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.fc = nnx.Linear(8, 32, rngs=rngs)
        self.out = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        q, k, v = (one.reshape(*one.shape[:2], 2, 4) for one in jnp.split(self.qkv(self.ln1(x)), 3, -1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.reshape(x.shape))
        return x + self.out(jax.nn.gelu(self.fc(self.ln2(x)), approximate=True))


class GPT(nnx.Module):
    """The head is the embedding: a Linear has its kernel the other way round, and could not be."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(17, 8, rngs=rngs)
        self.places = nnx.Embed(6, 8, rngs=rngs)
        self.blocks = nnx.List([GPTBlock(rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.head = self.embed

    def __call__(self, ids: Array) -> Array:
        x = self.embed(ids) + self.places(jnp.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head.attend(self.norm(x))


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.cross = nnx.MultiHeadAttention(4, 8, decode=False, rngs=rngs)

    def __call__(self, x: Array, context: Array) -> Array:
        x = x + self.attn(self.norm(x))
        return x + self.cross(x, context)


class Tagger(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(11, 5, rngs=rngs)
        self.lstm = nnx.RNN(nnx.LSTMCell(5, 6, rngs=rngs), rngs=False)
        self.head = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, ids: Array) -> Array:
        nothing = jnp.zeros((ids.shape[0], 6))
        return self.head(self.lstm(self.embed(ids), initial_carry=(nothing, nothing)))


class Gated(nnx.Module):
    """Without the bias of the hidden part of the new gate, of which Flax' formula has none."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(11, 5, rngs=rngs)
        self.gru = nnx.RNN(nnx.GRUCell(5, 6, rngs=rngs), rngs=False)
        self.head = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, ids: Array) -> Array:
        return self.head(self.gru(self.embed(ids), initial_carry=jnp.zeros((ids.shape[0], 6))))


class Tower(nnx.Module):
    def __init__(self, many: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(many, 6, rngs=rngs)
        self.fc = nnx.Linear(6, 8, rngs=rngs)
        self.norm = batch_norm(8, rngs)
        self.out = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, ids: Array) -> Array:
        x = self.out(gelu(self.norm(self.fc(self.embed(ids).mean(1)))))
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


class Towers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.users = Tower(7, rngs)
        self.items = Tower(13, rngs)
        self.scale = nnx.Param(jnp.array(2.0))

    def __call__(self, users: Array, items: Array) -> Array:
        return self.scale[...] * self.users(users) @ self.items(items).T


class UNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.enter = nnx.Conv(2, 4, (3, 3), padding=1, rngs=rngs)
        self.norm1 = nnx.GroupNorm(4, 2, epsilon=1e-5, rngs=rngs)
        self.down = nnx.Conv(4, 8, (2, 2), strides=2, padding="VALID", rngs=rngs)
        self.norm2 = nnx.GroupNorm(8, 4, epsilon=1e-5, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 4, (2, 2), strides=2, padding="VALID", rngs=rngs)
        self.out = nnx.Conv(8, 1, (1, 1), rngs=rngs)

    def __call__(self, x: Array) -> Array:
        skip = jax.nn.silu(self.norm1(self.enter(last(x))))
        x = jax.nn.silu(self.norm2(self.down(skip)))
        return first(self.out(jnp.concatenate([self.up(x), skip], -1)))


class LlamaBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.RMSNorm(8, epsilon=1e-6, rngs=rngs)
        self.q = nnx.Linear(8, 8, use_bias=False, rngs=rngs)
        self.k = nnx.Linear(8, 4, use_bias=False, rngs=rngs)
        self.v = nnx.Linear(8, 4, use_bias=False, rngs=rngs)
        self.o = nnx.Linear(8, 8, use_bias=False, rngs=rngs)
        self.norm2 = nnx.RMSNorm(8, epsilon=1e-6, rngs=rngs)
        self.gate = nnx.Linear(8, 20, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(8, 20, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(20, 8, use_bias=False, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        inner = self.norm1(x)
        q, k, v = (jnp.reshape(one(inner), (*x.shape[:2], -1, 2)) for one in (self.q, self.k, self.v))
        mixed = jax.nn.dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.o(mixed.reshape(x.shape))
        inner = self.norm2(x)
        return x + self.down(jax.nn.silu(self.gate(inner)) * self.up(inner))


def turned(x: Array) -> Array:
    """Turn vectors by their place, which is the third axis from the end."""
    angle = jnp.arange(x.shape[-3], dtype=x.dtype)[:, None, None]
    one, two = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [one * jnp.cos(angle) - two * jnp.sin(angle), one * jnp.sin(angle) + two * jnp.cos(angle)], -1
    )


class Llama(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(17, 8, rngs=rngs)
        self.blocks = nnx.List([LlamaBlock(rngs) for _ in range(2)])
        self.norm = nnx.RMSNorm(8, epsilon=1e-6, rngs=rngs)
        self.head = nnx.Linear(8, 17, use_bias=False, rngs=rngs)

    def __call__(self, ids: Array) -> Array:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


MODELS: Mapping[str, Callable[[nnx.Rngs], nnx.Module]] = {
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
