"""Faults that others' checkpoints of JAX have had, one test or more for each: right, or refused with the reason and nothing touched."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, serialization
from flax.core import FrozenDict

import firekeep
from firekeep import LoadError, OptimizerError, OptimizerRecord, WrongFormatError
from firekeep.errors import EntryError, FirekeepError


def numbers(tree):
    leaves = jax.tree.leaves(nnx.state(tree) if isinstance(tree, nnx.Module) else tree)
    return [plain(leaf).tolist() for leaf in leaves]


def plain(leaf):
    key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if key else leaf)


class Block(nnx.Module):
    def __init__(self, value):
        self.weight = nnx.Param(jnp.full((2, 2), float(value)))


class Deep(nnx.Module):
    def __init__(self, count, value=0):
        self.blocks = nnx.List([Block(value + place) for place in range(count)])
        self.head = Block(value)


class Nested(eqx.Module):
    blocks: list
    head: jax.Array


TALL = {
    "nnx": lambda count, value: Deep(count, value),
    "equinox": lambda count, value: Nested([jnp.full(2, float(value + n)) for n in range(count)], jnp.full(3, 1.0)),
    "a tree": lambda count, value: {"blocks": [{"w": jnp.full(2, float(value + n))} for n in range(count)]},
}


@pytest.mark.parametrize("kind", TALL)
def test_a_bigger_model_is_not_silently_left_in_part_as_it_was(kind, tmp_path):
    """B77: a model of sixteen layers was given a checkpoint of twelve, and the last four stayed random."""
    firekeep.save(TALL[kind](12, 100), tmp_path / "x.safetensors")
    model = TALL[kind](16, 0)
    before = numbers(model)
    for load in (firekeep.load_as, firekeep.load_into):
        with pytest.raises(LoadError) as caught:
            load(model, tmp_path / "x.safetensors")
        assert [name.split(".")[1] for name in caught.value.report.missing] == ["12", "13", "14", "15"]
        assert "allow_missing=True" in str(caught.value)
        assert numbers(model) == before
    made, report = firekeep.load_as(model, tmp_path / "x.safetensors", allow_missing=True)
    assert len(report.missing) == 4
    wanted, got = numbers(TALL[kind](12, 100)), numbers(made)
    assert got[:12] == wanted[:12]
    assert got[12:16] == before[12:16]
    smaller = TALL[kind](8, 0)
    before = numbers(smaller)
    with pytest.raises(LoadError, match="4 unused"):
        firekeep.load_as(smaller, tmp_path / "x.safetensors")
    assert numbers(smaller) == before


def test_moments_of_a_bigger_model_start_anew_by_name():
    """B77, of the optimizer."""
    tx = optax.adam(0.1)
    small, big = ({"blocks": [jnp.ones(2)] * count} for count in (12, 16))
    _, state = tx.update(small, tx.init(small), small)
    record = OptimizerRecord.of(state, small, tx=tx)
    with pytest.raises(OptimizerError) as caught:
        record.apply(tx.init(big), big, tx=tx, allow_fresh=False)
    assert caught.value.report.refusals == ("4 parameters that would start anew",)
    made, report = record.apply(tx.init(big), big, tx=tx)
    assert report.fresh == ("blocks.12", "blocks.13", "blocks.14", "blocks.15")
    assert numbers(made[0].mu["blocks"][12:]) == [[0, 0]] * 4
    assert numbers(made[0].mu["blocks"][:12]) == numbers(state[0].mu["blocks"])


@pytest.mark.parametrize("suffix", ["safetensors", "bpk", "msgpack"])
def test_layers_that_are_named_by_numbers_come_back_under_numbers(suffix, tmp_path):
    """B78: integer keys became text, or were written and could not be read."""
    tree = {"layers": {n: {"w": jnp.arange(3.0) + n} for n in (0, 2, 10)}}
    path = tmp_path / f"x.{suffix}"
    if suffix == "msgpack":
        path.write_bytes(serialization.msgpack_serialize(jax.tree.map(np.asarray, tree)))
    else:
        firekeep.save(tree, path)
    assert sorted(firekeep.open(path)) == ["layers.0.w", "layers.10.w", "layers.2.w"]
    target = jax.tree.map(jnp.zeros_like, tree)
    assert firekeep.load_into(target, path).ok
    assert list(target["layers"]) == [0, 2, 10]
    assert numbers(target) == numbers(tree)
    as_text = {"layers": {str(n): {"w": jnp.zeros(3)} for n in (0, 2, 10)}}
    assert firekeep.load_into(as_text, path).ok
    assert numbers(as_text["layers"]["10"]) == [[10, 11, 12]]


def test_a_number_and_its_text_side_by_side_are_refused(tmp_path):
    """B78: two keys that would be one name."""
    tree = {"layers": {0: jnp.zeros(1), "0": jnp.ones(1)}}
    with pytest.raises(FirekeepError, match=r"layers\.0"):
        firekeep.save(tree, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_leaves_without_names_are_refused_with_what_reads_them(tmp_path):
    """B86: arrays in a row, told apart by their place alone, ended the file too early or went to the wrong leaf."""
    model = {"a": jnp.zeros(2), "b": jnp.ones(3), "c": jnp.ones(3)}
    eqx.tree_serialise_leaves(tmp_path / "x.eqx", {"a": jnp.ones(2), "b": jnp.zeros(3)})
    before = numbers(model)
    with pytest.raises(WrongFormatError, match="without names") as caught:
        firekeep.load_into(model, tmp_path / "x.eqx")
    assert "tree_deserialise_leaves" in str(caught.value)
    assert numbers(model) == before


def test_arrays_that_have_only_numbers_are_given_by_name_or_not_at_all(tmp_path):
    """B86: two arrays, where three were expected."""
    np.savez(tmp_path / "x.npz", np.ones(2, np.float32), np.full(3, 2, np.float32))
    model = {"a": jnp.zeros(2), "b": jnp.zeros(3), "c": jnp.zeros(3)}
    with pytest.raises(LoadError, match="3 missing"):
        firekeep.load_into(model, tmp_path / "x.npz")
    assert numbers(model) == [[0, 0], [0, 0, 0], [0, 0, 0]]
    names = {"arr_0": "a", "arr_1": "b"}
    with pytest.raises(LoadError) as caught:
        firekeep.load_into(model, tmp_path / "x.npz", rename=names)
    assert caught.value.report.missing == ("c",)
    assert firekeep.load_into(model, tmp_path / "x.npz", rename=names, allow_missing=True).ok
    assert numbers(model) == [[1, 1], [2, 2, 2], [0, 0, 0]]


class Ema(NamedTuple):
    count: jax.Array
    mean: dict


@pytest.mark.parametrize("suffix", ["safetensors", "bpk", "msgpack"])
def test_tuples_with_names_come_back_as_what_they_were(suffix, tmp_path):
    """B114: a state of optax came back as lists and dicts, which the next update could not take."""
    tx, params = optax.chain(optax.clip(1.0), optax.adam(0.1)), {"w": jnp.arange(3.0)}
    _, moments = tx.update(params, tx.init(params), params)
    state = (moments, Ema(jnp.int32(3), {"w": params["w"]}), [jnp.ones(1)])
    path = tmp_path / f"x.{suffix}"
    if suffix == "msgpack":
        path.write_bytes(serialization.to_bytes(state))
    else:
        firekeep.save(state, path)
    other = jax.tree.map(jnp.zeros_like, state)
    with pytest.raises(LoadError, match="load_as"):
        firekeep.load_into(other, path)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(other))
    made, report = firekeep.load_as(other, path)
    assert report.ok
    assert jax.tree.structure(made) == jax.tree.structure(state)
    assert type(made[1]) is Ema
    assert numbers(made) == numbers(state)
    tx.update(params, made[0], params)


def test_a_key_of_its_own_type_and_one_that_is_numbers_are_not_taken_for_each_other(tmp_path):
    """B125: keys with a type of their own could not be stored, or came back as numbers."""
    saved = {"typed": jax.random.key(1), "raw": jax.random.PRNGKey(2), "many": jax.random.split(jax.random.key(3), 2)}
    firekeep.save(saved, tmp_path / "x.safetensors")
    target = {"typed": jax.random.key(7), "raw": jax.random.PRNGKey(8), "many": jax.random.split(jax.random.key(9), 2)}
    assert firekeep.load_into(target, tmp_path / "x.safetensors").ok
    assert numbers(target) == numbers(saved)
    assert [target[name].dtype for name in saved] == [saved[name].dtype for name in saved]
    other = {"typed": jax.random.PRNGKey(7), "raw": jax.random.key(8), "many": target["many"]}
    before = numbers(other)
    with pytest.raises(LoadError) as caught:
        firekeep.load_into(other, tmp_path / "x.safetensors", match="exact")
    assert sorted(caught.value.report.missing) == ["raw.threefry2x32", "typed"]
    assert numbers(other) == before
    told = {"typed.threefry2x32": "typed", "raw": "raw.threefry2x32"}
    assert firekeep.load_into(other, tmp_path / "x.safetensors", rename=told).ok
    assert jax.random.uniform(other["raw"]) == jax.random.uniform(saved["raw"])
    assert numbers(other) == numbers(saved)


def variables(value):
    return FrozenDict(
        {
            "params": {"dense": {"kernel": jnp.full((2, 3), value), "bias": jnp.full(3, value)}},
            "ema": jnp.full(2, value),
        }
    )


@pytest.mark.parametrize("chunk", [1 << 30, 4])
def test_a_frozen_dict_and_arrays_in_pieces_are_read(chunk, monkeypatch, tmp_path):
    """B128: leaves in pieces of four bytes, of a dict that never changes."""
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", chunk)
    (tmp_path / "x.msgpack").write_bytes(serialization.to_bytes(variables(2.5)))
    target = variables(0.0)
    made, report = firekeep.load_as(target, tmp_path / "x.msgpack")
    assert report.ok
    assert type(made) is FrozenDict
    assert numbers(made) == numbers(variables(2.5))
    assert numbers(target) == numbers(variables(0.0))
    thawed = target.unfreeze()
    assert firekeep.load_into(thawed, tmp_path / "x.msgpack").ok
    assert numbers(thawed) == numbers(made)


def test_a_frozen_dict_never_changes_not_even_further_in(tmp_path):
    """B128: what others hold too, or are told apart by, was changed under them."""
    firekeep.save(variables(2.5), tmp_path / "x.safetensors")
    target = variables(0.0)
    best = target["params"]
    with pytest.raises(LoadError) as caught:
        firekeep.load_into(target, tmp_path / "x.safetensors")
    told = {one.name: one.message for one in caught.value.report.errors}
    assert set(told) == {"params.dense.kernel", "params.dense.bias", "ema"}
    assert set(told.values()) == {"the FrozenDict around it never changes: load_as makes another of it"}
    assert numbers(target) == numbers(variables(0.0))
    held = {"model": target}
    firekeep.save({"model": variables(2.5)}, tmp_path / "y.safetensors")
    assert firekeep.load_into(held, tmp_path / "y.safetensors").ok
    assert numbers(held["model"]) == numbers(variables(2.5))
    assert type(held["model"]) is FrozenDict
    assert numbers(target) == numbers(variables(0.0))
    assert numbers(best) == numbers(variables(0.0)["params"])


def test_a_missing_collection_is_left_out_by_name(tmp_path):
    """The statistics were not in the file: refused, and the remedy takes the rest."""
    firekeep.save({"params": {"norm": {"scale": jnp.ones(2)}}}, tmp_path / "x.safetensors")
    target = {"params": {"norm": {"scale": jnp.zeros(2)}}, "batch_stats": {"norm": {"mean": jnp.full(2, 5.0)}}}
    with pytest.raises(LoadError) as caught:
        firekeep.load_into(target, tmp_path / "x.safetensors")
    assert caught.value.report.missing == ("batch_stats.norm.mean",)
    assert numbers(target["params"]) == [[0, 0]]
    assert firekeep.load_into(target, tmp_path / "x.safetensors", include=r"^params\.").ok
    assert numbers(target) == [[5, 5], [1, 1]]


@pytest.mark.parametrize(("there", "here"), [((1, 1), (1,)), ((1,), (1, 1)), ((), (1,)), ((1,), ())])
def test_one_number_in_another_shape_is_another_shape(there, here, tmp_path):
    """A leaf was broadcast, or its axes dropped, where nobody had asked for it."""
    firekeep.save({"a": jnp.ones(there), "b": jnp.ones(2)}, tmp_path / "x.safetensors")
    target = {"a": jnp.zeros(here), "b": jnp.zeros(2)}
    for load in (firekeep.load_into, firekeep.load_as):
        with pytest.raises(LoadError, match="1 of another shape"):
            load(target, tmp_path / "x.safetensors")
    assert not any(np.any(leaf) for leaf in target.values())
    assert firekeep.load_into(target, tmp_path / "x.safetensors", allow_mismatched=True).ok
    assert (target["a"].shape, float(target["a"].sum())) == (here, 0)
    assert target["b"].tolist() == [1, 1]
    with pytest.raises((LoadError, EntryError)):
        firekeep.apply(target, {"a": np.ones(there, np.float32)})
