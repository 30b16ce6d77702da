"""Plain trees: names, ties, what is left out and refused, and what is written in place or replaced."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from contracts.bridge_contract import BridgeContract
from firekeep.arrays import as_array, entry_of
from firekeep.blobs import DeferredBlob
from firekeep.bridges import plain
from firekeep.bridges._protocol import Filling
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, FirekeepError, LimitError, UnsupportedError
from firekeep.tensors import describe

F32, F64, BF16 = (BY_NAME[name] for name in ("F32", "F64", "BF16"))


class Fixed:
    """An array of a library whose arrays never change."""

    def __init__(self, values: Any) -> None:
        self.held = np.asarray(values, np.float32)
        self.dtype = self.held.dtype
        self.shape = self.held.shape
        self.fetched = 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.fetched += 1
        return self.held.astype(dtype or self.dtype)


@dataclass
class Open:
    weight: Any = None
    bias: Any = None
    late: Any = field(init=False)


@dataclass(frozen=True)
class Frozen:
    weight: Any = None


@dataclass(slots=True)
class Slotted:
    weight: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any


class Key(str, enum.Enum):  # noqa: UP042 - whose members print as Key.A
    A = "a"


def array(*values: float, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype)


def read_only(*values: float) -> Any:
    made = array(*values)
    made.flags.writeable = False
    return made


def filling(obj: Any, path: str, value: Any, *, dtype: Any = None) -> Filling:
    slot = next(slot for slot in plain.outline(obj) if slot.path == path)
    return Filling(slot, describe(path, value), dtype if dtype is not None else slot.dtype)


def fill(obj: Any, values: dict[str, Any], *, dtype: Any = None) -> list[str]:
    done: list[str] = []
    plain.fill(obj, [filling(obj, path, value, dtype=dtype) for path, value in values.items()], done)
    return done


def read(obj: Any) -> dict[str, Any]:
    return {entry.name: as_array(entry).astype(float).tolist() for entry in plain.entries(obj)}


class TestContract(BridgeContract):
    name = "plain"
    keeps_ids = False

    def make(self, seed: int) -> Any:
        numbers = np.random.default_rng(seed)

        def some(*shape: int) -> Any:
            return numbers.random(shape, np.float32)

        fixed = some(2)
        fixed.flags.writeable = False
        shared = some(3)
        return {
            "layers": [{"w": some(2, 3), "b": some(3)}, Open(weight=some(3, 2).T, bias=fixed)],
            "t": torch.from_numpy(some(2, 2)),
            "half": some(4).astype(ml_dtypes.bfloat16),
            "n": numbers.integers(0, 99, 3),
            "one": shared,
            "other": [shared],
            "scalar": np.float64(seed),
            "empty": some(0),
            "fixed": Fixed(some(2)),
            "epoch": 3,
        }


class TestStateDictContract(BridgeContract):
    name = "plain"
    keeps_ids = False

    def make(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.BatchNorm1d(2)).state_dict()


# Names


def test_names_are_keys_indices_and_fields():
    tree = {
        "a": [array(1), (array(2), {7: array(3)})],
        "pair": Pair(array(4), None),
        "open": Open(weight=array(5)),
        "b": {"frozen": Frozen(array(6))},
        "map": MappingProxyType({"x": array(7)}),
        "user": UserDict(y=array(8)),
    }
    names = ["a.0", "a.1.0", "a.1.1.7", "pair.left", "open.weight", "b.frozen.weight", "map.x", "user.y"]
    assert plain.outline(tree).paths() == names
    assert read(tree) == {name: [float(value)] for name, value in zip(names, range(1, 9), strict=True)}


def test_a_text_of_an_enum_is_its_text():
    assert plain.outline({Key.A: array(1)}).paths() == ["a"]


def test_an_array_is_a_tree_of_one_without_a_name():
    assert plain.outline(array(1)).paths() == [""]
    assert read(array(1)) == {"": [1.0]}


def test_other_values_are_left_out():
    tree = {
        "n": 1,
        "f": 0.5,
        "s": "text",
        "none": None,
        "object": object(),
        "class": np.ndarray,
        "texts": np.array(["a", "b"]),
        "objects": np.array([{}, None]),
        "dates": np.array(["2026-01-01"], "datetime64[D]"),
        "records": np.zeros(2, [("a", "f4")]),
        "word": np.str_("word"),
        "kept": array(1),
    }
    assert plain.outline(tree).paths() == ["kept"]


def test_modules_are_containers_and_what_a_state_dict_tells():
    state = OrderedDict({"net.0.weight": torch.zeros(1)})
    state._metadata = OrderedDict({"": {}, "net": {}, "net.0": {}, "net.1": {}})
    assert plain.outline(state).modules == {"net", "net.0", "net.1"}
    assert plain.outline({"ema": state, "more": [{}]}).modules == {
        "ema",
        "ema.net",
        "ema.net.0",
        "ema.net.1",
        "more",
        "more.0",
    }


def test_what_is_all_of_pytorch_lies_as_pytorch_has_it():
    assert plain.outline({"a": torch.zeros(1), "n": 3}).convention == "torch"
    assert plain.outline({"a": torch.zeros(1), "b": array(1)}).convention is None
    assert plain.outline({"n": 3}).convention is None


@pytest.mark.parametrize("key", [("a", 1), 1.5, None, True, b"bytes"])
def test_other_keys_are_refused_where_a_tensor_is_below(key):
    with pytest.raises(UnsupportedError, match="has no name: its key") as caught:
        plain.outline({"x": {key: [array(1)]}})
    assert f"tree['x'][{key!r}][0]" in str(caught.value)
    assert plain.outline({"x": {key: [1, "a"]}, "y": array(1)}).paths() == ["y"]


@pytest.mark.parametrize(
    ("tree", "routes"),
    [
        ({"a": {"b": array(1)}, "a.b": array(2)}, ["tree['a']['b']", "tree['a.b']"]),
        ({"a": {1: array(1), "1": array(2)}}, ["tree['a'][1]", "tree['a']['1']"]),
        ({"a": Open(weight=array(1)), "a.weight": array(2)}, ["tree['a'].weight", "tree['a.weight']"]),
    ],
)
def test_two_ways_to_one_name_are_refused(tree, routes):
    for look in (plain.outline, plain.entries):
        with pytest.raises(UnsupportedError, match="two tensors come to one name") as caught:
            look(tree)
        assert all(route in str(caught.value) for route in routes)


def test_a_tree_that_contains_itself_is_refused():
    tree: dict[str, Any] = {"a": [array(1)]}
    tree["a"].append(tree)
    with pytest.raises(UnsupportedError, match=r"the dict at tree\['a'\]\[1\] contains itself"):
        plain.outline(tree)


def test_a_container_in_two_places_is_no_cycle():
    shared = [array(1)]
    outline = plain.outline({"a": shared, "b": shared})
    assert [(slot.path, slot.tied_to) for slot in outline] == [("a.0", None), ("b.0", "a.0")]


def test_a_tree_too_deep_is_refused():
    tree: Any = array(1)
    for _ in range(300):
        tree = [tree]
    with pytest.raises(LimitError, match="deeper than 256 levels"):
        plain.outline(tree)


def test_a_model_inside_is_refused_and_not_skipped():
    with pytest.raises(UnsupportedError, match=r"'nets.0': a Linear is a model.*state dict"):
        plain.outline({"nets": [torch.nn.Linear(1, 1)]})


# Slots and entries


def test_slots_tell_dtype_and_shape_and_who_takes_a_gradient():
    tree = {"a": np.zeros((2, 3), ml_dtypes.bfloat16), "t": torch.zeros(4, requires_grad=True), "u": torch.zeros(1)}
    assert [(slot.dtype, slot.shape, slot.trainable) for slot in plain.outline(tree)] == [
        (BF16, (2, 3), False),
        (F32, (4,), True),
        (F32, (1,), False),
    ]


def test_ties_are_one_object_or_one_memory():
    whole, other, fixed = array(1, 2, 3), torch.zeros(2), Fixed([1])
    tree = {
        "a": whole,
        "b": whole,
        "c": whole[:],
        "d": whole[:2],
        "t": other,
        "u": other.view(2),
        "x": fixed,
        "y": fixed,
    }
    ties = {"b": "a", "c": "a", "u": "t", "y": "x"}
    assert {slot.path: slot.tied_to for slot in plain.outline(tree) if slot.tied_to} == ties
    assert find_ties(plain.entries(tree)) == ties


def test_arrays_of_other_libraries_are_fetched_when_they_are_drawn():
    fixed = Fixed([1, 2])
    (entry,) = plain.entries({"a": fixed})
    plain.outline({"a": fixed})
    assert fixed.fetched == 0
    assert as_array(entry).tolist() == [1, 2]
    assert fixed.fetched == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(2, device="meta"), "meta tensor"),
        (lambda: torch.zeros(2).to_sparse(), "files hold dense tensors"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "no place in the file"),
    ],
    ids=["meta", "sparse", "quantized"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_values_are_places_where_nothing_can_be_put(make, message):
    tree = {"a": make(), "b": torch.zeros(2)}
    outline = plain.outline(tree)
    assert [slot.problem is None for slot in outline] == [False, True]
    assert message in str(outline[0].problem)
    assert outline[0].shape == (2,)
    assert [(entry.name, entry.shape, entry.problem) for entry in plain.entries(tree)] == [
        ("a", (2,), outline[0].problem),
        ("b", (2,), None),
    ]
    with pytest.raises(UnsupportedError, match=message):
        fill(tree, {"b": array(1, 2), "a": array(1, 2)})
    assert tree["b"].tolist() == [0, 0]


@pytest.mark.parametrize("value", [np.zeros(2, np.longdouble), np.ma.masked_array([1.0], mask=[True])])
def test_arrays_that_no_file_holds_are_refused_by_name(value):
    with pytest.raises(UnsupportedError, match=r"'deep\.a'"):
        plain.outline({"deep": {"a": value}})


# Filling


IN_PLACE = [
    array(1, 2),
    np.zeros(4, np.float32)[::2],
    np.zeros(2, ">f4"),
    np.asfortranarray(np.zeros((2, 1), np.float32)).reshape(2),
    torch.zeros(2),
    torch.zeros(4)[::2],
    torch.zeros(2, requires_grad=True),
    torch.nn.Parameter(torch.zeros(2)),
]


@pytest.mark.parametrize("old", IN_PLACE, ids=[f"{type(one).__name__}{index}" for index, one in enumerate(IN_PLACE)])
@pytest.mark.parametrize(
    "wrap", [lambda x: {"a": x}, lambda x: {"a": (x,)}, lambda x: x], ids=["dict", "tuple", "root"]
)
def test_what_can_be_written_to_is_written_in_place(old, wrap):
    tree = wrap(old)
    (path,) = plain.outline(tree).paths()
    assert plain.outline(tree)[0].problem is None
    assert fill(tree, {path: np.array([3, 4], np.int32)}) == [path]
    assert read(tree) == {path: [3.0, 4.0]}
    assert old.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float64),
        (np.float16, ml_dtypes.bfloat16),
        (np.float64, ml_dtypes.float8_e5m2),
        (np.float32, np.uint16),
        (np.int64, np.uint8),
        (np.complex128, np.complex64),
    ],
)
def test_values_are_cast_into_the_dtype_that_is_there(old, new):
    tree = {"a": np.zeros((2, 2), old)}
    held = tree["a"]
    fill(tree, {"a": np.array([[1, 2], [0, 4]], new)})
    assert tree["a"] is held
    assert held.dtype == old
    assert held.tolist() == [[1, 2], [0, 4]]


@pytest.mark.parametrize(
    ("old", "new"),
    [(np.int8, np.array([1, 128])), (np.uint32, np.array([-1, 3])), (np.int64, np.array([0, 2**63], np.uint64))],
)
@pytest.mark.parametrize("wrap", [lambda x: x, torch.from_numpy], ids=["numpy", "torch"])
def test_whole_numbers_that_do_not_fit_are_refused(old, new, wrap):
    tree = {"a": wrap(np.array([5, 6], old))}
    with pytest.raises(EntryError, match=f"'a': it holds numbers from {new.min()} to {new.max()}"):
        fill(tree, {"a": new})
    assert tree["a"].tolist() == [5, 6]
    fill(tree, {"a": np.abs(new) // 2**58 + 1})
    assert tree["a"].tolist() == [1, 33 if new.max() > 128 else 1]


@pytest.mark.parametrize("old", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.complex64])
def test_torch_tensors_of_any_type_are_filled_in_place(old):
    tree = {"a": torch.zeros(3).to(old), "strided": torch.zeros(6).to(old)[::2], "empty": torch.zeros(0).to(old)}
    held = dict(tree)
    values = np.array([1, 2, -4], np.float64 if not old.is_complex else np.complex128)
    fill(tree, {"a": values, "strided": values, "empty": values[:0]})
    assert all(tree[name] is held[name] for name in tree)
    assert [tree[name].to(torch.complex64).real.tolist() for name in tree] == [[1, 2, -4], [1, 2, -4], []]


def test_a_conjugate_view_is_written_as_what_it_shows():
    tree = {"a": torch.zeros(1, dtype=torch.complex64).conj()}
    fill(tree, {"a": np.array([1 + 2j], np.complex64)})
    assert tree["a"].tolist() == [1 + 2j]


REPLACED = {
    "read-only": lambda: read_only(0, 0),
    "broadcast": lambda: np.broadcast_to(array(0), (2,)),
    "fixed": lambda: Fixed([0, 0]),
    "expanded": lambda: torch.zeros(1).expand(2),
}


@pytest.mark.parametrize("kind", REPLACED)
@pytest.mark.parametrize(
    "wrap",
    [lambda x: {"a": x}, lambda x: [x], lambda x: Open(weight=x), lambda x: Slotted(weight=x), lambda x: UserDict(a=x)],
    ids=["dict", "list", "dataclass", "slots", "userdict"],
)
def test_what_cannot_be_written_to_is_replaced_in_its_container(kind, wrap):
    old = REPLACED[kind]()
    tree = wrap(old)
    (slot,) = plain.outline(tree)
    assert slot.problem is None
    assert fill(tree, {slot.path: array(3, 4)}) == [slot.path]
    assert read(tree) == {slot.path: [3.0, 4.0]}
    assert np.asarray(old).tolist() == [0, 0]


@pytest.mark.parametrize("kind", REPLACED)
@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda x: {"t": (x,)}, "tuple around it takes no other: make it a list"),
        (lambda x: Pair(x, None), "named tuple Pair around it"),
        (lambda x: Frozen(x), "dataclass Frozen around it is frozen"),
        (lambda x: MappingProxyType({"a": x}), "mappingproxy around it takes no other: make it a dict"),
        (lambda x: x, "nothing is around it"),
    ],
    ids=["tuple", "namedtuple", "frozen", "mapping", "root"],
)
def test_where_neither_can_be_done_the_place_says_so(kind, wrap, words):
    tree = wrap(REPLACED[kind]())
    (slot,) = plain.outline(tree)
    assert words in str(slot.problem)
    with pytest.raises(UnsupportedError, match=words):
        fill(tree, {slot.path: array(3, 4)})


def test_another_dtype_replaces_the_array():
    old = {"a": array(1), "t": torch.zeros(1), "p": torch.nn.Parameter(torch.zeros(1), requires_grad=False)}
    tree = dict(old)
    fill(tree, {"a": array(3), "t": array(4), "p": array(5)}, dtype=BF16)
    assert tree["a"].dtype == ml_dtypes.bfloat16
    assert tree["t"].dtype == tree["p"].dtype == torch.bfloat16
    assert isinstance(tree["p"], torch.nn.Parameter)
    assert not tree["p"].requires_grad
    assert [float(value[0]) for value in tree.values()] == [3, 4, 5]
    assert [float(value[0]) for value in old.values()] == [1, 0, 0]
    tree["a"][0] = 7  # the new array is its owner's


def test_a_new_tensor_takes_a_gradient_as_the_old_one_did():
    tree = {"a": torch.zeros(1, requires_grad=True)}
    fill(tree, {"a": array(1)}, dtype=F64)
    assert tree["a"].requires_grad
    assert tree["a"].is_leaf


def test_a_number_of_numpy_stays_one():
    tree = {"step": np.int64(3)}
    fill(tree, {"step": np.array(7)})
    assert (type(tree["step"]), tree["step"]) == (np.int64, 7)


def test_booleans_of_burn_become_booleans():
    tree = {"a": np.zeros(2, bool), "t": torch.zeros(2, dtype=torch.bool)}
    wide = BY_NAME["BOOL_U32"]
    raw = entry_of("", np.array([1, 0], np.uint32)).blob
    slots = {slot.path: slot for slot in plain.outline(tree)}
    plain.fill(tree, [Filling(slots[path], TensorEntry(path, wide, (2,), raw), wide) for path in tree], [])
    assert tree["a"].dtype == bool
    assert [tree["a"].tolist(), tree["t"].tolist()] == [[True, False]] * 2


def test_everything_is_checked_before_anything_is_touched():
    tree = {"a": array(1), "t": (array(2), read_only(3))}
    drawn: list[str] = []

    def draw() -> bytes:
        drawn.append("a")
        return bytes(4)

    slots = {slot.path: slot for slot in plain.outline({"a": array(1), "t": (array(2), array(3))})}
    first = Filling(slots["a"], TensorEntry("a", F32, (1,), DeferredBlob(4, draw)), F32)
    for path, dtype, words in [("t.1", F32, "cannot be written to"), ("t.0", BF16, "cannot hold BF16")]:
        done: list[str] = []
        with pytest.raises(UnsupportedError, match=words) as caught:
            plain.fill(tree, [first, Filling(slots[path], describe(path, array(9)), dtype)], done)
        assert caught.value.tensor == path
        assert (done, drawn, tree["a"].tolist()) == ([], [], [1.0])


def test_a_dtype_that_no_array_has_is_refused_before_anything_is_touched():
    tree = {"a": array(1), "b": array(2)}
    small = TensorEntry("b", BY_NAME["F6_E2M3"], (1,), DeferredBlob(0, bytes))
    done: list[str] = []
    with pytest.raises(UnsupportedError, match="'b': NumPy has no type"):
        plain.fill(tree, [filling(tree, "a", array(5)), Filling(plain.outline(tree)[1], small, F32)], done)
    assert (done, tree["a"].tolist()) == ([], [1.0])


def test_a_place_that_is_gone_is_told():
    tree = {"a": array(1), "b": array(2)}
    wanted = filling(tree, "b", array(3))
    del tree["b"]
    with pytest.raises(EntryError, match="'b': the tree has no such place any more"):
        plain.fill(tree, [wanted], [])


def test_what_was_filled_is_told_when_bytes_fail_to_come():
    tree = {"a": array(1), "b": array(2)}

    def fail() -> bytes:
        raise EntryError("the disk is gone")

    slots = plain.outline(tree)
    broken = Filling(slots[1], TensorEntry("b", F32, (1,), DeferredBlob(4, fail)), F32)
    done: list[str] = []
    with pytest.raises(FirekeepError, match="'b': the disk is gone"):
        plain.fill(tree, [filling(tree, "a", array(5)), broken], done)
    assert (done, tree["a"].tolist(), tree["b"].tolist()) == (["a"], [5.0], [2.0])


@pytest.mark.parametrize("old", [read_only(1), Fixed([1]), torch.zeros(1)], ids=["read-only", "fixed", "torch"])
def test_what_was_tied_stays_tied_when_it_is_replaced(old):
    tree = {"a": old, "b": [old]}
    fill(tree, {"a": array(7)}, dtype=F64)
    assert tree["b"][0] is tree["a"]
    fill(tree, {"b.0": array(8), "a": array(8)}, dtype=F64)
    assert tree["b"][0] is tree["a"]
    assert float(tree["a"][0]) == 8


def test_a_tied_array_is_not_replaced_where_one_of_its_places_cannot_take_another():
    old = read_only(1)
    tree = {"a": old, "b": (old,)}
    assert ["make it a list" in str(slot.problem) for slot in plain.outline(tree)] == [True, True]


def test_entries_of_a_tree_fill_another():
    tree = {"w": np.arange(6.0).reshape(2, 3).T, "t": [torch.arange(4.0).reshape(2, 2).T], "n": np.float32(math.pi)}
    twin = {"w": np.zeros((3, 2)), "t": [torch.zeros(2, 2)], "n": np.float32(0)}
    entries = {entry.name: entry for entry in plain.entries(tree)}
    done: list[str] = []
    plain.fill(twin, [Filling(slot, entries[slot.path], slot.dtype) for slot in plain.outline(twin)], done)
    assert done == ["w", "t.0", "n"]
    assert read(twin) == read(tree)


def test_owned_are_containers_and_arrays():
    for obj in ({}, [], (), Open(), array(1), torch.zeros(1), OrderedDict(), MappingProxyType({})):
        assert plain.owns(obj)
    for obj in (1, "text", None, object(), Open, np.array(["a"])):
        assert not plain.owns(obj)
