"""Small nets of layers of which no tensor tells all, each in PyTorch and in the ways that JAX has for it, with equal names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from torch import nn

import firekeep
from interop.jax_twins.both import equinox_shapes, nnx_shapes
from interop.jax_twins.in_equinox import keys


class TorchUp(nn.Module):
    """Kernels with as many channels in as out fit either way round."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 3, (3, 2))
        self.line = nn.ConvTranspose1d(3, 2, 3)

    def forward(self, x: Any) -> Any:
        return self.line(self.up(x).mean(2))


class NnxUp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, turned: bool) -> None:
        self.up = nnx.ConvTranspose(3, 3, (3, 2), padding="VALID", transpose_kernel=turned, rngs=rngs)
        self.line = nnx.ConvTranspose(3, 2, (3,), padding="VALID", transpose_kernel=not turned, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.moveaxis(self.line(self.up(jnp.moveaxis(x, 1, -1)).mean(1)), -1, 1)


class EquinoxUp(eqx.Module):
    up: eqx.nn.ConvTranspose2d
    line: eqx.nn.ConvTranspose1d

    def __init__(self, key: Any) -> None:
        self.up = eqx.nn.ConvTranspose2d(3, 3, (3, 2), key=next(key))
        self.line = eqx.nn.ConvTranspose1d(3, 2, 3, key=next(key))


class TorchGroups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 4, 3, groups=2)
        self.down = nn.Conv1d(4, 8, 3, groups=4)


class EquinoxGroups(eqx.Module):
    up: eqx.nn.ConvTranspose1d
    down: eqx.nn.Conv1d

    def __init__(self, key: Any) -> None:
        self.up = eqx.nn.ConvTranspose1d(4, 4, 3, groups=2, key=next(key))
        self.down = eqx.nn.Conv1d(4, 8, 3, groups=4, key=next(key))


class TorchCells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3)
        self.gru = nn.GRU(3, 3)


class NnxCells(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, lstm: Any, wrap: Callable[[Any], Any]) -> None:
        self.lstm = wrap(lstm(3, 3, rngs=rngs))
        self.gru = wrap(nnx.GRUCell(3, 3, rngs=rngs))


class EquinoxCells(eqx.Module):
    lstm: eqx.nn.LSTMCell
    gru: eqx.nn.GRUCell

    def __init__(self, key: Any) -> None:
        self.lstm = eqx.nn.LSTMCell(3, 3, key=next(key))
        self.gru = eqx.nn.GRUCell(3, 3, key=next(key))


class TorchNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(3)
        self.rms = nn.RMSNorm(3)


class NnxNorms(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.batch = nnx.BatchNorm(3, rngs=rngs)
        self.rms = nnx.RMSNorm(3, rngs=rngs)


class EquinoxNorms(eqx.Module):
    batch: eqx.nn.BatchNorm
    rms: eqx.nn.RMSNorm

    def __init__(self, _key: Any, mode: Any, momentum: float, bias: bool) -> None:
        self.batch = eqx.nn.BatchNorm(3, "batch", mode=mode, momentum=momentum)
        self.rms = eqx.nn.RMSNorm(3, use_bias=bias)


class TorchTied(nn.Module):
    def __init__(self, many: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(many, 3)
        self.head = nn.Linear(3, many, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


class NnxTied(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, many: int = 5) -> None:
        self.embed = nnx.Embed(many, 3, rngs=rngs)
        self.head = self.embed

    def __call__(self, ids: Any) -> Any:
        return self.head.attend(self.embed(ids))


class EquinoxTied(eqx.Module):
    embed: eqx.nn.Embedding
    head: eqx.nn.Linear

    def __init__(self, key: Any, many: int = 5) -> None:
        self.embed = eqx.nn.Embedding(many, 3, key=next(key))
        head = eqx.nn.Linear(3, many, use_bias=False, key=next(key))
        self.head = eqx.tree_at(lambda linear: linear.weight, head, self.embed.weight)

    def __call__(self, ids: Any) -> Any:
        return jax.vmap(self.head)(self.embed.weight[ids])


class TorchMaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = nn.Linear(4, 4)
        self.join = nn.Linear(4, 4)


class NnxMaps(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.split = nnx.Linear(4, 4, rngs=rngs)
        self.join = nnx.Linear(4, 4, rngs=rngs)


class NnxGeneral(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.split = nnx.LinearGeneral(4, (2, 2), rngs=rngs)
        self.join = nnx.LinearGeneral((2, 2), 4, axis=(-2, -1), rngs=rngs)


def _nnx(make: Any, *options: Any) -> Callable[[], Any]:
    return lambda: nnx_shapes(lambda rngs: make(rngs, *options))


def _equinox(make: Any, *options: Any) -> Callable[[], Any]:
    if make is EquinoxTied:  # what is tied is an array, and the shapes of one are two
        return lambda: eqx.nn.make_with_state(make)(keys(), *options)
    return lambda: equinox_shapes(lambda key: make(key, *options))


def _bare(cell: Any) -> Any:
    return cell


def _wrapped(cell: Any) -> Any:
    return nnx.RNN(cell, rngs=False)


NETS: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    "up": {
        "torch": TorchUp,
        "nnx turned": _nnx(NnxUp, True),
        "nnx": _nnx(NnxUp, False),
        "equinox": _equinox(EquinoxUp),
    },
    "groups": {"torch": TorchGroups, "equinox": _equinox(EquinoxGroups)},
    "cells": {
        "torch": TorchCells,
        "nnx wrapped": _nnx(NnxCells, nnx.LSTMCell, _wrapped),
        "nnx": _nnx(NnxCells, nnx.LSTMCell, _bare),
        "nnx optimized": _nnx(NnxCells, nnx.OptimizedLSTMCell, _wrapped),
        "equinox": _equinox(EquinoxCells),
    },
    "norms": {
        "torch": TorchNorms,
        "nnx": _nnx(NnxNorms),
        "equinox ema": _equinox(EquinoxNorms, "ema", 0.9, False),
        "equinox": _equinox(EquinoxNorms, "batch", 0.9, True),
        "equinox slow": _equinox(EquinoxNorms, "batch", 0.999, False),
    },
    "tied": {"torch": TorchTied, "nnx": _nnx(NnxTied), "equinox": _equinox(EquinoxTied)},
    "square": {"torch": lambda: TorchTied(3), "nnx": _nnx(NnxTied, 3), "equinox": _equinox(EquinoxTied, 3)},
    "maps": {"torch": TorchMaps, "nnx": _nnx(NnxMaps), "nnx general": _nnx(NnxGeneral)},
}
"""Each net by its name, in each way."""


def load(way: str, obj: Any, source: Any, **options: Any) -> Any:
    """Fill a net, or make another of it."""
    if way.startswith("equinox"):
        return firekeep.load_as(obj, source, **options)[0]
    firekeep.load_into(obj, source, **options)
    return obj


def learned(net: str, way: str) -> Any:
    """Make a net with numbers of its own; a norm of Equinox's has seen few batches, so that its statistics are far from what it means."""
    obj = NETS[net][way]()
    random = np.random.default_rng(3)
    values = {}
    for entry in firekeep.entries_of(obj):
        dtype = str(entry.dtype)
        if dtype == "F32":
            values[entry.name] = random.uniform(0.2, 1, entry.shape).astype(np.float32)
        elif entry.name.endswith("batch_counter"):
            values[entry.name] = np.asarray(9, np.int32)
        elif dtype == "BOOL":
            values[entry.name] = np.asarray(False)
    for name, value in values.items():
        if name in ("gru.bias_n", "rms.bias"):  # for which others have no place
            value[...] = 0
        elif name == "gru.bias_hh_l0":
            value[-3:] = 0
        elif name.startswith("head."):
            value[...] = values[name.replace("head.", "embed.")]
    framework = way.partition(" ")[0]
    return load(way, obj, firekeep.save_bytes(values, format="safetensors"), layout=_OWN[framework], allow_missing=True)


_OWN = {"torch": "torch", "nnx": "flax", "equinox": "equinox"}


def in_torch(net: str, obj: Any, folder: Any) -> dict[str, np.ndarray]:
    """Give the numbers as PyTorch has them, which asks for no facts; of two biases their sum, which is all that others have."""
    path = folder / "in_torch.safetensors"
    firekeep.save(obj, path, durable=False)
    twin = NETS[net]["torch"]()
    firekeep.load_into(twin, path)
    found = {name: value.numpy() for name, value in twin.state_dict().items() if "num_batches" not in name}
    for name in [name for name in found if "bias_ih" in name]:
        found[name] = found[name] + found.pop(name.replace("bias_ih", "bias_hh"))
    return found
