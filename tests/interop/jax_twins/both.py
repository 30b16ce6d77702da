"""A trained model of each architecture, what goes into it, and its twins in JAX: empty ones, filled ones, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

import firekeep
from interop.jax_twins import in_equinox, in_nnx, in_torch

Inputs = tuple[np.ndarray, ...]

_BATCH = 2
_RANDOM = np.random.default_rng(5)


def _floats(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal((_BATCH, *shape)).astype(np.float32)


def _ids(many: int, *shape: int) -> np.ndarray:
    return _RANDOM.integers(0, many, (_BATCH, *shape)).astype(np.int32)


INPUTS: Mapping[str, Inputs] = {
    "mlp": (_floats(6),),
    "cnn": (_floats(4, 8, 8),),
    "resnet": (_floats(3, 8, 8),),
    "gpt": (_ids(17, 6),),
    "attention": (_floats(5, 8), _floats(3, 8)),
    "lstm": (_ids(11, 4),),
    "gru": (_ids(11, 4),),
    "towers": (_ids(7, 2), _ids(13, 2)),
    "unet": (_floats(2, 8, 8),),
    "llama": (_ids(17, 5),),
}


def train(model: nn.Module) -> nn.Module:
    """Give every tensor numbers of its own, statistics and counters too."""
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            value.uniform_(-0.6, 0.6, generator=random)
        for value in model.buffers():
            if value.is_floating_point():
                value.uniform_(0.3, 1.7, generator=random)
            else:
                value.fill_(7)
    return model.eval()


@cache
def trained(name: str) -> nn.Module:
    return train(in_torch.MODELS[name]())


def run_torch(model: nn.Module, inputs: Inputs) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(*(torch.from_numpy(one) for one in inputs)).numpy()


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def nnx_shapes(make: Callable[[nnx.Rngs], Any]) -> Any:
    """Describe a model without making its numbers, which all come out of a file."""
    return nnx.eval_shape(lambda: make(nnx.Rngs(0)))


def equinox_shapes(make: Callable[[in_equinox.Keys], Any]) -> Any:
    return eqx.filter_eval_shape(lambda: eqx.nn.make_with_state(make)(in_equinox.keys()))


class Nnx:
    """Flax NNX: a model is changed in place."""

    name = "nnx"

    @staticmethod
    def load(source: Path, make: Callable[[Any], Any], **options: Any) -> tuple[Any, firekeep.LoadReport]:
        model = nnx_shapes(make)
        return model, firekeep.load_into(model, source, **options)

    @staticmethod
    def make(name: str) -> Callable[[Any], Any]:
        return in_nnx.MODELS[name]

    @staticmethod
    def run(model: Any, inputs: Inputs) -> np.ndarray:
        return np.asarray(nnx.jit(lambda model, *inputs: model(*inputs))(model, *inputs))

    @staticmethod
    def leaves(model: Any) -> list[np.ndarray]:
        return [np.asarray(one) for one in jax.tree.leaves(nnx.state(model))]


class Equinox:
    """A model and its state are made anew."""

    name = "equinox"

    @staticmethod
    def load(source: Path, make: Callable[[Any], Any], **options: Any) -> tuple[Any, firekeep.LoadReport]:
        target = equinox_shapes(make)
        if make is in_equinox.GPT:  # what is tied is an array, and the shapes of one are two
            shared = jnp.zeros((17, 8))
            target = eqx.tree_at(lambda one: (one[0].embed.weight, one[0].head.weight), target, (shared, shared))
        return firekeep.load_as(target, source, **options)

    @staticmethod
    def make(name: str) -> Callable[[Any], Any]:
        return in_equinox.MODELS[name]

    @staticmethod
    def run(made: Any, inputs: Inputs) -> np.ndarray:
        model, state = made

        def one(*inputs: Any) -> Any:
            return model(*inputs, state)

        return np.asarray(eqx.filter_jit(jax.vmap(one, axis_name="batch"))(*inputs))

    @staticmethod
    def leaves(made: Any) -> list[np.ndarray]:
        return [np.asarray(one) for one in jax.tree.leaves(eqx.filter(made, eqx.is_array))]


SIDES = (Nnx, Equinox)
