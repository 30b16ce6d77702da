"""Trees of JAX arrays: names, ties, what is refused, what changes in place and what is made anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from flax.core import FrozenDict

from firekeep import models
from firekeep.bridges import Filling, bridge_of
from firekeep.bridges import jax as bridge
from firekeep.errors import EntryError, UnsupportedError
from firekeep.report import LoadError
from firekeep.tensors import describe


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclass
class Open:
    weight: Any
    rest: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Frozen:
    weight: Any


@dataclass
class Unknown:
    weight: Any


def ones(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.ones(shape, dtype)


def filling(obj: Any, path: str, value: Any, *, anew: bool = False) -> Filling:
    slots = bridge.outline_anew(obj) if anew else bridge.outline(obj)
    slot = next(slot for slot in slots if slot.path == path)
    return Filling(slot, describe(path, value), slot.dtype)


def fill(obj: Any, values: dict[str, Any]) -> None:
    bridge.fill(obj, [filling(obj, path, value) for path, value in values.items()], [])


def filled(obj: Any, values: dict[str, Any]) -> Any:
    return bridge.filled(obj, [filling(obj, path, value, anew=True) for path, value in values.items()], [])


def problems(obj: Any) -> dict[str, str | None]:
    return {slot.path: slot.problem for slot in bridge.outline(obj)}


# Names


def test_names_are_keys_indices_and_fields():
    tree = {
        "a": [ones(1), (ones(1), {7: ones(1)})],
        3: FrozenDict({"x": {"y": ones(1)}}),
        "pair": Pair(ones(1), None),
        "open": Open(ones(1)),
        "frozen": Frozen(ones(1)),
        "unknown": Unknown(ones(1)),
        "skipped": [3, "text", None, jnp.dot],
    }
    assert bridge.outline(tree).paths() == [
        *("a.0", "a.1.0", "a.1.1.7", "3.x.y", "pair.left", "open.weight", "frozen.weight", "unknown.weight"),
    ]


def test_an_array_is_a_tree_of_one_without_a_name():
    assert bridge.outline(ones(2)).paths() == [""]
    assert filled(ones(2), {"": np.zeros(2, np.float32)}).tolist() == [0, 0]


def test_whose_a_tree_is():
    assert bridge_of({"a": [ones(1)], "b": np.ones(1)}).name == "jax"
    assert bridge_of({"a": np.ones(1)}).name == "plain"
    assert bridge_of({"a": ones(1), "b": torch.ones(1)}).name == "plain"
    assert bridge_of([jax.ShapeDtypeStruct((2,), jnp.float32)]).name == "jax"
    assert not bridge.owns(jax.Array)


def test_keys_that_make_no_name_and_two_of_one_name_are_refused():
    with pytest.raises(UnsupportedError, match=r"its key 1\.5 is a float"):
        bridge.outline({"a": {1.5: ones(1)}})
    with pytest.raises(UnsupportedError, match=r"two arrays come to one name, 'a\.0'"):
        bridge.outline({"a": {0: ones(1), "0": ones(1)}})
    assert bridge.outline({"a": {1.5: 3}, "b": ones(1)}).paths() == ["b"]


def test_a_tree_that_contains_itself_is_refused():
    tree: dict[str, Any] = {"a": ones(1)}
    tree["b"] = {"again": tree}
    with pytest.raises(UnsupportedError, match="contains itself"):
        bridge.outline(tree)


# In place and anew


def test_what_never_changes_is_replaced_in_what_is_around_it():
    inner = Pair(ones(2), Frozen(ones(3)))
    tree = {"a": [inner], 5: FrozenDict({"x": ones(1)})}
    fill(tree, {"a.0.right.weight": np.zeros(3, np.float32), "5.x": np.zeros(1, np.float32)})
    assert tree["a"][0].right.weight.tolist() == [0, 0, 0]
    assert tree["a"][0].left is inner.left
    assert isinstance(tree[5], FrozenDict)
    assert tree[5]["x"].tolist() == [0]
    assert inner.right.weight.tolist() == [1, 1, 1]


def test_where_nothing_around_changes_the_remedy_makes_another():
    tree = Pair(ones(2), (ones(3), {"a": ones(1)}))
    found = problems(tree)
    assert found["left"] == "the Pair around it never changes: load_as makes another of it"
    assert found["right.1.a"] is None
    closed = filling(tree, "right.0", np.ones(3, np.float32), anew=True)
    with pytest.raises(UnsupportedError, match="nothing around it takes another array") as caught:
        bridge.fill(tree, [closed], [])
    assert caught.value.tensor == "right.0"
    made = filled(tree, {"left": np.zeros(2, np.float32), "right.0": np.zeros(3, np.float32)})
    assert type(made) is Pair
    assert made.left.tolist() == [0, 0]
    assert made.right[1] is tree.right[1]
    assert tree.left.tolist() == [1, 1]


def test_nothing_of_the_object_changes_where_another_is_made():
    tree = {"list": [ones(1)], "open": Open(ones(1), {"deep": ones(2)}), "unknown": Unknown(ones(1)), "n": 3}
    before = jax.tree.map(lambda part: part, tree)
    made = filled(tree, dict.fromkeys(("list.0", "open.weight", "unknown.weight"), np.zeros(1, np.float32)))
    assert [made["list"][0], made["open"].weight, made["unknown"].weight] == [0, 0, 0]
    assert made["n"] == 3
    assert made["open"].rest is tree["open"].rest
    assert tree["list"][0] is before["list"][0]
    assert tree["open"].weight.tolist() == tree["unknown"].weight.tolist() == [1]


def test_a_mapping_that_nobody_can_make_another_of_is_refused():
    tree = {"a": MappingProxyType({"x": ones(1)})}
    assert problems(tree)["a.x"] == "the mappingproxy around it never changes: load_as makes another of it"
    assert "make it a dict" in str(bridge.outline_anew(tree)[0].problem)


# Ties


def test_one_array_in_two_places_is_stored_once_and_may_part():
    shared = ones(2)
    tree = {"a": shared, "b": [shared]}
    slots = bridge.outline(tree)
    assert [(slot.path, slot.tied_to, slot.loosely) for slot in slots] == [("a", None, False), ("b.0", "a", True)]
    fill(tree, {"a": np.zeros(2, np.float32)})
    assert tree["a"] is tree["b"][0]
    fill(tree, {"a": np.ones(2, np.float32), "b.0": np.full(2, 5, np.float32)})
    assert tree["a"].tolist() == [1, 1]
    assert tree["b"][0].tolist() == [5, 5]


def test_a_file_with_two_tensors_parts_what_was_one_array(tmp_path):
    zero = jnp.zeros(2)
    models.save({"a": ones(2), "b": 2 * ones(2)}, tmp_path / "two.safetensors")
    tree = {"a": zero, "b": zero}
    models.load_into(tree, tmp_path / "two.safetensors")
    assert (tree["a"].tolist(), tree["b"].tolist()) == ([1, 1], [2, 2])
    made, report = models.load_as({"a": zero, "b": zero}, tmp_path / "two.safetensors")
    assert sorted(report.applied) == ["a", "b"]
    assert (made["a"].tolist(), made["b"].tolist()) == ([1, 1], [2, 2])


def test_one_dict_in_two_places_cannot_hold_two_tensors():
    part = {"w": ones(1)}
    tree = {"a": part, "b": part}
    assert [slot.loosely for slot in bridge.outline(tree)] == [False, False]
    with pytest.raises(EntryError, match=r"the same array as 'a\.w'"):
        fill(tree, {"a.w": np.zeros(1, np.float32), "b.w": np.full(1, 2, np.float32)})
    assert part["w"].tolist() == [1]


def test_shapes_alike_are_not_tied():
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert [slot.tied_to for slot in bridge.outline({"a": shape, "b": shape})] == [None, None]


def test_a_reference_of_jax_is_written_to():
    ref = jax.new_ref(ones(2))
    tree = {"a": ref, "b": ref}
    assert [(slot.path, slot.tied_to, slot.loosely) for slot in bridge.outline(tree)] == [
        ("a", None, False),
        ("b", "a", False),
    ]
    made = filled(tree, {"a": np.zeros(2, np.float32)})
    assert (made["a"][...].tolist(), ref[...].tolist()) == ([0, 0], [1, 1])
    fill(tree, {"a": np.zeros(2, np.float32)})
    assert tree["b"] is ref
    assert ref[...].tolist() == [0, 0]


# Values


@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32, jnp.bool_, jnp.complex64, jnp.float8_e4m3fn]
)
def test_bits_come_back_as_they_were(tmp_path, dtype):
    tree = {"x": jnp.asarray([0, 1, 1, 0, 1]).astype(dtype)}
    models.save(tree, tmp_path / "x.safetensors")
    made, _ = models.load_as({"x": jax.ShapeDtypeStruct((5,), dtype)}, tmp_path / "x.safetensors")
    assert made["x"].dtype == dtype
    assert np.asarray(made["x"]).tobytes() == np.asarray(tree["x"]).tobytes()


def test_bytes_of_a_bool_that_are_no_bits_become_true():
    tree = {"x": jnp.zeros(3, jnp.bool_)}
    slot = bridge.outline(tree)[0]
    from firekeep.blobs import MemoryBlob
    from firekeep.entry import TensorEntry

    bridge.fill(tree, [Filling(slot, TensorEntry("x", slot.dtype, (3,), MemoryBlob(b"\0\2\1")), slot.dtype)], [])
    assert bytes(np.asarray(tree["x"]).view(np.uint8)) == b"\0\1\1"


def test_a_wide_leaf_is_refused_where_jax_would_narrow_it(tmp_path):
    with jax.enable_x64(True):
        tree = {"x": ones(2, dtype=jnp.float64)}
        models.save(tree, tmp_path / "x.safetensors")
    why = "JAX makes no arrays of F64 unless jax_enable_x64 is set: it would be narrowed to float32"
    assert problems(tree) == {"x": why}
    with pytest.raises(LoadError, match="jax_enable_x64"):
        models.load_into(tree, tmp_path / "x.safetensors")
    with jax.enable_x64(True):
        assert models.load_into(tree, tmp_path / "x.safetensors").ok
    narrow = {"x": ones(2)}
    assert models.load_into(narrow, tmp_path / "x.safetensors").casts == {"x": ("F64", "F32")}
    with pytest.raises(LoadError, match="jax_enable_x64"):
        models.load_into({"x": ones(2)}, tmp_path / "x.safetensors", dtype="file")
    assert narrow["x"].dtype == jnp.float32


def test_numpy_arrays_beside_jax_arrays_stay_numpy_arrays(tmp_path):
    tree = {"a": ones(2), "wide": np.arange(3), "number": np.float64(2.5), "big": np.arange(2, dtype=">f4")}
    models.save(tree, tmp_path / "x.safetensors")
    made, _ = models.load_as({**tree, "wide": np.zeros(3, np.int64)}, tmp_path / "x.safetensors")
    assert type(made["wide"]) is np.ndarray
    assert made["wide"].tolist() == [0, 1, 2]
    assert made["number"] == np.float64(2.5)
    assert made["big"].tolist() == [0, 1]


def test_a_leaf_of_another_shape_is_refused_and_nothing_is_touched(tmp_path):
    models.save({"a": ones(1, 1), "b": ones(2)}, tmp_path / "x.safetensors")
    tree = {"a": jnp.zeros(1), "b": jnp.zeros(2)}
    with pytest.raises(LoadError) as caught:
        models.load_into(tree, tmp_path / "x.safetensors")
    assert "[1, 1]" in str(caught.value)
    assert tree["b"].tolist() == [0, 0]


def test_arrays_without_values_are_listed_and_say_why():
    gone = ones(4)
    jax.jit(lambda x: x + 1, donate_argnums=0)(gone)
    entries = {
        entry.name: entry for entry in bridge.entries({"gone": gone, "shape": jax.ShapeDtypeStruct((2,), jnp.bfloat16)})
    }
    assert "donated" in str(entries["gone"].problem)
    assert "a shape and no values" in str(entries["shape"].problem)
    assert (str(entries["shape"].dtype), entries["shape"].shape) == ("BF16", (2,))
    assert entries["shape"].nbytes == 4


def test_an_array_that_jax_traces_is_refused():
    seen = []

    @jax.jit
    def step(x: Any) -> Any:
        seen.extend((bridge.entries({"x": x})[0].problem, bridge.outline({"x": x})[0].problem))
        return x

    step(ones(2))
    assert all("tracing" in str(why) for why in seen)


def test_parts_on_devices_of_other_processes_are_refused(monkeypatch):
    tree = {"x": ones(2)}
    monkeypatch.setattr(type(tree["x"]), "is_fully_addressable", property(lambda self: False))
    assert "devices of other processes" in str(bridge.entries(tree)[0].problem)
    assert bridge.outline(tree)[0].problem is None


def test_drawing_leaves_no_copy_with_the_array_and_none_in_the_way_of_its_donation():
    tree = {"x": ones(64)}
    entry = bridge.entries(tree)[0]
    assert np.shares_memory(np.frombuffer(entry.read(), np.float32), np.asarray(tree["x"].addressable_data(0)))
    assert tree["x"]._npy_value is None
    jax.jit(lambda x: x + 1, donate_argnums=0)(tree["x"])
    with pytest.raises(UnsupportedError, match="donated"):
        entry.read()


def test_a_leaf_keeps_nothing_of_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    models.save({"x": ones(50_000), "t": ones(3, 2)}, path)
    made, _ = models.load_as({"x": jnp.zeros(50_000), "t": jnp.zeros((3, 2))}, path)
    raw = bytearray(path.read_bytes())
    raw[-50_000:] = bytes(50_000)
    with path.open("r+b") as file:
        file.write(raw)
    assert float(made["x"].min()) == float(made["t"].min()) == 1
    assert str(path) not in Path("/proc/self/maps").read_text()


# Random keys


@pytest.mark.parametrize("name", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_typed_key_is_stored_as_numbers_under_the_name_of_its_kind(tmp_path, name):
    keys = {"one": jax.random.key(3, impl=name), "many": jax.random.split(jax.random.key(4, impl=name), 5)}
    models.save(keys, tmp_path / "keys.safetensors")
    entries = {entry.name: entry for entry in bridge.entries(keys)}
    data = jax.random.key_data(keys["many"])
    assert entries[f"many.{name}"].shape == data.shape
    assert bytes(entries[f"many.{name}"].read()) == bytes(np.asarray(data).data)
    shapes = jax.eval_shape(
        lambda: {"one": jax.random.key(0, impl=name), "many": jax.random.split(jax.random.key(0, impl=name), 5)}
    )
    for target in (shapes, jax.tree.map(lambda key: key, keys)):
        made, _ = models.load_as(target, tmp_path / "keys.safetensors")
        assert jax.random.key_impl(made["one"]) == name
        assert jax.random.normal(made["one"], (3,)).tolist() == jax.random.normal(keys["one"], (3,)).tolist()
        assert (jax.random.key_data(made["many"]) == data).all()


def test_a_key_of_another_kind_is_refused(tmp_path):
    models.save({"key": jax.random.key(0, impl="rbg"), "x": ones(1)}, tmp_path / "key.safetensors")
    tree = {"key": jax.random.key(1), "x": jnp.zeros(1)}
    with pytest.raises(LoadError, match=r"key\.rbg"):
        models.load_into(tree, tmp_path / "key.safetensors")
    assert tree["x"].tolist() == [0]


# Places


def test_an_array_stays_free_or_bound_as_it_was(tmp_path):
    device = jax.devices()[0]
    tree = {"free": ones(2), "bound": jax.device_put(ones(2), device)}
    shape = jax.ShapeDtypeStruct((2,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(device))
    models.save(tree, tmp_path / "x.safetensors")
    made, _ = models.load_as(tree, tmp_path / "x.safetensors")
    assert (made["free"].committed, made["bound"].committed) == (False, True)
    made, _ = models.load_as(
        {"free": jax.ShapeDtypeStruct((2,), jnp.float32), "bound": shape}, tmp_path / "x.safetensors"
    )
    assert (made["free"].committed, made["bound"].committed) == (False, True)


def test_ml_dtypes_of_numpy_are_leaves_too():
    tree = {"a": ones(1), "b": np.ones(2, ml_dtypes.bfloat16)}
    assert [str(entry.dtype) for entry in bridge.entries(tree)] == ["F32", "BF16"]
