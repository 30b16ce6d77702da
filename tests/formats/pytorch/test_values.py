"""What a file holds besides tensors, as plain Python data."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import io
import pathlib
import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firekeep
from firekeep.errors import LimitError
from firekeep.formats.pytorch import Opaque, TensorRef
from firekeep.limits import DEFAULT_LIMITS
from pickles import (
    EMPTY_LIST,
    MARK,
    NONE,
    REDUCE,
    SETITEMS,
    TRUE,
    call,
    floats,
    group,
    legacy_file,
    mapping,
    module,
    name,
    new,
    number,
    ordered,
    pairs,
    pickled,
    raw_bytes,
    sequence,
    tensor,
    text,
    zip_file,
)

PROTOCOLS = range(6)


def t() -> bytes:
    return tensor("FloatStorage", "0", 1)


def read(body: bytes) -> Any:
    return firekeep.open(zip_file(pickled(body), {"0": floats(1)})).values()


def thaw(value: object, protocol: int = 4) -> Any:
    """Pickle with Python's own pickler and read it back."""
    return firekeep.open(pickle.dumps([value], protocol)).values()[0]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(-9, 9), inner)
        ),
        max_leaves=20,
    ),
    st.sampled_from(PROTOCOLS),
)
def test_plain_data_come_back_as_they_were(value: Any, protocol: int):
    assert thaw(value, protocol) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_containers_and_big_integers_come_back(protocol: int):
    value = {
        "set": {1, 2},
        "frozen": frozenset("ab"),
        "ordered": collections.OrderedDict(a=1),
        "big": 1 << 4000,
        "bytes": bytearray(b"x"),
        "complex": 1 + 2j,
    }
    back = thaw(value, protocol)
    assert back == value
    assert type(back["set"]) is set
    assert type(back["frozen"]) is frozenset
    assert type(back["ordered"]) is dict


def test_tensors_stand_as_references_to_their_names():
    assert read(mapping({"epoch": number(3), "model": ordered({"w": t()}), "list": sequence(number(1), t())})) == {
        "epoch": 3,
        "model": {"w": TensorRef("model.w")},
        "list": [1, TensorRef("list.1")],
    }
    assert read(t()) == TensorRef("")


def test_a_tensor_that_is_not_listed_stands_for_where_it_is():
    values = read(module({"_parameters": {"w": t()}}, {"plain": t()}))
    assert values.state["_parameters"] == {"w": TensorRef("w")}
    assert values.state["plain"] == TensorRef("plain")


def test_modules_show_their_class_and_attributes():
    values = read(mapping({"model": module({"_modules": {"fc": module({"_parameters": {"b": NONE}})}})}))
    assert values["model"].name == "my_project.models.Net"
    assert values["model"].state["training"] is True
    assert values["model"].state["_modules"]["fc"].state["_parameters"] == {"b": None}


class Config:
    def __init__(self) -> None:
        self.lr = 0.1
        self.name = "x"


@dataclass
class Slotted:
    __slots__ = ("left", "right")
    left: int
    right: int


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_show_their_class_and_state(protocol: int):
    back = thaw(Config(), protocol)
    assert isinstance(back, Opaque)
    assert back.name.endswith("test_values.Config")
    assert back.state == {"lr": 0.1, "name": "x"}


def test_slots_are_part_of_the_state():
    assert thaw(Slotted(1, 2)).state == {"left": 1, "right": 2}


def test_a_namespace_keeps_its_values():
    back = thaw(argparse.Namespace(lr=0.1, layers=[1, 2]))
    assert (back.name, back.state) == ("argparse.Namespace", {"lr": 0.1, "layers": [1, 2]})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_dates_keep_their_arguments(protocol: int):
    back = thaw(dt.date(2024, 5, 6), protocol)
    assert back.name == "datetime.date"
    assert back.args == (b"\x07\xe8\x05\x06",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "path", [pathlib.PurePosixPath("/a/b c"), pathlib.PureWindowsPath(r"C:\a\b"), pathlib.Path("x")]
)
def test_paths_are_text(path: pathlib.PurePath, protocol: int):
    assert thaw(path, protocol) == str(path)


def test_paths_of_other_systems_are_text():
    assert read(call("pathlib", "WindowsPath", text("C:\\"), text("runs"), text("1"))) == "C:\\runs\\1"
    assert read(call("pathlib", "PosixPath", text("/"), text("home"))) == "/home"


def test_torchs_small_values_are_text_and_tuples():
    body = mapping(
        {
            "dtype": name("torch", "bfloat16"),
            "device": call("torch", "device", text("cuda"), number(1)),
            "cpu": call("torch", "device", text("cpu")),
            "size": call("torch", "Size", group(number(2), number(3))),
            "class": name("torch.nn.modules.linear", "Linear"),
        }
    )
    assert read(body) == {
        "dtype": "torch.bfloat16",
        "device": "cuda:1",
        "cpu": "cpu",
        "size": (2, 3),
        "class": Opaque("torch.nn.modules.linear.Linear"),
    }


def test_calls_that_would_run_code_are_shown_and_not_made():
    back = read(call("os", "system", text("touch /tmp/never")))
    assert back == Opaque("os.system", args=("touch /tmp/never",))


def test_what_a_function_of_a_function_makes_is_named_after_the_first():
    body = call("functools", "partial", name("os", "system")) + group(text("x")) + REDUCE
    assert read(body) == Opaque("functools.partial", args=("x",))


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(4, dtype=">f8"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array(1.5, np.float16),
    np.empty((0, 3), np.int16),
    np.arange(10, dtype=np.uint8)[::3],
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{list(array.shape)}")
def test_numpy_arrays_are_decoded(array: Any, protocol: int):
    back = thaw(array, protocol)
    assert isinstance(back, np.ndarray)
    assert back.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("scalar", [np.float64(1.5), np.int8(-3), np.bool_(True), np.uint64(1 << 63), np.str_("x")])
def test_numpy_scalars_are_decoded(scalar: Any, protocol: int):
    back = thaw(scalar, protocol)
    assert back == scalar
    assert type(back) is type(scalar)


def test_arrays_of_older_numpy_are_decoded():
    dtype = (
        call("numpy", "dtype", text("i4"), number(0), number(1))
        + group(number(3), text("<"), NONE, NONE, NONE, number(-1), number(-1), number(0))
        + b"b"
    )
    array = call("numpy.core.multiarray", "_reconstruct", name("numpy", "ndarray"), group(number(0)), raw_bytes(b"b"))
    array += group(number(1), group(number(2)), dtype, b"\x89", raw_bytes(b"\1\0\0\0\2\0\0\0")) + b"b"
    assert read(mapping({"a": array}))["a"].tolist() == [1, 2]
    python2 = array.replace(raw_bytes(b"\1\0\0\0\2\0\0\0"), b"U\x08\1\0\0\0\xff\0\0\0")
    assert read(mapping({"a": python2}))["a"].tolist() == [1, 255]


def test_numpy_dtypes_are_text():
    assert thaw(np.dtype("float32")) == "float32"


@pytest.mark.parametrize(
    "array",
    [np.array([None, "x"], object), np.zeros(2, [("a", "i4")]), np.array(["2020-01-01"], "M8[D]")],
    ids=["objects", "records", "dates"],
)
def test_arrays_of_other_things_stay_objects(array: Any):
    back = thaw(array)
    assert isinstance(back, Opaque)
    assert "numpy" in back.name


def test_an_array_whose_bytes_do_not_fit_its_shape_stays_an_object():
    raw = pickle.dumps(np.arange(4, dtype=np.int32), 2)
    assert isinstance(firekeep.open(raw.replace(b"K\x04\x85", b"K\x05\x85")).values(), Opaque)


def test_shared_objects_stay_shared_and_cycles_stay_cycles():
    inner = [1]
    value: dict[str, Any] = {"a": inner, "b": inner}
    value["self"] = value
    back = thaw(value)
    assert back["a"] is back["b"]
    assert back["self"] is back


def test_objects_that_hold_themselves_are_made():
    config = Config()
    config.me = config  # type: ignore[attr-defined]
    back = thaw(config)
    assert back.state["me"] is back
    assert "..." in repr(back)


def test_keys_of_any_kind_are_plain_data():
    body = pairs(
        [
            (number(1), TRUE),
            (group(number(1), text("x")), NONE),
            (name("a", "Callback"), number(2)),
            (call("a", "Enum", number(1)), number(3)),
            (call("a", "Enum", number(2)), number(4)),
        ]
    )
    assert read(body) == {1: True, (1, "x"): None, "a.Callback": 2, "a.Enum": 3, "a.Enum#5": 4}


def test_sets_of_what_cannot_be_hashed_are_lists():
    assert read(mapping({"s": b"\x8f" + MARK + new("a", "B") + number(1) + b"\x90"})) == {"s": [Opaque("a.B"), 1]}


def test_items_of_foreign_dicts_and_lists_are_kept():
    body = mapping(
        {
            "dict": new("a", "D", mapping({"x": number(1)})) + MARK + text("k") + number(2) + SETITEMS,
            "list": new("a", "L") + MARK + number(3) + b"e",
        }
    )
    assert read(body) == {
        "dict": Opaque("a.D", state={"x": 1}, items={"k": 2}),
        "list": Opaque("a.L", items=[3]),
    }


def test_values_of_legacy_files_are_those_of_the_object():
    file = firekeep.open(legacy_file(mapping({"epoch": number(3)})))
    assert file.values() == {"epoch": 3}


def test_the_object_may_be_anything():
    assert firekeep.open(pickle.dumps(7)).values() == 7
    assert firekeep.open(pickled(NONE)).values() is None


@pytest.mark.parametrize("length", [0, 1])
def test_arrays_of_absurd_dtypes_and_shapes_stay_objects(length: int):
    def array(code: str, *shape: int) -> bytes:
        dtype = call("numpy", "dtype", text(code), number(0), number(1))
        made = call(
            "numpy.core.multiarray", "_reconstruct", name("numpy", "ndarray"), group(number(0)), raw_bytes(b"b")
        )
        return made + group(number(1), group(*map(number, shape)), dtype, b"\x89", raw_bytes(bytes(length))) + b"b"

    for body in (
        array("S0", 1 << 40),
        array("f16", 1),
        array("f8", -1),
        array("u1", *(1,) * 40),
        array("u1", 0, 1 << 60),
    ):
        assert isinstance(read(body), Opaque)


def test_odd_numpy_calls_stay_objects():
    for body in (
        call("numpy.core.multiarray", "scalar", number(1)),
        call("numpy.core.multiarray", "scalar", number(1), number(2)),
        call("numpy", "dtype", number(1)),
        call("numpy.core.multiarray", "_reconstruct", number(1)),
        call("numpy._core.numeric", "_frombuffer", number(1), number(2), number(3), number(4)),
    ):
        assert isinstance(read(body), Opaque)


def test_paths_of_absurd_length_stay_objects():
    assert isinstance(read(call("pathlib", "PosixPath", text("x" * 5000))), Opaque)
    assert isinstance(read(call("torch", "device", number(1), number(2), number(3))), Opaque)


def test_deep_and_large_objects_are_refused_when_asked_for():
    deep = pickled(NONE + b"\x85" * 300)
    few = replace(DEFAULT_LIMITS, pickle_depth=400)
    assert firekeep.open(deep, limits=few).values() is not None
    body = EMPTY_LIST + MARK + EMPTY_LIST * 50 + b"e"
    file = firekeep.open(pickled(body), limits=replace(DEFAULT_LIMITS, pickle_nodes=60))
    assert len(file.values()) == 50


def test_levels_beyond_the_limit_are_refused():
    body = mapping({"args": new("a", "B", NONE + b"\x85" * 1500)})
    with pytest.raises(LimitError, match="levels"):
        firekeep.open(zip_file(pickled(body)))


def test_what_a_pickle_would_do_is_not_done(tmp_path: pathlib.Path):
    trace = tmp_path / "was here"

    class Evil:
        def __reduce__(self) -> Any:
            return (io.open, (str(trace), "w"))

    back = firekeep.open(pickle.dumps({"x": Evil()})).values()
    assert back["x"] == Opaque("io.open", args=(str(trace), "w"))
    assert not trace.exists()
