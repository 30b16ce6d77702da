"""Burn's adapters by name: which tensors they touch, and which pass."""

from __future__ import annotations

import numpy as np
import pytest

from firekeep.adapters import (
    BurnToPyTorchAdapter,
    FloatCastAdapter,
    HalfPrecisionAdapter,
    PyTorchToBurnAdapter,
    chain,
)
from firekeep.arrays import as_array, entry_of
from firekeep.dtypes import BY_NAME
from firekeep.errors import RuleError, UnsupportedError
from firekeep.slots import Layer, Outline, Slot

FC, NORM, BN = (
    Layer(kind=kind, path=path) for kind, path in (("linear", "fc"), ("layer_norm", "norm"), ("batch_norm", "bn"))
)
SHAPES = {
    "fc.weight": (3, 2),
    "norm.gamma": (2,),
    "bn.running_var": (2,),
    "own": (2,),
    "choice.table": (2,),
    "other.index": (2,),
}


def slot(path, layer, *containers):
    return Slot(path=path, dtype=BY_NAME["F32"], shape=SHAPES[path], layer=layer, containers=containers)


OUTLINE = Outline(
    (
        slot("fc.weight", FC, "Struct:Net", "Struct:Linear"),
        slot("norm.gamma", NORM, "Struct:Net", "Struct:LayerNorm"),
        slot("bn.running_var", BN, "Struct:Net", "Struct:BatchNorm"),
        slot("own", None, "Struct:Net"),
        slot("choice.table", None, "Struct:Net", "Enum:Choice"),
    ),
    convention="burn",
    layers=(FC, NORM, BN),
)


def entries(dtype=np.float32, names=tuple(SHAPES)):
    return [
        entry_of(name, np.arange(1, 1 + np.prod(SHAPES[name])).reshape(SHAPES[name]).astype(dtype)) for name in names
    ]


def dtypes(made):
    return {entry.name: entry.dtype.name for entry in made}


def halved(**options):
    made = HalfPrecisionAdapter(**options).adapt(entries(), OUTLINE)
    return {name for name, dtype in dtypes(made).items() if dtype != "F32"}


def test_layouts_there_and_back():
    given = [entry_of("fc.weight", np.arange(6, dtype=np.float32).reshape(2, 3)), entry_of("norm.weight", np.ones(2))]
    there = PyTorchToBurnAdapter().adapt(given, OUTLINE)
    assert [(entry.name, entry.shape) for entry in there] == [("fc.weight", (3, 2)), ("norm.gamma", (2,))]
    back = BurnToPyTorchAdapter().adapt(there, OUTLINE)
    assert [entry.name for entry in back] == ["fc.weight", "norm.weight"]
    assert (as_array(back[0]) == as_array(given[0])).all()


def test_what_the_other_layout_cannot_hold_is_an_error_that_names_it():
    with pytest.raises(UnsupportedError, match=r"tensor 'norm\.weight': it cannot be put in burn layout: .*last axis"):
        PyTorchToBurnAdapter().adapt([entry_of("norm.weight", np.ones((2, 2)))], OUTLINE)


def test_an_outline_without_layers_changes_no_layout():
    given = entries()
    assert PyTorchToBurnAdapter().adapt(given, Outline(())) == given


def test_half_precision_takes_the_types_of_its_set_and_no_batch_norm():
    assert halved() == {"fc.weight", "norm.gamma"}
    assert dtypes(HalfPrecisionAdapter().adapt(entries(), OUTLINE))["fc.weight"] == "F16"
    assert dtypes(HalfPrecisionAdapter(dtype="bf16").adapt(entries(), OUTLINE))["fc.weight"] == "BF16"


def test_half_precision_goes_back_to_single_only_when_told():
    given = entries(np.float16)
    assert dtypes(HalfPrecisionAdapter().adapt(given, OUTLINE)) == dict.fromkeys(SHAPES, "F16")
    back = dtypes(HalfPrecisionAdapter(dtype="f32").adapt(given, OUTLINE))
    assert {name for name, dtype in back.items() if dtype == "F32"} == {"fc.weight", "norm.gamma"}


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.bool_])
def test_half_precision_lets_other_dtypes_pass(dtype):
    given = entries(dtype)
    assert HalfPrecisionAdapter().adapt(given, OUTLINE) == given


def test_modules_are_added_and_left_out_by_name():
    assert halved(with_module=["Net"]) == {"fc.weight", "norm.gamma", "own"}
    assert halved(with_module="Enum:Choice") == {"fc.weight", "norm.gamma", "choice.table"}
    assert halved(without_module="LayerNorm") == {"fc.weight"}
    assert halved(without_module=["Struct:Linear"]) == {"norm.gamma"}


def test_leaving_out_what_is_not_there_is_noted_and_changes_nothing():
    adapter = HalfPrecisionAdapter(without_module=["BatchNorm", "Linear"])
    assert adapter.notes == (
        "Struct:BatchNorm is not among the types that are cast to half precision: leaving it out changes nothing",
    )
    assert HalfPrecisionAdapter().notes == ()
    assert halved(without_module="BatchNorm") == halved()


def test_every_float_is_cast_by_the_other_one():
    given = [*entries(), entry_of("n", np.arange(3))]
    assert dtypes(FloatCastAdapter("bf16").adapt(given, OUTLINE)) == {**dict.fromkeys(SHAPES, "BF16"), "n": "I64"}


def test_numbers_lost_are_counted():
    adapter = FloatCastAdapter("f16")
    (made,) = adapter.adapt([entry_of("w", np.array([1e30, 1], np.float32))], OUTLINE)
    assert np.isinf(as_array(made)[0])
    assert adapter.losses.overflowed == {"w": 1}


@pytest.mark.parametrize("make", [FloatCastAdapter, lambda name: HalfPrecisionAdapter(dtype=name)])
@pytest.mark.parametrize("name", ["i32", "f8_e4m3", "nothing"])
def test_a_target_that_is_no_float_is_refused_at_once(make, name):
    with pytest.raises(RuleError, match=name.upper() if name == "f8_e4m3" else name):
        make(name)


@pytest.mark.parametrize("half_first", [False, True])
def test_a_chain_casts_under_the_names_of_either_layout(half_first):
    given = [entry_of("fc.weight", np.ones((2, 3), np.float32)), entry_of("norm.weight", np.ones(2, np.float32))]
    both = (HalfPrecisionAdapter(), PyTorchToBurnAdapter())
    made = chain(*(both if half_first else both[::-1])).adapt(given, OUTLINE)
    assert [(entry.name, entry.shape, entry.dtype.name) for entry in made] == [
        ("fc.weight", (3, 2), "F16"),
        ("norm.gamma", (2,), "F16"),
    ]


def test_an_empty_chain_changes_nothing():
    given = entries()
    assert chain().adapt(given, OUTLINE) == given
