"""Models of Flax and Equinox: their names, layers and ties, and files of them, which come back bit by bit."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import firekeep
from firekeep import models
from firekeep.bridges import Filling, entries_of, slots_of
from firekeep.bridges import jax as bridge
from firekeep.errors import EntryError, UnsupportedError
from firekeep.report import LoadError


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


class Tied(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.head = nnx.Linear(4, 4, use_bias=False, rngs=rngs)
        self.emb = nnx.Embed(4, 4, rngs=rngs)
        self.head.kernel = self.emb.embedding
        self.twice = nnx.List([self.emb])


class Cnn(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(4, (3, 3))(x)))
        return nn.Dense(3)(x.mean((1, 2)))


class Perceptron(eqx.Module):
    layers: list[Any]
    norm: eqx.nn.BatchNorm
    scale: Any
    name: str = eqx.field(static=True, default="net")

    def __init__(self, key: Any, mode: Any = "batch") -> None:
        one, two = jax.random.split(key)
        self.norm = eqx.nn.BatchNorm(8, "batch", mode=mode)
        self.layers = [eqx.nn.Linear(4, 8, key=one), jax.nn.relu, eqx.nn.Dropout(0.5), eqx.nn.Linear(8, 2, key=two)]
        self.scale = 2.0


class Shared(eqx.Module):
    both: eqx.nn.Shared

    def __init__(self, key: Any) -> None:
        pair = (eqx.nn.Embedding(4, 3, key=key), eqx.nn.Linear(3, 4, use_bias=False, key=key))
        self.both = eqx.nn.Shared(pair, lambda pair: pair[1].weight, lambda pair: pair[0].weight)


def kinds(obj: Any) -> dict[str, str]:
    return {layer.path: layer.kind for layer in slots_of(obj).layers}


def facts(obj: Any) -> dict[str, Any]:
    return {layer.path: (layer.kind, dict(layer.facts)) for layer in slots_of(obj).layers if layer.parent is None}


def numbers(obj: Any) -> dict[str, bytes]:
    return {entry.name: bytes(entry.read()) for entry in entries_of(obj)}


def trained(state: bool = False) -> Mlp:
    model = Mlp(nnx.Rngs(0))
    model(jnp.asarray(np.random.default_rng(0).random((5, 4), np.float32)))
    return model


# nnx


def test_names_of_a_module_are_those_of_nnx_and_streams_of_random_numbers_are_there():
    outline = slots_of(Mlp(nnx.Rngs(0)))
    assert outline.convention == "flax"
    assert not outline.bare
    assert outline.paths() == [
        *("drop.rngs.count", "drop.rngs.key.threefry2x32", "first.bias", "first.kernel", "last.bias", "last.kernel"),
        *("norm.bias", "norm.mean", "norm.scale", "norm.var"),
    ]
    assert {slot.path for slot in outline if slot.trainable} == {
        *("first.bias", "first.kernel", "last.bias", "last.kernel", "norm.bias", "norm.scale")
    }
    assert kinds(Mlp(nnx.Rngs(0))) == {
        "drop.rngs": "rng_state",
        "first": "linear",
        "last": "linear",
        "norm": "batch_norm",
    }


def test_layers_are_told_by_their_classes_with_what_no_tensor_tells():
    class MyLinear(nnx.Linear):
        pass

    def make() -> Any:
        rngs = nnx.Rngs(0)

        def rnn(cell: Any) -> Any:
            return nnx.RNN(cell(2, 3, rngs=rngs))

        return nnx.Dict(
            a=MyLinear(2, 3, rngs=rngs),
            b=nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=rngs),
            c=nnx.Einsum("bsd,dhk->bshk", (2, 3, 4), (3, 4), rngs=rngs),
            d=nnx.Einsum("bsd,hdk->bshk", (3, 2, 4), rngs=rngs),
            e=nnx.Conv(4, 6, (3, 3), feature_group_count=2, rngs=rngs),
            f=nnx.Conv(2, 3, (3,), rngs=rngs),
            g=nnx.ConvTranspose(2, 3, (3, 3), transpose_kernel=True, rngs=rngs),
            h=nnx.Embed(3, 4, rngs=rngs),
            i=nnx.BatchNorm(3, use_bias=False, rngs=rngs),
            j=nnx.LayerNorm(3, rngs=rngs),
            k=nnx.GroupNorm(4, num_groups=2, rngs=rngs),
            l=nnx.RMSNorm(3, rngs=rngs),
            m=nnx.PReLU(),
            n=nnx.MultiHeadAttention(2, 4, rngs=rngs),
            o=rnn(nnx.OptimizedLSTMCell),
            p=nnx.GRUCell(2, 3, rngs=rngs),
            q=nnx.Bidirectional(rnn(nnx.LSTMCell), rnn(nnx.LSTMCell)),
            r=nnx.Bidirectional(rnn(nnx.LSTMCell), rnn(nnx.GRUCell)),
            s=nnx.SimpleCell(2, 3, rngs=rngs),
            t=nnx.InstanceNorm(3, rngs=rngs),
            u=nnx.LinearGeneral(2, 3, batch_axis={0: 5}, rngs=rngs),
        )

    model = nnx.eval_shape(make)  # which compiles nothing
    found = facts(model)
    cell = {"num_layers": 1, "bidirectional": False, "wrapped": False}
    assert {path: fact for path, fact in found.items() if len(path) == 1} == {
        "a": ("linear", {}),
        "b": ("linear", {"in_shape": "2,3", "out_shape": "4,5"}),
        "c": ("linear", {"in_shape": "2", "out_shape": "3,4"}),
        "e": ("conv2d", {"groups": 2}),
        "f": ("conv1d", {"groups": 1}),
        "g": ("conv_transpose2d", {"transpose_kernel": True}),
        "h": ("embedding", {}),
        "i": ("batch_norm", {"affine": False}),
        "j": ("layer_norm", {}),
        "k": ("group_norm", {}),
        "l": ("rms_norm", {}),
        "m": ("prelu", {}),
        "n": ("multi_head_attention", {"num_heads": 2}),
        "o": ("lstm", {**cell, "cell": "optimized", "wrapped": True}),
        "p": ("gru", cell),
        "q": ("lstm", {"num_layers": 1, "bidirectional": True}),
        "s": ("rnn", cell),
        "t": ("instance_norm", {}),
    }
    assert found["r.forward_rnn"] == ("lstm", {**cell, "wrapped": True})
    inner = {layer.path: layer.parent.path for layer in slots_of(model).layers if layer.parent is not None}
    assert inner == {f"n.{name}": "n" for name in ("query", "key", "value", "out")}


def test_a_variable_in_two_modules_is_one_tensor_under_both_names(tmp_path):
    model = Tied(nnx.Rngs(0))
    slots = {slot.path: (slot.tied_to, slot.loosely) for slot in slots_of(model)}
    assert slots == {
        "emb.embedding": (None, False),
        "head.kernel": ("emb.embedding", False),
        "twice.0.embedding": ("emb.embedding", False),
    }
    models.save(model, tmp_path / "tied.bpk", layout="flax")
    assert firekeep.open(tmp_path / "tied.bpk").keys() == list(slots)
    other = Tied(nnx.Rngs(1))
    models.load_into(other, tmp_path / "tied.bpk")
    assert other.head.kernel is other.emb.embedding
    assert numbers(other) == numbers(model)


def test_a_variable_in_two_modules_cannot_hold_two_tensors():
    model = Tied(nnx.Rngs(0))
    before = numbers(model)
    slots = slots_of(model)
    others = [entry for seed in (1, 2) for entry in entries_of(Tied(nnx.Rngs(seed)))]
    pair = [Filling(slots[0], others[0], slots[0].dtype), Filling(slots[1], others[4], slots[1].dtype)]
    with pytest.raises(EntryError, match=r"the same array as 'emb\.embedding'"):
        bridge.fill(model, pair, [])
    assert numbers(model) == before


@pytest.mark.parametrize("suffix", ["safetensors", "bpk"])
def test_a_module_comes_back_bit_by_bit_and_goes_on_alike(tmp_path, suffix):
    model = trained()
    path = tmp_path / f"mlp.{suffix}"
    report = models.save(model, path, layout="flax")
    assert (report.layout, report.tensors) == ("flax", 10)
    other = Mlp(nnx.Rngs(1))
    kernel = other.first.kernel
    loaded = models.load_into(other, path)
    assert len(loaded.applied) == 10
    assert other.first.kernel is kernel
    assert numbers(other) == numbers(model)
    x = jnp.ones((3, 4))
    assert (other(x) == model(x)).all()  # the same dropout too


def test_a_module_of_shapes_is_filled(tmp_path):
    model = trained()
    models.save(model, tmp_path / "mlp.bpk", layout="flax")
    shapes = nnx.eval_shape(lambda: Mlp(nnx.Rngs(1)))
    made, _ = models.load_as(shapes, tmp_path / "mlp.bpk")
    assert isinstance(shapes.first.kernel.get_raw_value(), jax.ShapeDtypeStruct)
    assert numbers(made) == numbers(model)
    models.load_into(shapes, tmp_path / "mlp.bpk")
    assert numbers(shapes) == numbers(model)
    x = jnp.ones((3, 4))
    assert (shapes(x) == model(x)).all()


def test_a_state_is_the_module_without_its_layers(tmp_path):
    model = trained()
    graph, state = nnx.split(model)
    outline = slots_of(state)
    assert (outline.convention, outline.bare, outline.layers) == ("flax", True, ())
    assert outline.paths() == slots_of(model).paths()
    models.save(model, tmp_path / "mlp.bpk", layout="flax")
    fresh = nnx.split(Mlp(nnx.Rngs(1)))[1]
    made, _ = models.load_as(fresh, tmp_path / "mlp.bpk")
    assert numbers(made) == numbers(model) != numbers(fresh)
    assert numbers(nnx.merge(graph, made)) == numbers(model)
    pure = nnx.to_pure_dict(fresh)
    models.load_into(pure, tmp_path / "mlp.bpk")
    assert numbers(pure) == numbers(model)


def test_another_module_shares_what_is_not_filled_and_ties_stay(tmp_path):
    model = Tied(nnx.Rngs(0))
    slot = slots_of(model)[0]
    entry = entries_of(Tied(nnx.Rngs(1)))[0]
    made = bridge.filled(
        {"model": model, "n": 1},
        [Filling(bridge.outline_anew({"model": model})[0], entry.renamed("model.emb.embedding"), slot.dtype)],
        [],
    )
    assert made["n"] == 1
    assert made["model"].head.kernel is made["model"].emb.embedding is not model.emb.embedding
    assert bytes(entries_of(made)[0].read()) == bytes(entry.read())
    assert numbers(model) == numbers(Tied(nnx.Rngs(0)))


def test_variables_of_any_type_and_of_anything():
    class Cache(nnx.Variable):
        pass

    class Odd(nnx.Module):
        def __init__(self) -> None:
            self.cache = Cache({"k": [jnp.ones(2)], "n": 3})
            self.none = nnx.Param(None)
            self.ref = nnx.Param(jnp.ones(3), ref=True)
            self.again = self.ref
            self.static = nnx.static("text")

    model = Odd()
    slots = slots_of(model)
    assert {slot.path: slot.tied_to for slot in slots} == {"again": None, "cache.k.0": None, "ref": "again"}
    zeros = {entry.name: entry for entry in entries_of({"cache": {"k": [jnp.zeros(2)]}, "again": jnp.zeros(3)})}
    fillings = [Filling(slot, zeros[slot.path], slot.dtype) for slot in slots if slot.path in zeros]
    made = bridge.filled(model, fillings, [])
    assert (made.ref[...].tolist(), made.again[...].tolist()) == ([0, 0, 0], [0, 0, 0])
    assert model.ref[...].tolist() == [1, 1, 1]
    bridge.fill(model, fillings, [])
    assert model.cache.get_value()["k"][0].tolist() == [0, 0]
    assert model.ref[...].tolist() == [0, 0, 0]


def test_an_optimizer_of_nnx_comes_back(tmp_path):
    def make(seed: int) -> Any:
        model = Mlp(nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    model, optimizer = make(0)
    gradients = nnx.grad(lambda model: model(jnp.ones((2, 4))).sum())(model)
    optimizer.update(model, gradients)
    assert slots_of(optimizer).convention is None
    assert "opt_state.0.mu.first.kernel" in slots_of(optimizer).paths()
    models.save({"model": model, "optimizer": optimizer}, tmp_path / "run.bpk", layout="flax")
    target = dict(zip(("model", "optimizer"), make(1), strict=True))
    models.load_into(target, tmp_path / "run.bpk")
    assert numbers(target) == numbers({"model": model, "optimizer": optimizer})


# Linen


@pytest.mark.parametrize("suffix", ["safetensors", "bpk"])
def test_linen_variables_come_back_bit_by_bit(tmp_path, suffix):
    x = jnp.ones((1, 8, 8, 3))
    variables, other = (Cnn().init(jax.random.key(seed), x) for seed in (0, 1))
    variables = {**variables, **Cnn().apply(variables, x, train=True, mutable=["batch_stats"])[1]}
    outline = slots_of(variables)
    assert (outline.convention, outline.bare, outline.layers) == ("linen", True, ())
    assert "batch_stats.BatchNorm_0.mean" in outline.paths()
    report = models.save(variables, tmp_path / f"cnn.{suffix}")
    assert report.layout == "linen"
    models.load_into(other, tmp_path / f"cnn.{suffix}")
    assert numbers(other) == numbers(variables)
    made, _ = models.load_as(jax.eval_shape(lambda: Cnn().init(jax.random.key(0), x)), tmp_path / f"cnn.{suffix}")
    assert (Cnn().apply(made, x) == Cnn().apply(variables, x)).all()


def test_a_missing_collection_is_named(tmp_path):
    variables = Cnn().init(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
    models.save({"params": variables["params"]}, tmp_path / "cnn.safetensors")
    before = numbers(variables)
    with pytest.raises(LoadError) as caught:
        models.load_into(variables, tmp_path / "cnn.safetensors")
    assert "batch_stats.BatchNorm_0.mean" in caught.value.report.missing
    assert numbers(variables) == before


def test_a_train_state_comes_back_with_its_step(tmp_path):
    params = Cnn().init(jax.random.key(0), jnp.ones((1, 8, 8, 3)))["params"]
    fresh = TrainState.create(apply_fn=Cnn().apply, params=params, tx=optax.adam(1e-2))
    state = fresh.apply_gradients(grads=params).apply_gradients(grads=params)
    assert slots_of(state).convention == "linen"
    models.save(state, tmp_path / "state.bpk")
    made, _ = models.load_as(fresh, tmp_path / "state.bpk")
    assert (made.step, fresh.step, type(made.step)) == (2, 0, int)
    assert numbers(made) == numbers(state)
    assert made.tx is fresh.tx
    jitted = jax.jit(lambda state: state.apply_gradients(grads=params))(state)
    models.save(jitted, tmp_path / "jitted.bpk")
    assert models.load_as(fresh, tmp_path / "jitted.bpk")[0].step == 3


# Equinox


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_a_model_and_its_state_are_named_as_one(mode):
    pair = eqx.nn.make_with_state(Perceptron)(jax.random.key(0), mode)
    counter = "norm.batch_counter" if mode == "batch" else "norm.ema_first_time_index"
    kept = [counter, f"norm.{mode}_state_index.0", f"norm.{mode}_state_index.1"]
    outline = slots_of(pair)
    assert outline.convention == "equinox"
    assert sorted(outline.paths()) == sorted(
        [*kept, "layers.0.weight", "layers.0.bias", "layers.3.weight", "layers.3.bias", "norm.weight", "norm.bias"]
    )
    assert slots_of({"model": pair[0], "state": pair[1]}).paths()[-3:] == [f"model.{name}" for name in kept]
    assert slots_of({"state": pair[1], "model": pair[0]}).paths()[-3:] == [f"model.{name}" for name in kept]
    assert slots_of(pair[1]).paths() == kept
    facts = next(dict(layer.facts) for layer in outline.layers if layer.kind == "batch_norm")
    assert facts == {"affine": True, "mode": mode, "momentum": "0.99"}
    statistics = [slot.layer for slot in outline if slot.path in kept]
    assert all(layer is not None and layer.path == "norm" for layer in statistics)


@pytest.mark.parametrize("suffix", ["safetensors", "bpk"])
def test_an_equinox_model_comes_back_bit_by_bit(tmp_path, suffix):
    model, state = eqx.nn.make_with_state(Perceptron)(jax.random.key(0))
    _, state = jax.vmap(model.norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(jnp.ones((3, 8)), state)
    path = tmp_path / f"net.{suffix}"
    report = models.save((model, state), path, layout="equinox")
    assert report.layout == "equinox"
    fresh = eqx.nn.make_with_state(Perceptron)(jax.random.key(1))
    shapes = eqx.filter_eval_shape(eqx.nn.make_with_state(Perceptron), jax.random.key(1))
    for target in (fresh, shapes):
        (made, kept), _ = models.load_as(target, path)
        assert numbers((made, kept)) == numbers((model, state))
        assert made.scale == 2.0
        assert made.layers[1] is jax.nn.relu
        assert (made.layers[0](jnp.ones(4)) == model.layers[0](jnp.ones(4))).all()
        assert kept.get(made.norm.batch_counter) == 1
    assert numbers(fresh) != numbers((model, state))


def test_an_equinox_model_is_never_changed_in_place(tmp_path):
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    models.save(model, tmp_path / "mlp.bpk", layout="equinox")
    with pytest.raises(LoadError, match="load_as makes another"):
        models.load_into(model, tmp_path / "mlp.bpk")
    holder = {"model": eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(1))}
    models.load_into(holder, tmp_path / "mlp.bpk", rename=r"^=>model.")
    assert numbers(holder["model"]) == numbers(model)


def test_a_state_that_a_later_one_replaced_is_refused():
    model, state = eqx.nn.make_with_state(Perceptron)(jax.random.key(0))
    state.set(model.norm.batch_counter, jnp.asarray(3))
    with pytest.raises(UnsupportedError, match="replaced by a later one"):
        slots_of((model, state))


def test_a_part_that_is_shared_has_both_names(tmp_path):
    model, other = Shared(jax.random.key(0)), Shared(jax.random.key(1))
    first, second = "both.pytree.0.weight", "both.pytree.1.weight"
    assert [(slot.path, slot.tied_to, slot.loosely) for slot in slots_of(model)] == [
        (first, None, False),
        (second, first, False),
    ]
    assert kinds(model) == {"both.pytree.0": "embedding", "both.pytree.1": "linear"}
    models.save(model, tmp_path / "net.bpk", layout="equinox")
    made, _ = models.load_as(other, tmp_path / "net.bpk")
    assert numbers(made) == numbers(model)
    made, _ = models.load_as(other, tmp_path / "net.bpk", rename=r"pytree\.0=>spare", allow_unused=True)
    embedding, linear = made.both()
    assert (embedding.weight == model.both()[0].weight).all()
    assert embedding.weight is linear.weight


def test_layers_of_equinox_are_told_by_their_classes():
    key = jax.random.key(0)
    layers = {
        "a": lambda key: eqx.nn.Conv2d(2, 4, 3, groups=2, key=key),
        "b": lambda key: eqx.nn.ConvTranspose1d(2, 4, 3, key=key),
        "c": lambda _: eqx.nn.RMSNorm(3, use_bias=False),
        "d": lambda _: eqx.nn.RMSNorm(3),
        "e": lambda key: eqx.nn.MultiheadAttention(2, 4, key=key),
        "f": lambda key: eqx.nn.LSTMCell(2, 3, key=key),
        "g": lambda key: eqx.nn.GRUCell(2, 3, key=key),
        "h": lambda _: eqx.nn.LayerNorm(3),
        "i": lambda _: eqx.nn.GroupNorm(2, 4),
        "j": lambda _: eqx.nn.PReLU(),
    }
    model = {name: eqx.filter_eval_shape(make, key) for name, make in layers.items()}  # which compiles nothing
    cell = {"num_layers": 1, "bidirectional": False, "wrapped": False}
    assert facts(model) == {
        "a": ("conv2d", {"groups": 2}),
        "b": ("conv_transpose1d", {"groups": 1}),
        "c": ("rms_norm", {"use_bias": False}),
        "d": ("rms_norm", {"use_bias": True}),
        "e": ("multi_head_attention", {"num_heads": 2}),
        "f": ("lstm", cell),
        "g": ("gru", cell),
        "h": ("layer_norm", {}),
        "i": ("group_norm", {}),
        "j": ("prelu", {}),
    }
