"""Typed scalars: the kind they are given, and the types they can be read as."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import ScalarError
from firekeep.scalars import Scalar

KINDS = {
    "a Python integer": (3, Scalar("int", 3)),
    "a negative integer": (-3, Scalar("int", -3)),
    "an integer beyond 63 bits": (1 << 63, Scalar("uint", 1 << 63)),
    "a bool": (True, Scalar("bool", True)),
    "a float": (0.5, Scalar("float", 0.5)),
    "an unsigned NumPy integer": (np.uint16(3), Scalar("uint", 3)),
    "a signed NumPy integer": (np.int8(-3), Scalar("int", -3)),
    "a NumPy bool": (np.bool_(True), Scalar("bool", True)),
    "a NumPy float64": (np.float64(0.1), Scalar("float", 0.1)),
    "a NumPy float32, widened": (np.float32(0.1), Scalar("float", 0.10000000149011612)),
    "a scalar": (Scalar("uint", 3), Scalar("uint", 3)),
}


@pytest.mark.parametrize(("value", "scalar"), KINDS.values(), ids=KINDS)
def test_a_number_gets_the_kind_burn_would_give_it(value: object, scalar: Scalar) -> None:
    found = Scalar.of(value)
    assert (found.kind, found.value, type(found.value)) == (scalar.kind, scalar.value, type(scalar.value))


@pytest.mark.parametrize("value", ["3", None, 1j, [1], 1 << 64, -(1 << 63) - 1])
def test_what_is_no_scalar_is_refused(value: object) -> None:
    with pytest.raises(ScalarError, match="is not a"):
        Scalar.of(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", 1.0), ("int", True), ("uint", -1), ("uint", 1 << 64), ("int", 1 << 63), ("float", 1), ("bool", 1)],
)
def test_a_value_that_is_not_of_its_kind_is_refused(kind: str, value: object) -> None:
    with pytest.raises(ScalarError, match=f"is not a 64-bit {kind}"):
        Scalar(kind, value)  # type: ignore[arg-type]


def test_minus_five_reads_as_i32() -> None:
    assert Scalar.of(-5).to("i32") == -5


def test_three_hundred_refuses_u8() -> None:
    with pytest.raises(ScalarError, match=r"Int\(300\) does not fit u8 \(0 to 255\)"):
        Scalar.of(300).to("u8")


def test_one_and_a_half_refuses_i64() -> None:
    with pytest.raises(ScalarError, match=r"Float\(1\.5\) cannot be read as i64"):
        Scalar.of(1.5).to("i64")


def test_a_whole_float_is_still_no_integer() -> None:
    with pytest.raises(ScalarError, match="a float is never rounded"):
        Scalar.of(2.0).to("u32")


@pytest.mark.parametrize("value", [-5, 7, (1 << 64) - 1])
def test_integers_read_as_floats(value: int) -> None:
    assert Scalar.of(value).to("f64") == float(value)
    assert Scalar.of(value).to("f32") == float(np.float32(value))


@pytest.mark.parametrize("host", ["i8", "u64", "f32", "f64"])
def test_a_bool_is_no_number(host: str) -> None:
    with pytest.raises(ScalarError, match=rf"Bool\(True\) cannot be read as {host}"):
        Scalar.of(True).to(host)


@pytest.mark.parametrize("value", [0, 1, 0.0])
def test_a_number_is_no_bool(value: float) -> None:
    with pytest.raises(ScalarError, match="cannot be read as bool"):
        Scalar.of(value).to("bool")
    with pytest.raises(ScalarError, match="cannot be read as bool"):
        bool(Scalar.of(value))


def test_an_unknown_host_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ScalarError, match="no scalar type 'i128': one of i8, i16"):
        Scalar.of(1).to("i128")


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.sampled_from(["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]))
def test_an_integer_reads_as_every_type_it_fits(value: int, host: str) -> None:
    info = np.iinfo(f"{'' if host[0] == 'i' else 'u'}int{host[1:]}")
    scalar = Scalar.of(value)
    if info.min <= value <= info.max:
        assert scalar.to(host) == value
    else:
        with pytest.raises(ScalarError, match="does not fit"):
            scalar.to(host)


def test_a_float_reads_as_f32_rounded_and_refuses_what_does_not_fit() -> None:
    assert Scalar.of(0.1).to("f32") == float(np.float32(0.1))
    assert Scalar.of(math.inf).to("f32") == math.inf
    assert math.isnan(float(Scalar.of(math.nan)))
    with pytest.raises(ScalarError, match="does not fit f32"):
        Scalar.of(1e300).to("f32")


def test_the_short_forms_read_as_the_widest_type() -> None:
    assert int(Scalar.of(-5)) == -5
    assert int(Scalar("uint", (1 << 64) - 1)) == (1 << 64) - 1
    assert float(Scalar.of(3)) == 3.0
    assert bool(Scalar.of(False)) is False
    assert operator.index(Scalar.of(4)) == 4
    assert [10, 20, 30][Scalar.of(1)] == 20


def test_the_kind_makes_a_difference() -> None:
    assert Scalar("int", 3) != Scalar("uint", 3)
    assert [str(scalar) for scalar in (Scalar("int", 3), Scalar("uint", 3), Scalar("float", 3.0))] == [
        "Int(3)",
        "UInt(3)",
        "Float(3.0)",
    ]
