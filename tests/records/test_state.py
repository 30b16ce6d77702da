from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.ids import ParamId
from firekeep.records._state import F32, I32, FlatState, StateError, UInt, flatten, unflatten
from firekeep.scalars import Scalar

Array = Any


@dataclass
class Momentum:
    time: UInt
    moment_1: np.ndarray
    max_moment: np.ndarray | None = None


@dataclass
class History:
    history_s: list[np.ndarray]
    t: float | None
    g_iter: UInt


@dataclass
class Velocity:
    velocity: np.ndarray


@dataclass
class Everything:
    weight: Array
    extra: Array | None
    steps: list[Array]
    pair: tuple[np.ndarray, ...]
    count: int
    index: I32
    rate: float
    small: F32
    on: bool
    limit: int | None
    momentum: Momentum
    centered: Momentum | None = None
    derived: float = field(init=False, default=0.0)


def everything(**changes):
    given = {
        "weight": np.zeros(2),
        "extra": None,
        "steps": [np.ones(1), np.ones(2)],
        "pair": (),
        "count": 3,
        "index": -1,
        "rate": 0.1,
        "small": 0.1,
        "on": True,
        "limit": None,
        "momentum": Momentum(7, np.full(2, 5.0)),
    }
    return Everything(**given | changes)


def test_names_and_kinds_are_those_of_burn():
    flat = flatten(everything(), prefix="42")
    assert list(flat.tensors) == ["42.weight", "42.steps.0", "42.steps.1", "42.momentum.moment_1"]
    assert dict(flat.scalars) == {
        "42.steps.len": Scalar("uint", 2),
        "42.pair.len": Scalar("uint", 0),
        "42.count": Scalar("int", 3),
        "42.index": Scalar("int", -1),
        "42.rate": Scalar("float", 0.1),
        "42.small": Scalar("float", float(np.float32(0.1))),
        "42.on": Scalar("bool", True),
        "42.momentum.time": Scalar("uint", 7),
    }


def alike(one, two):
    if isinstance(one, np.ndarray):
        return one is two
    if isinstance(one, list | tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(alike, one, two))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(two) and all(
            alike(getattr(one, name), getattr(two, name)) for name in one.__dataclass_fields__
        )
    return type(one) is type(two) and one == two


arrays = st.builds(np.zeros, st.integers(0, 3))
momenta = st.builds(Momentum, st.integers(0, 2**64 - 1), arrays, st.none() | arrays)


@given(
    st.builds(
        Everything,
        weight=arrays,
        extra=st.none() | arrays,
        steps=st.lists(arrays, max_size=12),
        pair=st.lists(arrays, max_size=2).map(tuple),
        count=st.integers(-(2**63), 2**63 - 1),
        index=st.integers(-(2**31), 2**31 - 1),
        rate=st.floats(allow_nan=False),
        small=st.floats(width=32, allow_nan=False),
        on=st.booleans(),
        limit=st.none() | st.integers(-(2**63), 2**63 - 1),
        momentum=momenta,
        centered=st.none() | momenta,
    ),
    st.sampled_from(["", "42", "a.b"]),
)
def test_every_state_comes_back(state, prefix):
    flat = flatten(state, prefix=prefix)
    assert alike(unflatten(flat, Everything, prefix=prefix, strict=True), state)
    assert alike(unflatten(flat, everything(), prefix=prefix, strict=True), state)


def test_what_lies_elsewhere_is_left_alone():
    flat = flatten(everything(), prefix="42")
    more = FlatState({**flat.tensors, "421.x": np.zeros(1)}, {**flat.scalars, "42.__rank": Scalar("uint", 1)})
    assert unflatten(more, Everything, prefix="42").count == 3
    with pytest.raises(StateError, match=r"42.__rank"):
        unflatten(more, Everything, prefix="42", strict=True)


def test_entries_carry_the_id():
    entries = flatten(everything(), prefix="42").entries(param_id=ParamId(42))
    assert [(entry.name, entry.param_id) for entry in entries][:2] == [("42.weight", 42), ("42.steps.0", 42)]
    assert flatten(Velocity(np.zeros(2))).entries()[0].param_id is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": None}, "'weight' is None"),
        ({"weight": 3}, "'weight' is int, and its annotation makes it a tensor"),
        ({"steps": [np.zeros(1), "x"]}, "'steps.1' is str"),
        ({"steps": np.zeros(1)}, "'steps' is numpy.ndarray"),
        ({"count": 1.5}, "'count' is 1.5"),
        ({"count": 2**63}, "'count' is 9223372036854775808"),
        ({"count": True}, "'count' is True"),
        ({"index": 2**31}, "'index' is 2147483648, and has to be i32"),
        ({"rate": True}, "'rate' is True"),
        ({"rate": "0.1"}, "'rate' is '0.1'|f64"),
        ({"on": 1}, "'on' is 1"),
        ({"small": 1e300}, "'small' is 1e\\+300"),
        ({"momentum": {"time": 1}}, "'momentum' is dict"),
        ({"momentum": Momentum(-1, np.zeros(1))}, "'momentum.time' is -1"),
    ],
)
def test_values_that_are_not_what_is_declared_are_refused_by_name(changes, words):
    with pytest.raises(StateError, match=words):
        flatten(everything(**changes))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("weight", None, "there is no tensor 'weight'"),
        ("count", None, "there is no scalar 'count'"),
        ("count", Scalar("float", 1.0), "'count' does not fit.*Float"),
        ("limit", Scalar("bool", True), "'limit' does not fit"),
        ("index", Scalar("uint", 2**40), "'index' does not fit"),
        ("momentum.time", None, "'momentum.time', which Momentum needs: there are 'momentum.moment_1'"),
        ("steps.len", None, "'steps' has no length"),
        ("steps.len", Scalar("uint", 2**64 - 1), "'steps' has 18446744073709551615 tensors"),
        ("steps.len", Scalar("int", -1), "'steps.len' does not fit"),
        ("steps.1", None, "'steps' has 2 tensors by its length, and lacks 'steps.1'"),
    ],
)
def test_records_that_do_not_fit_are_refused_by_name(name, value, words):
    flat = flatten(everything())
    tensors, scalars = dict(flat.tensors), dict(flat.scalars)
    tensors.pop(name, None)
    scalars.pop(name, None)
    if value is not None:
        scalars[name] = value
    with pytest.raises(StateError, match=words):
        unflatten(FlatState(tensors, scalars), Everything)


def test_the_state_of_another_optimizer_says_what_there_is():
    @dataclass
    class Sgd:
        momentum: Velocity | None

    Sgd.__annotations__["momentum"] = Velocity | None
    adam = FlatState({"1.momentum.moment_1": np.zeros(1)}, {"1.momentum.time": Scalar("uint", 1)})
    with pytest.raises(StateError, match=r"'1.momentum.velocity'.*there are '1.momentum.moment_1', '1.momentum.time'"):
        unflatten(adam, Sgd, prefix="1")
    assert unflatten(FlatState(), Sgd, prefix="1").momentum is None


def test_a_tensor_under_the_name_of_a_scalar_is_told():
    with pytest.raises(StateError, match="under this name there is a tensor"):
        unflatten(FlatState({"time": np.zeros(1), "moment_1": np.zeros(1)}), Momentum)


def test_a_scalar_at_the_place_of_an_optional_one_of_another_kind_is_no_absence():
    flat = flatten(History([], 1.0, 3))
    with pytest.raises(StateError, match="'t' does not fit"):
        unflatten(FlatState({}, {**flat.scalars, "t": Scalar("bool", True)}), History)


@pytest.mark.parametrize(
    "hint", [list[int], list[Momentum], dict[str, int], str, tuple[np.ndarray, np.ndarray], list[Array] | None]
)
def test_kinds_that_burn_has_not_are_refused(hint):
    @dataclass
    class Odd:
        odd: int

    Odd.__annotations__["odd"] = hint
    with pytest.raises(StateError, match="'odd'"):
        flatten(Odd(None))


@pytest.mark.parametrize("value", [3, Momentum, {"a": 1}])
def test_only_dataclasses_are_states(value):
    with pytest.raises(StateError, match="dataclass"):
        flatten(value)
    if value is not Momentum:
        with pytest.raises(StateError, match="dataclass"):
            unflatten(FlatState(), value)
