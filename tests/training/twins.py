"""Three small networks, each in PyTorch, Flax NNX and Equinox, and runs of them that are saved and taken up with public doors only."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import nn

import firekeep
from firekeep.records import OptimizerRecord

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
KEY = jax.random.key(0)
RATE, DECAY = 0.02, 0.01
TX = optax.adamw(RATE, weight_decay=DECAY)
SIZES = {"mlp": (8, 6), "conv": (6, 2, 6, 6), "block": (4, 5, 8)}


def batch(kind: str, number: int) -> Any:
    """Give the batch of a step, laid as PyTorch has it."""
    return np.random.default_rng((SIZES[kind][0], number)).normal(size=SIZES[kind]).astype(np.float32)


class TorchMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.last = nn.Linear(7, 3)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.first(x)))


class TorchConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 6, 3, groups=2)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.deep(torch.relu(self.norm(self.conv(x))))).mean((2, 3)))


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.after = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        normed = self.before(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class FlaxMlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(6, 7, rngs=rngs)
        self.last = nnx.Linear(7, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(jnp.tanh(self.first(x)))


class FlaxConv(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(2, 4, (3, 3), padding=1, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.deep = nnx.Conv(4, 6, (3, 3), padding="VALID", feature_group_count=2, rngs=rngs)
        self.last = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.deep(nnx.relu(self.norm(self.conv(jnp.moveaxis(x, 1, -1)))))
        return self.last(jnp.tanh(x).mean((1, 2)))


class FlaxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.after = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.up = nnx.Linear(8, 12, rngs=rngs)
        self.down = nnx.Linear(12, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.before(x))
        return x + self.down(jax.nn.gelu(self.up(self.after(x)), approximate=False))


class EqxMlp(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.first = eqx.nn.Linear(6, 7, key=key)
        self.last = eqx.nn.Linear(7, 3, key=key)

    def __call__(self, x: Any, state: Any) -> Any:
        return self.last(jnp.tanh(self.first(x))), state


class EqxConv(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    deep: eqx.nn.Conv2d
    last: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.conv = eqx.nn.Conv2d(2, 4, 3, padding=1, use_bias=False, key=key)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", momentum=0.9, mode="batch")
        self.deep = eqx.nn.Conv2d(4, 6, 3, groups=2, key=key)
        self.last = eqx.nn.Linear(6, 3, key=key)

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(self.conv(x), state)
        return self.last(jnp.tanh(self.deep(jax.nn.relu(x))).mean((1, 2))), state


class EqxBlock(eqx.Module):
    before: eqx.nn.LayerNorm
    attn: eqx.nn.MultiheadAttention
    after: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        biased = dict.fromkeys((f"use_{name}_bias" for name in ("query", "key", "value", "output")), True)
        self.before = eqx.nn.LayerNorm(8)
        self.attn = eqx.nn.MultiheadAttention(2, 8, **biased, key=key)  # type: ignore[arg-type]
        self.after = eqx.nn.LayerNorm(8)
        self.up = eqx.nn.Linear(8, 12, key=key)
        self.down = eqx.nn.Linear(12, 8, key=key)

    def __call__(self, x: Any, state: Any) -> Any:
        normed = jax.vmap(self.before)(x)
        x = x + self.attn(normed, normed, normed)
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.after)(x)), approximate=False)
        return x + jax.vmap(self.down)(hidden), state


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "mlp": (TorchMlp, FlaxMlp, EqxMlp),
    "conv": (TorchConv, FlaxConv, EqxConv),
    "block": (TorchBlock, FlaxBlock, EqxBlock),
}


def some_numbers(shapes: Any) -> Any:
    """Give arrays for shapes, all of whose numbers a run has to replace; random ones would take seconds to be compiled for."""
    return jax.tree.map(
        lambda one: jnp.asarray(np.full(one.shape, 0.25, one.dtype)) if isinstance(one, jax.ShapeDtypeStruct) else one,
        shapes,
    )


class TorchRun:
    """A model and its AdamW, and the steps that both have made."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind, self.step = kind, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = MODELS[kind][0]()
        self.optimizer = self.fresh()

    def fresh(self) -> Any:
        return torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=DECAY)

    def steps(self, count: int) -> list[float]:
        """Make steps, each on a batch of its own, and give their losses."""
        losses = []
        for _ in range(count):
            self.step += 1
            losses.append(self.made(batch(self.kind, self.step)))
        return losses

    def made(self, x: Any) -> float:
        self.optimizer.zero_grad()
        loss = ((self.model(torch.from_numpy(x)) - 1.0) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def save(self, folder: Any, layout: str | None) -> None:
        save(folder, self.model, self.optimizer, self.model, layout)

    def load(self, folder: Any) -> Any:
        firekeep.load_into(self.model, weights(folder))
        return OptimizerRecord.load(folder / "optimizer.bpk").apply(self.optimizer, self.model)


class FlaxRun(TorchRun):
    """A module of NNX with its optimizer, which are both changed themselves."""

    def __init__(self, kind: str) -> None:
        self.kind, self.step = kind, 0
        shapes = nnx.eval_shape(lambda: MODELS[kind][1](nnx.Rngs(0)))
        nnx.update(shapes, some_numbers(nnx.state(shapes)))
        self.model = shapes
        self.optimizer = self.fresh()

    def fresh(self) -> Any:
        return nnx.Optimizer(self.model, TX, wrt=nnx.Param)

    def made(self, x: Any) -> float:
        return float(flax_step(self.model, self.optimizer, x))


def flax_step(model: Any, optimizer: Any, x: Any) -> Any:
    kind, state = nnx.split((model, optimizer))
    loss, state = compiled_flax_step(state, x, kind)
    nnx.update((model, optimizer), state)
    return loss


@partial(jax.jit, static_argnums=2, compiler_options=QUICKLY)
def compiled_flax_step(state: Any, x: Any, kind: Any) -> Any:
    model, optimizer = nnx.merge(kind, state)
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1.0) ** 2))(model)
    optimizer.update(model, grads)
    return loss, nnx.state((model, optimizer))


class EqxRun(TorchRun):
    """A module of Equinox, the state beside it and one of optax, of which others are made."""

    def __init__(self, kind: str) -> None:
        self.kind, self.step = kind, 0
        self.model = some_numbers(eqx.filter_eval_shape(eqx.nn.make_with_state(MODELS[kind][2]), KEY))
        self.optimizer = self.fresh()

    def fresh(self) -> Any:
        return TX.init(self.moved())

    def moved(self) -> Any:
        """Give what the optimizer moves."""
        return eqx.filter(self.model[0], eqx.is_inexact_array)

    def made(self, x: Any) -> float:
        loss, model, state, self.optimizer = eqx_step(*self.model, self.optimizer, x)
        self.model = (model, state)
        return float(loss)

    def save(self, folder: Any, layout: str | None) -> None:
        save(folder, self.model, self.optimizer, self.model[0], layout, tx=TX)

    def load(self, folder: Any) -> Any:
        self.model, _ = firekeep.load_as(self.model, weights(folder))
        record = OptimizerRecord.load(folder / "optimizer.bpk")
        self.optimizer, report = record.apply(self.optimizer, self.model[0], tx=TX)
        return report


def eqx_step(model: Any, state: Any, moments: Any, x: Any) -> Any:
    changing, fixed = eqx.partition((model, state, moments), eqx.is_array)
    leaves, shape = jax.tree.flatten(fixed)
    made, loss = compiled_eqx_step(changing, x, tuple(leaves), shape)
    return loss, *eqx.combine(made, fixed)


@partial(jax.jit, static_argnums=(2, 3), compiler_options=QUICKLY)
def compiled_eqx_step(changing: Any, x: Any, leaves: Any, shape: Any) -> Any:
    model, state, moments = eqx.combine(changing, jax.tree.unflatten(shape, leaves))

    def loss(model: Any, state: Any) -> Any:
        out, state = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
        return jnp.mean((out - 1.0) ** 2), state

    (value, state), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model, state)
    updates, moments = TX.update(grads, moments, eqx.filter(model, eqx.is_inexact_array))
    return eqx.filter((eqx.apply_updates(model, updates), state, moments), eqx.is_array), value


RUNS = {"torch": TorchRun, "flax": FlaxRun, "equinox": EqxRun}


def save(folder: Any, model: Any, optimizer: Any, named: Any, layout: str | None, **more: Any) -> None:
    """Save both in a folder: in the framework's own layout, or in another."""
    suffix = "safetensors" if layout is None else "bpk"
    firekeep.save(model, folder / f"model.{suffix}", layout=layout)
    OptimizerRecord.of(optimizer, named, layout=layout, **more).save(folder / "optimizer.bpk")


def weights(folder: Any) -> Any:
    return next(path for path in folder.iterdir() if path.stem == "model")
